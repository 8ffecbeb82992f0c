//! The loopback plugin: the result format of every version, without a bridge.

use serde_json::{Value, json};

use crate::support::Place;
use crate::{Call, Machine, NETNS};

fn conf(version: Value) -> Value {
    json!({ "cniVersion": version, "name": "cni-loopback", "bridge": null, "createBridge": null,
        "subnet": null })
}

#[test]
fn every_version_is_answered_in_its_own_format() {
    let machine = Machine::new();
    let v4 = |result: &Value| {
        let ips = result["ips"].as_array().unwrap().clone();
        ips.into_iter().find(|ip| ip["address"] == "127.0.0.1/8").expect("127.0.0.1/8")
    };
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let result = Call::new("loopback", "ADD").conf(conf(json!(version))).answer(&machine);
        assert_eq!(result["cniVersion"], version);
        let old = ["0.1.0", "0.2.0"].contains(&version);
        if old {
            assert_eq!(result["ip4"]["ip"], "127.0.0.1/8", "{result}");
            assert_eq!((&result["ips"], &result["interfaces"]), (&Value::Null, &Value::Null));
            continue;
        }
        let lo = &result["interfaces"][0];
        assert_eq!((&lo["name"], &lo["sandbox"]), (&json!("lo"), &json!(NETNS)), "{result}");
        let ip_version = v4(&result)["version"].clone();
        let family = if version < "1" { json!("4") } else { Value::Null };
        assert_eq!((ip_version, &v4(&result)["interface"]), (family, &json!(0)), "{result}");
    }
}

#[test]
fn a_configuration_without_a_version_is_0_1_0() {
    let machine = Machine::new();
    for version in [json!(null), json!("")] {
        let result = Call::new("loopback", "ADD").conf(conf(version)).answer(&machine);
        assert_eq!(result["cniVersion"], "0.1.0");
        assert_eq!(result["ip4"]["ip"], "127.0.0.1/8", "{result}");
    }
}

#[test]
fn lo_is_up_after_add_and_check_reports_when_it_is_down() {
    let machine = Machine::new();
    let add = Call::new("loopback", "ADD").conf(conf(json!("1.0.0")));
    assert!(!machine.loopback_is_up());
    let result = add.answer(&machine);
    assert!(machine.loopback_is_up());
    assert_eq!(add.answer(&machine), result);
    let mut check = conf(json!("1.0.0"));
    check["prevResult"] = result;
    let check = Call::new("loopback", "CHECK").conf(check);
    check.silent(&machine);
    machine.node.run("ip -n pod link set lo down").ok();
    check.refused(&machine).says(103, &["lo"]);
    let del = add.with("CNI_COMMAND", "DEL");
    del.silent(&machine);
    machine.node.run("ip netns delete pod").ok();
    del.silent(&machine);
}

#[test]
fn the_sandbox_is_the_path_exactly_as_given() {
    let machine = Machine::new();
    let path = "/run//netns/../netns/pod";
    let call = Call::new("loopback", "ADD").conf(conf(json!("1.0.0"))).with("CNI_NETNS", path);
    assert_eq!(call.answer(&machine)["interfaces"][0]["sandbox"], path);
}

#[test]
fn the_result_of_an_earlier_plugin_is_passed_on() {
    let machine = Machine::new();
    let earlier = json!({
        "interfaces": [{ "name": "eth0", "mac": "0a:58:0a:09:09:02", "sandbox": NETNS, "mtu": 1400,
            "socketPath": "/run/s", "pciID": "0000:00:1f.6" }],
        "ips": [{ "address": "10.9.9.2/24", "gateway": "10.9.9.1", "interface": 0 },
            { "address": "fd00::2/64" }],
        "routes": [{ "dst": "0.0.0.0/0", "mtu": 1300, "table": 0, "scope": 0 }],
    });
    let add = |version: &str, previous: &Value| {
        let mut conf = conf(json!(version));
        conf["prevResult"] = previous.clone();
        Call::new("loopback", "ADD").conf(conf).answer(&machine)
    };
    for version in ["1.0.0", "1.1.0"] {
        let mut expected = earlier.clone();
        expected["cniVersion"] = json!(version);
        // Without a version it has the network's.
        assert_eq!(add(version, &earlier), expected);
        assert_eq!(add(version, &expected), expected);
    }
    let v0_2 = json!({ "cniVersion": "0.2.0", "ip4": { "ip": "10.9.9.2/24",
        "routes": [{ "dst": "0.0.0.0/0" }] }, "ip6": { "ip": "fd00::2/64" } });
    assert_eq!(add("0.2.0", &v0_2), v0_2);
}

#[test]
fn status_and_gc_print_nothing() {
    let machine = Machine::new();
    Call::new("loopback", "STATUS").conf(conf(json!("1.1.0"))).silent(&machine);
    let mut list = conf(json!("1.1.0"));
    list["cni.dev/valid-attachments"] = json!([]);
    Call::new("loopback", "GC").conf(list).silent(&machine);
}
