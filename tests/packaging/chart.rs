//! The Helm chart in packaging/, as far as Helm is not needed: tests/kubernetes/chart.rs has the rest.

use humanz::kube::yaml::parse;
use humanz::settings::flags::{VARIABLES, Variable};
use serde_json::{Value, json};

use crate::{read, root};

/// Settings of one host, which a chart for all of them cannot have.
const OF_ONE_HOST: [&str; 3] = ["NODE_IP", "NODE_NAME", "SUBNET"];

#[test]
fn the_chart_has_the_version_of_the_executable() {
    let chart = parse(&read("packaging/Chart.yaml")).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

/// `UPDATE=1 cargo test --test packaging chart` writes it anew.
#[test]
fn the_schema_of_the_chart_has_every_setting_and_its_choices() {
    let path = root().join("packaging/values.schema.json");
    let found = std::fs::read_to_string(&path).unwrap();
    let mut schema: Value = serde_json::from_str(&found).unwrap();
    let settings = VARIABLES.iter().filter(|it| !OF_ONE_HOST.contains(&it.name));
    schema["properties"]["settings"]["properties"] =
        settings.map(|it| (it.name.to_owned(), value_of(it))).collect();
    let text = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
        return;
    }
    assert!(found == text, "outdated: UPDATE=1 cargo test --test packaging chart");
}

/// What can be written for a setting, in the words of JSON Schema.
fn value_of(setting: &Variable) -> Value {
    let is_number = |text: &str| text.chars().all(|char| char.is_ascii_digit());
    let mut allowed = match (setting.choices, setting.default) {
        ([], "true" | "false") => json!({"enum": [true, false, "true", "false"]}),
        ([], "auto") => json!({"type": ["integer", "string"], "pattern": "^(auto|[0-9]+)$"}),
        ([], default) if !default.is_empty() && is_number(default) => {
            json!({"type": ["integer", "string"], "pattern": "^[0-9]+$"})
        }
        ([], _) => json!({"type": "string"}),
        (choices, _) => {
            let of_all =
                choices.iter().filter(|name| (setting.name, **name) != ("SUBNET_SOURCE", "static"));
            json!({"enum": of_all.collect::<Vec<_>>()})
        }
    };
    allowed["description"] = json!(setting.help);
    allowed
}

#[test]
fn every_value_of_the_chart_has_a_comment_and_a_schema() {
    let (text, schema) = (read("packaging/values.yaml"), read("packaging/values.schema.json"));
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let is_value = |line: &str| !line.is_empty() && !line.starts_with([' ', '#']);
    let mut names = Vec::new();
    for (line, above) in
        lines.iter().zip([""].iter().chain(&lines)).filter(|(line, _)| is_value(line))
    {
        let (name, _) = line.split_once(':').unwrap();
        let first_inside = lines.iter().skip_while(|it| it != &line).nth(1);
        let has_comment = |line: &str| line.trim_start().starts_with('#');
        assert!(has_comment(above) || first_inside.is_some_and(|it| has_comment(it)), "{line}");
        names.push(name);
    }
    names.sort_unstable();
    let known = schema["properties"].as_object().unwrap();
    // What a chart of charts gives to each of them is used by none here.
    let known: Vec<&String> = known.keys().filter(|name| *name != "global").collect();
    assert_eq!(names, known);
    closed("values", &schema);
}

/// A misspelt name is refused in every object whose fields the chart knows.
fn closed(path: &str, schema: &Value) {
    let Some(fields) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{path}");
    fields.iter().for_each(|(name, inner)| closed(&format!("{path}.{name}"), inner));
}

/// Without a terminal nothing ends the program in the pod when kubectl ends.
#[test]
fn a_page_that_is_served_in_a_pod_ends_with_its_kubectl() {
    for document in ["packaging/templates/NOTES.txt", "packaging/operations.md"] {
        let text = read(document).replace('\n', " ");
        let found = text.match_indices(" -- humanz-agent ui").map(|(end, _)| &text[..end]);
        let calls: Vec<&str> =
            found.map(|before| before.rsplit(" exec ").next().unwrap()).collect();
        assert!(
            !calls.is_empty() && calls.iter().all(|it| it.starts_with("-it ")),
            "{document}: {calls:?}"
        );
    }
}
