//! Bandwidth limits of pods.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::node::command;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// Both families, with these limits.
fn limited(limits: Value) -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let mut keys = json!({ "ranges": sets });
    keys.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
    conf("1.0.0", keys)
}

/// `(bits a second, bytes at once)` of the only token bucket filter of `link`.
fn bucket(host: &PluginHost, link: &str) -> Option<(u64, u64)> {
    let shown = host.run(&format!("tc -j qdisc show dev {link}")).ok();
    let queues: Value = serde_json::from_str(&shown).unwrap();
    let [queue] = &queues.as_array().unwrap()[..] else { panic!("not one queue: {shown}") };
    if queue["kind"] == "noqueue" {
        return None;
    }
    assert_eq!(queue["kind"], "tbf", "{shown}");
    let number = |key: &str| queue["options"][key].as_u64().unwrap();
    Some((number("rate") * 8, number("burst")))
}

/// The same of the pod `c1`'s end.
fn bucket_in_pod(host: &PluginHost) -> Option<(u64, u64)> {
    let shown = host.run("ip netns exec c1 tc -j qdisc show dev eth0").ok();
    let queues: Value = serde_json::from_str(&shown).unwrap();
    let queue = &queues[0];
    (queue["kind"] == "tbf").then(|| {
        let number = |key: &str| queue["options"][key].as_u64().unwrap();
        (number("rate") * 8, number("burst"))
    })
}

fn veth(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

/// The kernel reports a burst as a time, and `tc` converts it back.
fn assert_near(found: Option<(u64, u64)>, rate: u64, burst: u64) {
    let (is_rate, is_burst) = found.expect("a token bucket");
    assert_eq!(is_rate, rate);
    assert!(is_burst.abs_diff(burst) <= burst / 1000 + 2, "burst {is_burst}, not {burst}");
}

#[test]
fn each_direction_has_its_qdisc_and_check_compares_it() {
    let host = PluginHost::new();
    let conf = limited(json!({
        "capabilities": { "bandwidth": true },
        "runtimeConfig": { "bandwidth": {
            "ingressRate": 10_000_000, "ingressBurst": 4_294_967_295u64,
            "egressRate": 40_000_000_000u64, "egressBurst": 80_000_000 } },
    }));
    let result = host.add(&conf, "c1");
    let veth = veth(&result);
    assert_near(bucket(&host, &veth), 10_000_000, 25_000);
    assert_near(bucket_in_pod(&host), 40_000_000_000, 10_000_000);
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 3, "no further device");
    let check = || Call::new("CHECK", &conf, "c1").key("prevResult", result.clone()).run(&host);
    check().ok();
    for (spoil, says) in [
        (
            format!("tc qdisc change dev {veth} root tbf rate 20mbit burst 25k latency 25ms"),
            "on the host is limited to 2500000, not 1250000 bytes per second",
        ),
        (
            format!("tc qdisc del dev {veth} root"),
            "on the host is limited to nothing, not 1250000 bytes per second",
        ),
        (
            "ip netns exec c1 tc qdisc del dev eth0 root".to_owned(),
            "interface eth0 in the pod is limited to nothing, not 5000000000 bytes per second",
        ),
    ] {
        host.run(&spoil).ok();
        let answer = check();
        assert_eq!(answer.code(), 103, "{spoil}");
        assert!(answer.error().contains(says), "{spoil}: {}", answer.error());
    }
    Call::new("DEL", &conf, "c1").key("prevResult", result).run(&host).ok();
    host.assert_clean("after DEL");
    // An iproute2 whose question the kernel does not understand shows an empty object for each link.
    let shown = host.ip("link show type ifb");
    let devices = shown.as_array().unwrap().iter().filter(|link| link["ifname"].is_string());
    assert_eq!(devices.count(), 0, "{shown}");
}

#[test]
fn traffic_without_a_configured_limit_is_not_limited() {
    let host = PluginHost::new();
    let zeros = json!({ "ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0 });
    let result = host.add(&limited(zeros), "c1");
    assert_eq!((bucket(&host, &veth(&result)), bucket_in_pod(&host)), (None, None));
    let result = host.add(&limited(json!({ "ingressRate": 8000 })), "c2");
    assert_near(bucket(&host, &veth(&result)), 8000, 4 * 1518);
}

#[test]
fn the_configured_limit_overrides_that_of_the_pod() {
    let host = PluginHost::new();
    let conf = limited(json!({
        "egressRate": 8_000_000,
        "runtimeConfig": { "bandwidth": { "ingressRate": 80_000_000, "egressRate": 80_000_000 } },
    }));
    let result = host.add(&conf, "c1");
    assert_eq!(bucket(&host, &veth(&result)), None);
    assert_near(bucket_in_pod(&host), 8_000_000, 20_000);
}

#[test]
fn an_invalid_limit_is_refused_and_nothing_is_left() {
    let host = PluginHost::new();
    host.netns("c1");
    let answer = Call::new("ADD", &limited(json!({ "ingressBurst": 80 })), "c1").run(&host);
    assert_eq!(answer.code(), 7);
    assert!(answer.error().contains("ingressBurst: requires ingressRate"), "{}", answer.error());
    host.assert_clean("after a refused ADD");
}

/// Bits a second that arrive over TCP, for two seconds, from one namespace to the other.
fn measured(host: &PluginHost, server: &str, client: &str, address: &str) -> f64 {
    let server = format!("ip netns exec {server} iperf3 --server --bind {address}");
    let server = host.spawn(&mut command(&server));
    let line = format!("ip netns exec {client} iperf3 --json --time 2 --client {address}");
    let mut measured = None;
    // Until the server listens, and when it is disturbed, the report has no such number.
    crate::support::soon("iperf3 reports", || {
        let report = serde_json::from_str(&host.run(&line).stdout).unwrap_or(Value::Null);
        measured = report["end"]["sum_received"]["bits_per_second"].as_f64();
        measured.is_some()
    });
    server.kill();
    measured.unwrap()
}

#[test]
fn tcp_gets_the_configured_rate_in_both_directions_and_never_more() {
    const RATE: f64 = 40e6;
    let host = PluginHost::new();
    host.add(&limited(json!({ "ingressRate": 40_000_000, "egressRate": 40_000_000 })), "c1");
    host.add(&limited(json!({})), "c2");
    for (server, client, address) in [
        ("c1", "c2", "10.1.2.2"),
        ("c1", "c2", "fd00::2"),
        ("c2", "c1", "10.1.2.3"),
        ("c2", "c1", "fd00::3"),
    ] {
        // On a busy machine a transfer may be slower; it is never faster.
        let mut found = 0.0;
        for _ in 0..10 {
            found = measured(&host, server, client, address);
            assert!(found <= RATE * 1.1, "{found} bits a second to {address}");
            if found >= RATE * 0.9 {
                break;
            }
        }
        println!("{client} to {server} ({address}): {found:.0} bits a second");
        assert!(found >= RATE * 0.5, "{found} bits a second to {address}");
    }
}
