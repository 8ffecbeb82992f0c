//! The agent's metrics, in the format of Prometheus.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use humanz::kube::yaml::documents;
use serde_json::{Value, json};

use crate::support::cluster::Alone;
use crate::support::local::get;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually};
use crate::{alone, serve};

/// The samples of a page: name and labels → value.
fn page(host: &Node) -> String {
    let (code, body) = get(host, "/metrics");
    assert_eq!(code, 200, "{body}");
    body
}

fn value(page: &str, sample: &str) -> Option<f64> {
    let line = page
        .lines()
        .find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')))?;
    Some(line[sample.len()..].trim().parse().unwrap())
}

/// Waits until the sample has that value.
fn wait(host: &Node, sample: &str, wanted: impl Fn(f64) -> bool) -> f64 {
    eventually(sample, 3 * SOON, || {
        let page = page(host);
        value(&page, sample).filter(|found| wanted(*found)).ok_or(page)
    })
}

fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool of Debian's prometheus is needed: packaging/deps test");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
    assert!(output.status.success(), "promtool {arguments:?}: {said:?}");
    if arguments.first() == Some(&"check") && arguments.get(1) == Some(&"metrics") {
        assert_eq!(said, ["", ""], "a remark on a metric");
    }
}

/// The names of all families on a page.
fn names(page: &str) -> BTreeSet<&str> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    types.collect()
}

#[test]
fn metrics_count_events_and_pass_promtool() {
    let alone = alone();
    let host = &alone.host;
    let _agent = serve(host, &[]);
    for sample in [r#"{verb="ADD",code="100"}"#, r#"{verb="DEL",code="999"}"#] {
        wait(host, &format!("humanz_cni_errors_total{sample}"), |count| count == 0.0);
    }
    let pod = Pod::add(host, "a");
    pod.delete();
    Pod::add(host, "b");
    wait(host, r#"humanz_cni_call_duration_seconds_count{verb="ADD"}"#, |count| count == 2.0);
    wait(host, r#"humanz_cni_call_duration_seconds_count{verb="DEL"}"#, |count| count == 1.0);
    wait(host, r#"humanz_addresses{family="ipv4",state="used"}"#, |used| used == 1.0);
    wait(host, r#"humanz_addresses{family="ipv4",state="free"}"#, |free| free == 252.0);
    wait(host, "humanz_bridge_ports", |ports| ports == 1.0);
    wait(host, "humanz_ready", |ready| ready == 1.0);
    wait(host, r#"humanz_drift_repaired_total{kind="bridge"}"#, |count| count == 0.0);
    host.run("ip address flush dev humanz0").ok();
    wait(host, r#"humanz_drift_repaired_total{kind="bridge"}"#, |count| count >= 2.0);
    wait(host, r#"humanz_changes_total{kind="bridge",action="added"}"#, |count| count >= 5.0);
    wait(host, r#"humanz_reconcile_duration_seconds_count{scope="part"}"#, |count| count >= 1.0);
    let page = page(host);
    for absent in ["humanz_etcd_connected", "humanz_snapshot_age_seconds"] {
        assert!(!page.contains(absent), "{absent} on a host without etcd");
    }
    promtool(&["check", "metrics"], &page);
}

#[test]
fn alerts_are_valid_and_fire_on_their_problem_only() {
    promtool(&["check", "rules", "packaging/monitoring/alerts.yml"], "");
    promtool(&["test", "rules", "tests/monitoring/alerts.yml"], "");
    let tested = std::fs::read_to_string("tests/monitoring/alerts.yml").unwrap();
    let shipped = shipped("alerts.yml");
    let alerts = shipped.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        assert!(tested.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tested");
    }
}

/// The guide's scrape configuration is valid, has the job that the alerts want, and finds metrics there.
#[test]
fn the_guides_scrape_configuration_finds_the_metrics() {
    let guide = std::fs::read_to_string("packaging/operations.md").unwrap();
    let block = guide.split("```yaml prometheus.yml\n").nth(1).unwrap();
    let config = block.split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prometheus.yml");
    std::fs::write(&path, config).unwrap();
    promtool(&["check", "config", path.to_str().unwrap()], "");
    assert!(
        shipped("alerts.yml").contains("up{job=\"humanz\"}") && config.contains("job_name: humanz")
    );
    let target = config.split('"').find(|text| text.starts_with("127.0.0.1:")).unwrap();
    assert!(guide.contains(&format!("`METRICS_ADDR={target}`")), "{target}");
    let alone = Alone::new();
    let settings = [("SUBNET_SOURCE", "static"), ("ETCD_HOST", ""), ("METRICS_ADDR", target)];
    let _agent = Agent::start(&alone.host, &settings);
    eventually("the metrics are there", SOON, || {
        let ended = alone.host.run(&format!("curl -sS --noproxy * http://{target}/metrics"));
        if ended.stdout.contains("humanz_ready") { Ok(()) } else { Err(ended.to_string()) }
    });
}

/// The object for the Prometheus operator has the groups of alerts.yml, two columns to the right.
#[test]
fn the_rules_for_the_operator_are_the_alerts() {
    let alerts = shipped("alerts.yml");
    let groups = alerts.split_once("\ngroups:\n").unwrap().1;
    let object = shipped("prometheusrule.yaml");
    let (head, rules) = object.split_once("\nspec:\n  groups:\n").unwrap();
    assert!(head.contains("kind: PrometheusRule"), "{head}");
    let moved: Vec<&str> =
        rules.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    assert_eq!(moved, groups.lines().collect::<Vec<_>>());
}

/// The pods of both DaemonSets, under the job and the instance that the alerts go by; Prometheus takes the scrapes.
#[test]
fn the_monitor_for_the_operator_finds_the_pods_and_gives_them_the_job_of_the_alerts() {
    let [monitor] = &documents(&shipped("podmonitor.yaml")).unwrap()[..] else {
        panic!("one object")
    };
    let spec = &monitor["spec"];
    assert_eq!(
        (&monitor["kind"], spec["podMetricsEndpoints"].as_array().unwrap().len()),
        (&json!("PodMonitor"), 1)
    );
    for manifest in ["daemonset.yaml", "daemonset-kubernetes.yaml"] {
        let text = shipped(&format!("../{manifest}"));
        let objects = documents(&text).unwrap();
        let set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
        assert_eq!(monitor["metadata"]["namespace"], set["metadata"]["namespace"], "{manifest}");
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        let wanted = spec["selector"]["matchLabels"].as_object().unwrap();
        assert!(wanted.iter().all(|(key, value)| labels[key] == *value), "{manifest}: {labels}");
        let job = labels[spec["jobLabel"].as_str().unwrap()].as_str().unwrap();
        assert!(shipped("alerts.yml").contains(&format!("up{{job=\"{job}\"}}")), "{job}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prometheus.yml");
    std::fs::write(&path, scrapes_of(spec).to_string()).unwrap();
    promtool(&["check", "config", "--syntax-only", path.to_str().unwrap()], "");
}

/// The scrape configuration that the operator makes of a monitor's only endpoint; whatever the endpoint has besides
/// is left, and refused.
fn scrapes_of(spec: &Value) -> Value {
    let mut endpoint = spec["podMetricsEndpoints"][0].as_object().unwrap().clone();
    let mut take = |key: &str| endpoint.remove(key).unwrap_or_else(|| panic!("no {key}"));
    let port = take("port");
    let relabelings = take("relabelings");
    let of_pods = relabelings.as_array().unwrap().iter().map(
        |rule| json!({"source_labels": rule["sourceLabels"], "target_label": rule["targetLabel"]}),
    );
    let of_port = json!({"action": "keep", "source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": port});
    let relabel: Vec<Value> = [of_port].into_iter().chain(of_pods).collect();
    let config = json!({"scrape_configs": [{
        "job_name": "humanz",
        "metrics_path": take("path"),
        "scheme": take("scheme"),
        "scrape_interval": take("interval"),
        "authorization": {"credentials": take("authorization")["credentials"]["key"]},
        "tls_config": {"server_name": take("tlsConfig")["serverName"]},
        "relabel_configs": relabel,
    }]});
    assert!(endpoint.is_empty(), "{endpoint:?}");
    config
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let cluster = Cluster::new(2);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(&[]);
    wait(host, r#"humanz_peers{agent="alive"}"#, |alive| alive == 1.0);
    wait(host, "humanz_etcd_connected", |connected| connected == 1.0);
    wait(host, "humanz_snapshot_age_seconds", |age| age < 60.0);
    wait(host, r#"humanz_probe_addresses{answers="yes"}"#, |count| count == 1.0);
    cluster.etcd.put("/humanz/hosts/another", "10.244.99.0/24");
    wait(host, r#"humanz_peers{agent="silent"}"#, |silent| silent == 1.0);
    wait(host, r#"humanz_faults{kind="unreachable"}"#, |unreachable| unreachable == 1.0);
    wait(host, "humanz_watch_lag_seconds_count", |count| count >= 1.0);
    let page = page(host);
    let exposed = names(&page);
    for file in ["alerts.yml", "dashboard.json"] {
        let asked = asked(&shipped(file));
        assert!(asked.len() > 10, "{file}: {asked:?}");
        // Those of encryption are on the pages of hosts that encrypt: `tests/encryption` looks for them.
        for name in asked.iter().filter(|name| !name.starts_with("humanz_encryption_")) {
            assert!(exposed.contains(name.as_str()), "{file}: {name} is on no page:\n{page}");
        }
    }
    promtool(&["check", "metrics"], &page);
}

/// The metrics that a text of expressions asks for.
fn asked(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = words.filter(|word| word.starts_with("humanz_"));
    ours.map(|word| {
        let suffix =
            ["_bucket", "_sum", "_count"].into_iter().find_map(|end| word.strip_suffix(end));
        suffix.unwrap_or(word).to_owned()
    })
    .collect()
}

/// The content of that file.
fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/monitoring").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
