//! The subcommands, as an operator types them.

// A test stops at the first failure and may print its measurements.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use humanz_test_support as support;

mod another_user;
mod config;
mod connectivity;
mod contiv;
mod doctor;
mod encryption;
mod explain;
mod init;
mod ipam;
mod manual;
mod matrix;
mod names;
mod nodes;
mod objects;
mod pages;
mod pods;
mod probe;
mod routes;
mod running;
mod status;
mod terminal;
mod typed;
mod watch;

use serde_json::Value;
use support::{Agent, Ended, Node};

/// Runs a subcommand to its end.
fn run(host: &Node, line: &str, variables: &[(&str, &str)]) -> Ended {
    Agent::run(host, line, variables)
}

/// It failed with that code, said these words, and answered nothing.
fn refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{ended}");
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not in: {ended}");
    }
    assert_eq!(ended.stdout, "", "{ended}");
}

/// The object that a subcommand printed, whatever its exit code; every one has a schema.
fn object(ended: &Ended) -> Value {
    let value: Value =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended}"));
    assert_eq!(value["schema"], 1, "{ended}");
    value
}

/// The keys of a value with their types, one a line: `nodes[].name: string`. A key that appears
/// with more than one type is there more than once.
fn shape(value: &Value) -> String {
    fn add(lines: &mut std::collections::BTreeSet<String>, path: &str, value: &Value) {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(list) => {
                lines.insert(format!("{path}: list"));
                return list.iter().for_each(|value| add(lines, &format!("{path}[]"), value));
            }
            Value::Object(map) => {
                let below =
                    |key: &str| if path.is_empty() { key.into() } else { format!("{path}.{key}") };
                return map.iter().for_each(|(key, value)| add(lines, &below(key), value));
            }
        };
        lines.insert(format!("{path}: {kind}"));
    }
    let mut lines = std::collections::BTreeSet::new();
    add(&mut lines, "", value);
    lines.into_iter().collect::<Vec<_>>().join("\n")
}
