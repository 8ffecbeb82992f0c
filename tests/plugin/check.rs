//! CHECK reports differences.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost, STORE, conf};

struct Pod {
    host: PluginHost,
    conf: Value,
    result: Value,
    veth: String,
}

impl Pod {
    fn new() -> Pod {
        let host = PluginHost::new();
        let dual = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
        let conf = conf("1.0.0", json!({ "ranges": dual }));
        let result = host.add(&conf, "c1");
        let veth = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
        Pod { host, conf, result, veth }
    }

    fn call(&self) -> Call {
        Call::new("CHECK", &self.conf, "c1").key("prevResult", self.result.clone())
    }

    fn ok(&self) {
        self.call().run(&self.host).ok();
    }

    /// After `spoil`, CHECK says `text` first; after `repair`, CHECK succeeds.
    fn names(&self, spoil: &str, text: &str, repair: &str) {
        let line = |script: &str| script.replace("VETH", &self.veth);
        self.host.shell(&line(spoil)).ok();
        let answer = self.call().run(&self.host);
        assert_eq!(answer.code(), 103, "{spoil}");
        let text = line(text);
        assert!(answer.value["msg"].as_str().unwrap().contains(&text), "{}", answer.error());
        self.host.shell(&line(repair)).ok();
        self.ok();
    }
}

#[test]
fn each_difference_is_reported_first() {
    let pod = Pod::new();
    pod.ok();
    let in_pod = |script: &str| format!("ip -n c1 {script}");
    pod.names(
        "ip link set VETH nomaster",
        "interface VETH is not a port of bridge hz0",
        "ip link set VETH master hz0; bridge link set dev VETH hairpin on learning off flood off",
    );
    pod.names(
        "bridge link set dev VETH hairpin off",
        "VETH is not hairpin",
        "bridge link set dev VETH hairpin on",
    );
    pod.names(
        "bridge link set dev VETH isolated on",
        "VETH is isolated",
        "bridge link set dev VETH isolated off",
    );
    pod.names("ip link set VETH down", "VETH is down on the host", "ip link set VETH up");
    pod.names("ip link set hz0 down", "hz0 is down on the host", "ip link set hz0 up");
    let mac = pod.result["interfaces"][2]["mac"].as_str().unwrap();
    pod.names(
        &in_pod("link set eth0 address 02:00:00:00:00:99"),
        "eth0 in the pod has MAC 02:00:00:00:00:99",
        &in_pod(&format!("link set eth0 address {mac}")),
    );
    pod.names(
        &in_pod("addr del fd00::2/64 dev eth0"),
        "lacks address fd00::2/64",
        &in_pod("addr add fd00::2/64 dev eth0 nodad"),
    );
    pod.names(
        &in_pod("route del default via 10.1.2.1"),
        "lacks the route to 0.0.0.0/0 via 10.1.2.1",
        &in_pod("route add default via 10.1.2.1"),
    );
    pod.names(
        &in_pod("-6 route replace default via fd00::9"),
        "lacks the route to ::/0 via fd00::1",
        &in_pod("-6 route replace default via fd00::1"),
    );
    let owner = format!("{STORE}/owners/c1:eth0");
    pod.names(
        &format!("mv {owner} /run/away"),
        "address 10.1.2.2 is not reserved",
        &format!("mv /run/away {owner}"),
    );
    pod.names(
        "ip link set VETH alias 'somebody else'",
        "VETH is missing on the host",
        "ip link set VETH alias 'humanz net c1 eth0'",
    );
}

#[test]
fn an_mtu_that_loses_packets_is_reported_at_either_end() {
    let pod = Pod::new();
    for mtu in [1400, 9000] {
        let [wrong, right] = [mtu, 1500].map(|mtu| format!("ip link set VETH mtu {mtu}"));
        pod.names(&wrong, &format!("interface VETH on the host has MTU {mtu}, not 1500"), &right);
    }
    let [wrong, right, smaller] =
        [9000, 1500, 1400].map(|mtu| format!("ip -n c1 link set eth0 mtu {mtu}"));
    pod.names(&wrong, "interface eth0 in the pod has MTU 9000, not 1500", &right);
    pod.host.run(&smaller).ok();
    pod.ok();
}

#[test]
fn pods_of_before_a_change_of_the_mtu_are_as_add_answered() {
    let mut pod = Pod::new();
    pod.conf["mtu"] = json!(1400);
    pod.host.run("ip link set hz0 mtu 1400").ok();
    pod.ok();
    for place in 0..3 {
        pod.result["interfaces"][place].as_object_mut().unwrap().remove("mtu");
    }
    pod.ok();
}

#[test]
fn an_address_without_its_own_file_is_not_reserved() {
    let pod = Pod::new();
    let lost = "address 10.1.2.2 is not reserved";
    let away = format!("mv {STORE}/10.1.2.2 /run/away");
    pod.names(&away, lost, &format!("mv /run/away {STORE}/10.1.2.2"));
    pod.host.run(&format!("rm {STORE}/10.1.2.2")).ok();
    pod.host.netns("c2");
    let wish = json!({ "ips": ["10.1.2.2/24"] });
    let other = Call::new("ADD", &pod.conf, "c2").key("runtimeConfig", wish).run(&pod.host);
    assert_eq!(other.code(), 101, "the kernel knows whose it is: {}", other.error());
    let theirs = "s/\"containerID\":\"c1\"/\"containerID\":\"c2\"/";
    pod.host.shell(&format!("sed '{theirs}' {STORE}/owners/c1:eth0 > {STORE}/10.1.2.2")).ok();
    let answer = pod.call().run(&pod.host);
    assert!(answer.code() == 103 && answer.error().contains(lost), "{}", answer.error());
}

#[test]
fn a_result_without_an_address_that_is_reserved_is_no_result_of_the_pod() {
    let pod = Pod::new();
    let check_with = |ips: Value| {
        let mut result = pod.result.clone();
        result["ips"] = ips;
        let answer = pod.call().key("prevResult", result).run(&pod.host);
        assert_eq!(answer.code(), 103);
        answer.value["msg"].as_str().unwrap().to_owned()
    };
    assert!(check_with(json!([])).starts_with("prevResult lacks address 10.1.2.2"));
    let first = pod.result["ips"][0].clone();
    assert!(check_with(json!([first])).starts_with("prevResult lacks address fd00::2"));
    pod.ok();
}

#[test]
fn interfaces_that_differ_from_the_result_are_reported() {
    let pod = Pod::new();
    pod.host.netns("c2");
    let check_with = |place: usize, key: &str, value: &str| {
        let mut result = pod.result.clone();
        result["interfaces"][place][key] = json!(value);
        pod.call().key("prevResult", result).run(&pod.host)
    };
    let host_end = format!("prevResult has no interface {} on the host", pod.veth);
    let sandbox = "prevResult has interface eth0 in a sandbox other than CNI_NETNS /run/netns/c1";
    for (place, key, value, text) in [
        (0, "name", "other0", "prevResult has no interface hz0 on the host"),
        (0, "sandbox", "/run/netns/c1", "prevResult has no interface hz0 on the host"),
        (0, "mac", "02:00:00:00:00:99", "interface hz0 on the host has MAC"),
        (1, "name", "other0", &host_end),
        (1, "mac", "02:00:00:00:00:99", "on the host has MAC"),
        (2, "sandbox", "/run/netns/c2", sandbox),
        (2, "sandbox", "/run/netns/gone", sandbox),
    ] {
        let answer = check_with(place, key, value);
        assert_eq!(answer.code(), 103, "{key} of {place}");
        let message = answer.value["msg"].as_str().unwrap();
        assert!(message.contains(text), "{key} of {place}: {}", answer.error());
    }
    pod.host.shell("mkdir -p /run/alias; ln -s /run/netns/c1 /run/alias/c1").ok();
    check_with(2, "sandbox", "/run/alias/c1").ok();
}

#[test]
fn a_changed_host_end_is_not_foreign_in_a_network_without_ranges() {
    let host = PluginHost::new();
    let wish = json!({ "runtimeConfig": { "ips": ["10.1.2.7/24"] } });
    let conf = conf("1.0.0", wish);
    let mut result = host.add(&conf, "c1");
    let veth = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    Call::new("CHECK", &conf, "c1").key("prevResult", result.clone()).run(&host).ok();
    result["interfaces"][1]["name"] = json!("other0");
    let answer = Call::new("CHECK", &conf, "c1").key("prevResult", result).run(&host);
    assert_eq!(answer.code(), 103);
    assert!(answer.error().contains(&format!("has no interface {veth}")), "{}", answer.error());
}

#[test]
fn interfaces_of_other_plugins_of_the_chain_are_ignored() {
    let mut pod = Pod::new();
    let others = [
        json!({ "name": "tap0", "sandbox": "/run/netns/c1" }),
        json!({ "name": "eth0", "sandbox": "a-virtual-machine" }),
        json!({ "name": "other0", "mac": "02:00:00:00:00:99" }),
    ];
    pod.result["interfaces"].as_array_mut().unwrap().extend(others);
    pod.ok();
}

#[test]
fn the_mac_of_a_bridge_that_humanz_did_not_make_may_follow_its_ports() {
    let host = PluginHost::new();
    host.shell("ip link add hz0 type bridge; ip link set hz0 up").ok();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let result = host.add(&conf, "c1");
    host.run("ip link set hz0 address 02:00:00:00:00:77").ok();
    Call::new("CHECK", &conf, "c1").key("prevResult", result).run(&host).ok();
}

#[test]
fn missing_or_swapped_links_are_reported() {
    let pod = Pod::new();
    // Linux before 6.2 renames no link that is up.
    let rename = "ip -n c1 link set eth0 down && ip -n c1 link set eth0 name other";
    pod.host.shell(&format!("{rename} && ip -n c1 link set other up")).ok();
    let answer = pod.call().run(&pod.host);
    assert!(
        answer.error().starts_with("interface eth0 is missing in the pod"),
        "{}",
        answer.error()
    );
    pod.host.shell("ip -n c1 link add eth0 type veth; ip -n c1 link set eth0 up").ok();
    let answer = pod.call().run(&pod.host);
    assert!(answer.error().contains("is not the other end of"), "{}", answer.error());
    pod.host.run(&format!("ip link del {}", pod.veth)).ok();
    let answer = pod.call().run(&pod.host);
    assert!(answer.error().contains("missing on the host"), "{}", answer.error());
    pod.host.run("ip link del hz0").ok();
    let answer = pod.call().run(&pod.host);
    assert!(answer.error().starts_with("bridge hz0 is missing"), "{}", answer.error());
    pod.host.run("ip netns del c1").ok();
    assert_eq!(pod.call().run(&pod.host).code(), 8);
}

#[test]
fn changes_of_later_plugins_are_accepted() {
    let mut pod = Pod::new();
    pod.host
        .shell(
            "ip -n c1 addr add 192.0.2.9/24 dev eth0
             ip -n c1 route add 198.51.100.0/24 via 10.1.2.1",
        )
        .ok();
    pod.ok();
    // Another MAC is one that the guard does not let pass.
    pod.host.run("ip -n c1 link set eth0 address 02:00:00:00:00:77").ok();
    pod.result["interfaces"][2]["mac"] = json!("02:00:00:00:00:77");
    let answer = pod.call().run(&pod.host);
    assert!(answer.error().contains("the guard of interface"), "{}", answer.error());
    pod.conf["podGuard"] = json!(false);
    pod.host.run(&format!("bridge link set dev {} learning on flood on", pod.veth)).ok();
    pod.ok();
}

#[test]
fn a_prev_result_is_needed_and_must_be_of_the_same_version() {
    let pod = Pod::new();
    let call = Call::new("CHECK", &pod.conf, "c1");
    assert_eq!(call.run(&pod.host).code(), 7);
    let mut other = pod.result.clone();
    other["cniVersion"] = json!("0.4.0");
    let answer = call.key("prevResult", other).run(&pod.host);
    assert!(!answer.ended.succeeded() && answer.error().contains("0.1.0"), "{}", answer.error());
}
