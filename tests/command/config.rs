//! The subcommand `config`.

use serde_json::Value;

use crate::support::Node;
use crate::support::cluster::{Alone, Cluster};
use crate::support::node::Place;
use crate::{object, run, shape};

const FILE: &str =
    "BRIDGE_NAME=br1\nMTU=1301\n\nCNI_NAME=\"one\"\nETCD_HOST=file\nNONE=1\nRUST_LOG=warn\n";

#[test]
fn config_shows_the_source_of_each_setting() {
    let alone = Alone::new();
    alone.host.write("/etc/humanz.env", FILE);
    let line = "config --env-file /etc/humanz.env --bridge-name=br3";
    let ended = run(&alone.host, line, &[("ETCD_HOST", ""), ("MTU", "1302")]);
    let row = |name: &str| {
        let row = ended.stdout.lines().find(|line| line.starts_with(name));
        let row = row.unwrap_or_else(|| panic!("{name} is missing: {ended}"));
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("BRIDGE_NAME"), ["BRIDGE_NAME", "br3", "option"]);
    assert_eq!(row("MTU"), ["MTU", "1302", "environment"]);
    assert_eq!(row("CNI_NAME"), ["CNI_NAME", "one", "/etc/humanz.env:4"]);
    assert_eq!(row("STATE_DIR"), ["STATE_DIR", "/var/lib/humanz", "default"]);
    let name = alone.host.run("uname -n").ok();
    assert_eq!(row("NODE_NAME"), ["NODE_NAME", name.trim(), "default", "(host", "name)"]);
    assert_eq!(row("NODE_IP"), ["NODE_IP", "192.0.2.11", "default", "(default", "route,", "eth0)"]);
    let plugin = "/opt/cni/bin/humanz";
    assert_eq!(row("CNI_PLUGIN"), ["CNI_PLUGIN_LOCATION", plugin, "default", "(CNI_TYPE)"]);
    assert_eq!(row("RUST_LOG"), ["RUST_LOG", "warn", "/etc/humanz.env:7"]);
    assert_eq!(row("ETCD_USER"), ["ETCD_USER", "-", "default"]);
    assert!(ended.stdout.contains("line 6: NONE is not a setting"), "{ended}");
    assert!(!ended.stdout.contains('\x1b'), "no colour without a terminal: {ended}");
    assert!(ended.succeeded(), "{ended}");

    let changed = run(&alone.host, &format!("{line} --changed"), &[("ETCD_HOST", "")]).ok();
    let names = changed.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.take_while(|name| *name != "!").collect();
    assert_eq!(names, ["ETCD_HOST", "BRIDGE_NAME", "MTU", "CNI_NAME", "RUST_LOG"]);
}

#[test]
fn config_has_this_json_schema() {
    let alone = Alone::new();
    alone.host.write("/etc/humanz.env", FILE);
    let ended = run(&alone.host, "config --json --env-file /etc/humanz.env", &[("ETCD_HOST", "")]);
    let value = object(&ended);
    assert_eq!(
        shape(&value),
        "faults: list\n\
         problems: list\n\
         problems[].fix: string\n\
         problems[].kind: string\n\
         problems[].severity: string\n\
         problems[].since: null\n\
         problems[].subject: string\n\
         problems[].what: string\n\
         remarks: list\n\
         remarks[]: string\n\
         schema: number\n\
         settings: list\n\
         settings[].default: string\n\
         settings[].effective: string\n\
         settings[].file: null\n\
         settings[].file: string\n\
         settings[].found: null\n\
         settings[].found: string\n\
         settings[].from: string\n\
         settings[].line: null\n\
         settings[].line: number\n\
         settings[].meaning: string\n\
         settings[].name: string\n\
         settings[].value: string"
    );
}

/// The row of `MTU`, and value and reason of its object.
fn mtu(host: &Node, options: &str, settings: &[(&str, &str)]) -> (String, Value, Value) {
    let rows = run(host, &format!("config {options}"), settings).ok();
    let row = rows.lines().find(|line| line.starts_with("MTU ")).unwrap();
    let value = object(&run(host, &format!("config --json {options}"), settings));
    let all = value["settings"].as_array().unwrap();
    let mtu = all.iter().find(|setting| setting["name"] == "MTU").unwrap();
    assert_eq!(mtu["value"], "auto", "what was said stays beside what holds");
    let words: Vec<&str> = row.split_whitespace().skip(1).collect();
    (words.join(" "), mtu["effective"].clone(), mtu["found"].clone())
}

#[test]
fn a_detected_mtu_is_shown_with_its_uplink() {
    let alone = Alone::new();
    let host = &alone.host;
    let etcd = |backend| [("ETCD_HOST", "192.0.2.2"), ("BACKEND", backend)];
    let (row, value, why) = mtu(host, "", &etcd("direct"));
    assert_eq!((row.as_str(), &value), ("1500 default (eth0 1500)", &"1500".into()));
    assert_eq!(why, "eth0 1500");
    let (row, ..) = mtu(host, "", &etcd("vxlan"));
    assert_eq!(row, "1450 default (eth0 1500 less 50 for VXLAN)");
    let (row, value, why) = mtu(host, "", &etcd("auto"));
    assert!(row.starts_with("auto default (eth0 1500, less 50"), "{row}");
    assert_eq!(value, Value::Null);
    assert!(why.as_str().unwrap().ends_with("no agent answers"), "{why}");
}

#[test]
fn a_running_agent_supplies_detected_values() {
    let cluster = Cluster::routed(1, 1);
    let _agents = cluster.start_agents(&[]);
    let (row, value, why) = mtu(&cluster.hosts[0], "", &[]);
    assert_eq!(row, "1450 default (eth0 1500 less 50 for VXLAN)");
    assert_eq!((value, why), ("1450".into(), "eth0 1500 less 50 for VXLAN".into()));
}

#[test]
fn invalid_settings_are_shown_and_reported() {
    let alone = Alone::new();
    let wrong = [("MTU", "9"), ("ETCD_HOST", "http://root:secret@etcd")];
    let ended = run(&alone.host, "config", &wrong);
    assert_eq!(ended.status.code(), Some(2), "{ended}");
    assert!(ended.stderr.contains("MTU=9"), "{ended}");
    assert!(ended.stdout.contains("http://***@etcd"), "{ended}");
    assert!(!ended.stdout.contains("secret"), "{ended}");
}
