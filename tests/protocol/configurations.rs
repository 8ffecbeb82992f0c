//! The configuration on stdin.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::cni::PLUGINS;
use crate::support::node::command;
use crate::{Call, Machine, refusal};

const COMMANDS: [&str; 5] = ["ADD", "DEL", "CHECK", "GC", "STATUS"];

#[test]
fn input_that_is_no_json_object_is_code_6() {
    let machine = Machine::new();
    for command in COMMANDS {
        for bad in ["", "{", "[]", "null", "{} {}", &"[".repeat(100_000)] {
            Call::new("humanz", command).stdin(bad).refused(&machine).says(6, &["stdin"]);
        }
    }
    Call::new("loopback", "ADD").stdin("{").refused(&machine).says(6, &["stdin"]);
}

#[test]
fn more_than_16_mib_is_refused_unread() {
    let machine = Machine::new();
    let huge = format!("{{\"name\":\"net\",\"x\":\"{}\"}}", "x".repeat(17 << 20));
    Call::new("humanz", "ADD").stdin(&huge).refused(&machine).says(6, &["larger than 16777216"]);
}

#[test]
fn an_unreadable_stdin_is_code_5() {
    let machine = Machine::new();
    let mut shell = command("sh -c");
    shell.arg(format!("exec {PLUGINS}/humanz </tmp")).envs(&Call::new("humanz", "ADD").variables);
    refusal(machine.node.run_command(&mut shell, "")).says(5, &["stdin"]);
}

#[test]
fn an_unsupported_version_is_code_1_with_both_versions() {
    let machine = Machine::new();
    for command in COMMANDS {
        let refusal = Call::new("humanz", command).conf(json!({ "cniVersion": "4.3.2" }));
        refusal.refused(&machine).says(1, &["4.3.2", "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0"]);
    }
}

#[test]
fn commands_need_the_version_that_introduced_them() {
    let machine = Machine::new();
    for (command, version) in [
        ("CHECK", "0.3.0"),
        ("CHECK", "0.3.1"),
        ("CHECK", ""),
        ("GC", "0.3.0"),
        ("GC", "1.0.0"),
        ("STATUS", "1.0.0"),
    ] {
        let refusal = Call::new("humanz", command).conf(json!({ "cniVersion": version }));
        let refusal = refusal.refused(&machine);
        refusal.says(1, &[command]);
        let answered = if version.is_empty() { "0.1.0" } else { version };
        assert_eq!(refusal.version, answered, "{refusal:?}");
    }
}

#[test]
fn a_malformed_version_is_code_6_where_versions_are_compared() {
    let machine = Machine::new();
    for version in ["adsfsadf", "1.2.3.4.5", "0.", "1.0.f"] {
        let conf = json!({ "cniVersion": version });
        for command in ["CHECK", "GC", "STATUS"] {
            let call = Call::new("humanz", command).conf(conf.clone());
            call.refused(&machine).says(6, &[version]);
        }
        for command in ["ADD", "DEL"] {
            let call = Call::new("humanz", command).conf(conf.clone());
            call.refused(&machine).says(1, &[version]);
        }
    }
}

#[test]
fn a_network_without_a_valid_name_is_code_7() {
    let machine = Machine::new();
    for plugin in ["humanz", "loopback"] {
        for command in COMMANDS {
            for name in [json!("te%%st"), json!(""), json!(null), json!("../x"), json!(7)] {
                let call = Call::new(plugin, command).conf(json!({ "name": name }));
                call.refused(&machine).says(7, &["name"]);
            }
        }
    }
}

#[test]
fn invalid_values_are_reported_together_and_nothing_is_left() {
    let machine = Machine::new();
    let conf = json!({ "mtu": "x", "subnet": "10.9.9.5/24", "routes": [{ "dst": "nowhere" }] });
    let call = Call::new("humanz", "ADD").conf(conf);
    call.refused(&machine).says(7, &["mtu: must be", "\"x\"", "routes[0].dst: must be"]);
    let call = Call::new("humanz", "ADD").conf(json!({ "subnet": "10.9.9.5/24" }));
    call.refused(&machine).says(7, &["10.9.9.5/24", "10.9.9.0/24"]);
    assert_eq!(machine.reserved(), Vec::<String>::new());
}

#[test]
fn unsupported_features_are_refused_with_key_and_value() {
    let machine = Machine::new();
    let call = |keys: Value| Call::new("humanz", "ADD").conf(keys).refused(&machine);
    call(json!({ "forceAddress": true })).says(2, &["forceAddress", "true"]);
    call(json!({ "ipam": { "type": "dhcp" } })).says(7, &["ipam.type", "dhcp"]);
}

#[test]
fn invalid_requests_of_a_pod_are_reported_with_their_key() {
    let machine = Machine::new();
    let call = |keys: Value| Call::new("humanz", "ADD").conf(keys).refused(&machine);
    let runtime = |keys: Value| call(json!({ "runtimeConfig": keys }));
    runtime(json!({ "bandwidth": { "ingressBurst": 8 } })).says(7, &["bandwidth.ingressBurst"]);
    runtime(json!({ "bandwidth": { "egressRate": -1 } })).says(7, &["bandwidth.egressRate", "-1"]);
    let annotations = json!({ "humanz.io/ip": "everything" });
    let annotated = runtime(json!({ "io.kubernetes.cri.pod-annotations": annotations }));
    annotated.says(7, &["humanz.io/ip", "everything"]);
    let sysctl = json!({ "kernel.core_pattern": "|/bin/sh" });
    call(json!({ "sysctl": sysctl })).says(7, &["sysctl.kernel.core_pattern"]);
    call(json!({ "args": { "cni": { "sysctl": sysctl } } })).says(7, &["args.cni.sysctl.kernel"]);
    let previous = json!({ "cniVersion": "1.1.0" });
    call(json!({ "prevResult": previous })).says(7, &["subnet or ranges", "prevResult"]);
    call(json!({ "prevResult": previous, "subnet": null })).says(7, &["no interface eth0"]);
    assert_eq!(machine.reserved(), Vec::<String>::new());
}

#[test]
fn a_network_without_addresses_refuses_add() {
    let machine = Machine::new();
    let call = Call::new("humanz", "ADD").conf(json!({ "subnet": null }));
    call.refused(&machine).says(7, &["subnet", "ranges"]);
}

#[test]
fn versions_before_0_3_0_have_one_address_of_each_family() {
    let machine = Machine::new();
    let ranges = json!([[{ "subnet": "10.9.8.0/24" }], [{ "subnet": "10.9.7.0/24" }]]);
    for version in ["0.1.0", "0.2.0"] {
        let conf = json!({ "cniVersion": version, "subnet": null, "ranges": ranges });
        Call::new("humanz", "ADD").conf(conf).refused(&machine).says(7, &["ranges", version]);
    }
}

#[test]
fn without_its_bridge_humanz_is_not_available_and_requests_a_retry() {
    let machine = Machine::new();
    Call::new("humanz", "STATUS").refused(&machine).says(50, &["hzt0"]);
    Call::new("humanz", "ADD").refused(&machine).says(11, &["hzt0"]);
    assert_eq!(machine.reserved(), Vec::<String>::new());
}

#[test]
fn del_of_an_unknown_attachment_succeeds_twice() {
    let machine = Machine::new();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        for plugin in ["humanz", "loopback"] {
            let call = Call::new(plugin, "DEL").conf(json!({ "cniVersion": version }));
            call.silent(&machine);
            call.silent(&machine);
        }
    }
}

#[test]
fn del_ignores_a_changed_configuration() {
    let machine = Machine::new();
    for keys in [
        json!({ "mtu": "x", "subnet": null, "bridge": "a/b" }),
        json!({ "ipam": { "type": "dhcp" } }),
        json!({ "prevResult": { "cniVersion": "9.9.9", "ips": 7 } }),
        json!({ "prevResult": "garbage" }),
        json!({ "runtimeConfig": { "ips": ["10.9.9.300"] } }),
    ] {
        Call::new("humanz", "DEL").conf(keys).silent(&machine);
    }
}

#[test]
fn check_needs_a_previous_result_of_the_networks_version() {
    let machine = Machine::new();
    for plugin in ["humanz", "loopback"] {
        Call::new(plugin, "CHECK").refused(&machine).says(7, &["prevResult"]);
        for version in ["1.0.0", "9.9.9"] {
            let conf = json!({ "prevResult": { "cniVersion": version, "ips": [] } });
            let refusal = Call::new(plugin, "CHECK").conf(conf).refused(&machine);
            refusal.says(7, &["prevResult.cniVersion", version, "0.4.0, 1.0.0, 1.1.0"]);
        }
        let conf = json!({ "prevResult": { "ips": [{ "address": "10.9.9.2" }] } });
        let refusal = Call::new(plugin, "CHECK").conf(conf).refused(&machine);
        refusal.says(7, &["prevResult.ips[0].address"]);
    }
}

#[test]
fn check_of_a_missing_attachment_fails() {
    let machine = Machine::new();
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "sandbox": "/run/netns/pod" }],
        "ips": [{ "address": "10.9.9.2/24", "gateway": "10.9.9.1", "interface": 0 }],
    });
    let call = Call::new("humanz", "CHECK").conf(json!({ "prevResult": result }));
    call.refused(&machine);
}

#[test]
fn gc_is_refused_without_a_list_and_with_a_bad_one() {
    let machine = Machine::new();
    let gc = |keys: Value| Call::new("humanz", "GC").conf(keys);
    gc(json!({})).refused(&machine).says(7, &["cni.dev/valid-attachments"]);
    for member in [json!({ "containerID": "../x", "ifname": "eth0" }), json!({}), json!("c1")] {
        let refusal = gc(json!({ "cni.dev/valid-attachments": [member] })).refused(&machine);
        refusal.says(7, &["cni.dev/valid-attachments[0]"]);
    }
    let one = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    for list in [json!([]), one] {
        gc(json!({ "cni.dev/valid-attachments": list })).silent(&machine);
        gc(json!({ "cni.dev/attachments": list })).silent(&machine);
    }
    // libcni writes null for an empty list.
    let null = r#"{"cniVersion":"1.1.0","name":"net","subnet":"10.9.9.0/24",
        "cni.dev/valid-attachments":null,"cni.dev/attachments":null}"#;
    gc(json!({})).stdin(null).silent(&machine);
}
