//! Allocation of pod addresses.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost, STORE, conf};

/// The addresses of a result, without their prefix lengths.
fn given(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

#[test]
fn addresses_are_allocated_round_robin_and_not_reused_at_once() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/29" }));
    for last in 2..=6 {
        let result = host.add(&conf, &format!("c{last}"));
        assert_eq!(given(&result), [format!("10.1.2.{last}")]);
    }
    host.netns("late");
    let answer = Call::new("ADD", &conf, "late").run(&host);
    assert_eq!(answer.code(), 100);
    let text = "no IP addresses available in range set: 10.1.2.1-10.1.2.6";
    assert!(answer.error().starts_with(text), "{}", answer.error());
    Call::new("DEL", &conf, "c4").run(&host).ok();
    let result = Call::new("ADD", &conf, "late").run(&host).ok();
    assert_eq!(given(&result), ["10.1.2.4"]);
    Call::new("DEL", &conf, "late").run(&host).ok();
    Call::new("DEL", &conf, "c5").run(&host).ok();
    let result = Call::new("ADD", &conf, "late").run(&host).ok();
    assert_eq!(given(&result), ["10.1.2.5"], "not the one that was just freed");
}

#[test]
fn requested_addresses_come_from_every_source() {
    let host = PluginHost::new();
    let dual = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let plain = conf("1.0.0", json!({ "ranges": dual }));
    let runtime = Call::new("ADD", &plain, "x");
    let runtime = runtime.key("runtimeConfig", json!({ "ips": ["10.1.2.11", "fd00::11/64"] })).conf;
    let args = Call::new("ADD", &plain, "x");
    let args = args.key("args", json!({ "cni": { "ips": ["10.1.2.12/24"] } })).conf;
    let annotations = json!({ "humanz.io/ip": "10.1.2.15, fd00::15" });
    let annotated = json!({ "io.kubernetes.cri.pod-annotations": annotations });
    let annotated = Call::new("ADD", &plain, "x").key("runtimeConfig", annotated).conf;
    for (name, conf, cni_args, wanted) in [
        ("c1", &runtime, "", ["10.1.2.11", "fd00::11"]),
        ("c2", &args, "", ["10.1.2.12", "fd00::2"]),
        ("c3", &plain, "IP=10.1.2.13", ["10.1.2.13", "fd00::3"]),
        ("c4", &plain, "IP=10.1.2.14/24", ["10.1.2.14", "fd00::4"]),
        ("c5", &annotated, "", ["10.1.2.15", "fd00::15"]),
        ("c6", &annotated, "IP=10.1.2.16", ["10.1.2.16", "fd00::5"]),
    ] {
        host.netns(name);
        let result = Call::new("ADD", conf, name).with("CNI_ARGS", cni_args).run(&host).ok();
        assert_eq!(given(&result), wanted);
        assert_eq!(result["ips"][0]["address"], format!("{}/24", wanted[0]), "the range's length");
    }
}

#[test]
fn requested_addresses_that_cannot_be_allocated_are_refused_together() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.100" }));
    host.add(&conf, "first");
    host.netns("c1");
    for (wish, text) in [
        ("10.1.2.2", "requested IP address 10.1.2.2 is taken by container first"),
        ("10.1.2.1", "requested IP 10.1.2.1 is the subnet's gateway"),
        ("10.1.2.101", "failed to allocate all requested IPs: 10.1.2.101"),
        ("10.1.2.88,10.1.2.77", "failed to allocate all requested IPs: 10.1.2.77"),
    ] {
        let call = Call::new("ADD", &conf, "c1").with("CNI_ARGS", &format!("IP={wish}"));
        let answer = call.run(&host);
        assert_eq!(answer.code(), 101);
        assert!(answer.error().starts_with(text), "{wish}: {}", answer.error());
        assert_eq!(host.list(&format!("{STORE}/owners")), ["first:eth0"]);
    }
}

#[test]
fn a_network_without_ranges_allocates_exactly_the_requested_addresses() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.2.1" }] }));
    host.netns("c1");
    let call = Call::new("ADD", &conf, "c1");
    assert_eq!(call.run(&host).code(), 7, "nothing is asked for");
    let asked = call.with("CNI_ARGS", "IP=10.1.2.7/24,fd00::7/64");
    let result = asked.run(&host).ok();
    assert_eq!(result["ips"][0]["address"], "10.1.2.7/24");
    assert_eq!(result["ips"][1]["address"], "fd00::7/64");
    host.netns("c2");
    let taken = Call::new("ADD", &conf, "c2").with("CNI_ARGS", "IP=10.1.2.7/24").run(&host);
    assert_eq!(taken.code(), 101);
    Call::new("CHECK", &conf, "c1").key("prevResult", result).run(&host).ok();
    Call::new("DEL", &conf, "c1").run(&host).ok();
    host.assert_clean("after DEL");
}

#[test]
fn the_runtimes_ranges_come_before_the_configured_ones() {
    let host = PluginHost::new();
    let conf = conf(
        "1.0.0",
        json!({
            "subnet": "10.1.2.0/24",
            "ranges": [[{ "subnet": "10.1.3.0/24" }]],
            "runtimeConfig": { "ipRanges": [[{ "subnet": "10.1.4.0/24" }]] },
        }),
    );
    assert_eq!(given(&host.add(&conf, "c1")), ["10.1.4.2", "10.1.2.2", "10.1.3.2"]);
}

#[test]
fn ranges_that_cannot_be_used_are_refused_with_the_reason() {
    let host = PluginHost::new();
    host.netns("c1");
    for (keys, text) in [
        (json!({ "subnet": "10.1.2.5/24" }), "host bits set; the subnet is 10.1.2.0/24"),
        (json!({ "subnet": "fd00::1/63" }), "host bits set; the subnet is fd00::/63"),
        (json!({ "subnet": "10.1.2.0/31" }), "too small"),
        (json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1" }), "rangeStart 10.1.3.1"),
        (
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8" }),
            "after rangeEnd",
        ),
        (json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "fd00::/64" }]] }), "mixes"),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.2.0/25" }]] }),
            "overlap",
        ),
        (json!({ "ranges": [[]] }), "empty"),
        (json!({ "subnet": "0.0.0.0/0" }), "every address there is"),
        (json!({ "subnet": "::/0" }), "every address there is"),
        (json!({ "subnet": "127.0.0.0/8" }), "loopback"),
        (json!({ "subnet": "169.254.0.0/16" }), "link-local"),
        (json!({ "subnet": "224.0.0.0/8" }), "multicast"),
        (json!({ "ranges": [[{ "subnet": "ff00::/64" }]] }), "multicast"),
    ] {
        let answer = Call::new("ADD", &conf("1.0.0", keys), "c1").run(&host);
        assert_eq!(answer.code(), 7);
        assert!(answer.error().contains(text), "{}", answer.error());
    }
    assert_eq!(host.ip("link show hz0"), serde_json::Value::Null, "no bridge for nothing");
}

#[test]
fn addresses_of_earlier_plugins_are_not_allocated_again() {
    let host = PluginHost::new();
    let seed = r#"[{"IP":"10.1.2.1/24","Used":true},{"IP":"10.1.2.2/24","Used":true}]"#;
    host.write("/run/humanz-cni.json", seed);
    host.shell("mkdir -p /var/lib/cni/networks/net; printf 'old\\r\\neth0' > /var/lib/cni/networks/net/10.1.2.3").ok();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    assert_eq!(given(&host.add(&conf, "c1")), ["10.1.2.4"]);
    Call::new("DEL", &conf, "old").run(&host).ok();
    let previous = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.2/24" }] });
    Call::new("DEL", &conf, "older").key("prevResult", previous).run(&host).ok();
    let left: Vec<_> =
        host.leftovers().into_iter().filter(|left| left.starts_with("file")).collect();
    assert_eq!(left, ["file 10.1.2.4"]);
}
