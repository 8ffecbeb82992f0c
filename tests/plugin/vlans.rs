//! VLANs of a bridge, where the kernel has them (`make test-kernels`); elsewhere the refusal.

use std::net::IpAddr;
use std::thread;

use serde_json::{Value, json};

use crate::hostports::mapping;
use crate::killed::killed_at;
use crate::support::Place;
use crate::support::echo::{Echo, ask_tcp};
use crate::support::facts::addresses;
use crate::support::kernel::filters_vlans;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// The network `net` in VLAN 100.
fn in_100() -> Value {
    conf("1.1.0", json!({ "subnet": "10.1.2.0/24", "vlan": 100 }))
}

/// Another one of the same bridge, in VLAN 200, with `keys`.
fn other(keys: Value) -> Value {
    let mut other = conf("1.1.0", json!({ "name": "other", "subnet": "10.1.3.0/24" }));
    other.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    other
}

fn in_200() -> Value {
    other(json!({ "vlan": 200 }))
}

/// The name of the pod's end on the host.
fn port(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

/// The VLANs of a port as `bridge` shows them, those with a tag in ranges: `1 PVID Egress Untagged`, `200-210`.
fn vlans(host: &PluginHost, port: &str) -> Vec<String> {
    let shown = host.run(&format!("bridge -j vlan show dev {port}")).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let mut texts = Vec::new();
    let mut tagged: Option<(u64, u64)> = None;
    let text =
        |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    for vlan in shown[0]["vlans"].as_array().into_iter().flatten() {
        let flags = vlan["flags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let flags = flags.collect::<Vec<_>>().join(" ");
        let number = vlan["vlan"].as_u64().unwrap();
        match tagged {
            Some((first, last)) if flags.is_empty() && last + 1 == number => {
                tagged = Some((first, number));
                continue;
            }
            _ => texts.extend(tagged.take().map(text)),
        }
        match flags.is_empty() {
            true => tagged = Some((number, vlan["vlanEnd"].as_u64().unwrap_or(number))),
            false => texts.push(format!("{number} {flags}")),
        }
    }
    texts.extend(tagged.map(text));
    texts
}

fn pings(host: &PluginHost, from: &str, to: &str) -> bool {
    host.run(&format!("{from} ping -n -c 2 -i 0.3 -W 4 {to}")).succeeded()
}

/// Error of CHECK for `c1`.
fn check(host: &PluginHost, conf: &Value, result: &Value) -> Result<(), String> {
    let answer = Call::new("CHECK", conf, "c1").key("prevResult", result.clone()).run(host);
    if answer.ended.succeeded() {
        return Ok(());
    }
    assert_eq!(answer.code(), 103, "{}", answer.error());
    Err(answer.error())
}

#[test]
fn a_kernel_without_vlans_is_reported_and_nothing_of_the_pod_is_left() {
    if filters_vlans() {
        return println!("this kernel has VLANs");
    }
    let host = PluginHost::new();
    host.netns("c1");
    let answer = Call::new("ADD", &in_100(), "c1").run(&host);
    assert_eq!(answer.code(), 2);
    assert!(answer.error().contains("CONFIG_BRIDGE_VLAN_FILTERING"), "{}", answer.error());
    host.assert_clean("after a refused ADD");
}

#[test]
fn a_vlan_has_its_own_gateway_and_leaves_nothing() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let result = host.add(&in_100(), "c1");
    host.add(&in_100(), "c2");
    let links = result["interfaces"].as_array().unwrap();
    assert_eq!((links.len(), &links[0]["name"]), (4, &json!("hz0")));
    assert_eq!((&links[2]["name"], &links[3]["name"]), (&json!("eth0"), &json!("hz0.100")));
    assert_eq!(links[3]["mac"], host.ip("link show hz0.100")[0]["address"]);
    assert_eq!(vlans(&host, &port(&result)), ["100 PVID Egress Untagged"]);
    assert_eq!(addresses(&*host, "hz0.100"), ["10.1.2.1/24"]);
    assert_eq!(addresses(&*host, "hz0"), Vec::<String>::new());
    for (from, to) in [("ip netns exec c1", "10.1.2.3"), ("ip netns exec c1", "10.1.2.1")] {
        assert!(pings(&host, from, to), "{to}");
    }
    assert!(pings(&host, "", "10.1.2.2"), "the host reaches its pod");
    check(&host, &in_100(), &result).unwrap();
    for name in ["c1", "c2"] {
        Call::new("DEL", &in_100(), name).run(&host).ok();
    }
    host.assert_clean("after DEL");
    let known = host.run("ip neigh show dev hz0.100 nud permanent").stdout;
    assert_eq!(known, "", "neighbours of removed pods");
}

#[test]
fn a_trunk_has_its_vlans_and_the_default_one_if_that_is_preserved() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let trunk =
        json!([{ "id": 101 }, { "minID": 200, "maxID": 210 }, { "minID": 205, "maxID": 206 }]);
    for (name, keys, expected) in [
        ("c1", json!({}), vec!["101", "200-210"]),
        (
            "c2",
            json!({ "preserveDefaultVlan": true }),
            vec!["1 PVID Egress Untagged", "101", "200-210"],
        ),
        ("c3", json!({ "vlan": 7 }), vec!["7 PVID Egress Untagged", "101", "200-210"]),
        (
            "c4",
            json!({ "vlan": 7, "preserveDefaultVlan": true }),
            vec!["1 Egress Untagged", "7 PVID Egress Untagged", "101", "200-210"],
        ),
        (
            "c5",
            json!({ "vlanTrunk": [{ "minID": 1, "maxID": 4094 }], "preserveDefaultVlan": true }),
            vec!["1 PVID Egress Untagged", "2-4094"],
        ),
        ("c6", json!({ "vlanTrunk": [{ "minID": 1, "maxID": 4094 }] }), vec!["1-4094"]),
    ] {
        let mut conf = conf(
            "1.1.0",
            json!({ "subnet": "10.1.2.0/24", "vlanTrunk": trunk, "podGuard": false }),
        );
        conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let result = host.add(&conf, name);
        assert_eq!(vlans(&host, &port(&result)), expected, "{keys}");
        let call = Call::new("CHECK", &conf, name).key("prevResult", result);
        assert!(call.run(&host).ended.succeeded(), "{keys}");
    }
}

/// A pod that tags its frames for the VLAN of another network takes an address there.
#[test]
fn a_pod_that_tags_its_frames_is_received_in_its_own_vlans_alone() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    host.add(&in_200(), "victim");
    let keys = |keys: Value| {
        let mut conf = in_100();
        conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        conf
    };
    for (name, conf, received) in [
        ("guarded", in_100(), false),
        ("unguarded", keys(json!({ "podGuard": false })), false),
        ("default", keys(json!({ "podGuard": false, "preserveDefaultVlan": true })), false),
        ("trunk", keys(json!({ "podGuard": false, "vlanTrunk": [{ "id": 200 }] })), true),
    ] {
        host.add(&conf, name);
        let script = format!(
            "ip -n {name} link add link eth0 name v0 type vlan id 200
             ip -n {name} link set v0 address 02:00:00:00:0a:0a up
             ip -n {name} addr add 10.1.3.77/32 dev v0; ip -n {name} route add 10.1.3.2 dev v0"
        );
        host.shell(&script).ok();
        let seen = host.run(&format!("ip netns exec {name} ping -n -c 3 -i 0.3 -W 2 10.1.3.2"));
        let seen_by = host.run("ip -n victim neigh show 10.1.3.77").stdout;
        assert_eq!(seen_by.contains("02:00:00:00:0a:0a"), received, "{name}: {seen} {seen_by}");
        Call::new("DEL", &conf, name).run(&host).ok();
        host.run("ip -n victim neigh flush all").ok();
    }
}

/// Each ADD begins without the bridge, and the next one finds what the killed one left of it.
#[test]
fn an_add_with_vlans_that_ends_at_any_system_call_leaves_no_port_and_the_next_has_its_vlans() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let mut conf = in_100();
    conf["podGuard"] = json!(false);
    conf["vlanTrunk"] = json!([{ "minID": 200, "maxID": 210 }]);
    let mut kills = 0;
    for when in 1.. {
        host.netns("c1");
        let was_killed = killed_at(&host, "ADD", &conf, when);
        Call::new("DEL", &conf, "c1").run(&host).ok();
        host.assert_clean(&format!("ADD killed at call {when}"));
        let result = Call::new("ADD", &conf, "c1").run(&host).ok();
        let expected = ["100 PVID Egress Untagged", "200-210"];
        assert_eq!(vlans(&host, &port(&result)), expected, "after call {when}");
        assert_eq!(addresses(&*host, "hz0.100"), ["10.1.2.1/24"], "after call {when}");
        check(&host, &conf, &result).unwrap();
        Call::new("DEL", &conf, "c1").run(&host).ok();
        host.assert_clean("after DEL");
        host.run("ip netns del c1").ok();
        host.run("ip link del hz0").ok();
        if !was_killed {
            break;
        }
        kills += 1;
    }
    println!("ADD with VLANs killed {kills} times");
    assert!(kills > 12, "{kills}");
}

#[test]
fn check_finds_what_somebody_changed_of_the_vlans() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let result = host.add(&in_100(), "c1");
    let port = port(&result);
    for (breaks, repairs, expected) in [
        (
            format!("bridge vlan add dev {port} vid 200"),
            format!("bridge vlan del dev {port} vid 200"),
            "in the VLANs 100 PVID untagged, 200, not 100 PVID untagged",
        ),
        (
            format!("bridge vlan del dev {port} vid 100"),
            format!("bridge vlan add dev {port} vid 100 pvid untagged"),
            "in the VLANs none",
        ),
        (
            "ip link set hz0 type bridge vlan_filtering 0".to_owned(),
            "ip link set hz0 type bridge vlan_filtering 1".to_owned(),
            "does not keep VLANs apart",
        ),
        (
            "ip link set hz0.100 down".to_owned(),
            "ip link set hz0.100 up".to_owned(),
            "hz0.100 is down",
        ),
    ] {
        check(&host, &in_100(), &result).unwrap();
        host.run(&breaks).ok();
        let error = check(&host, &in_100(), &result).unwrap_err();
        assert!(error.contains(expected), "{breaks}: {error}");
        host.run(&repairs).ok();
    }
    host.run("ip link del hz0.100").ok();
    assert!(check(&host, &in_100(), &result).unwrap_err().contains("hz0.100 is missing"));
    host.add(&in_100(), "c2");
    assert_eq!(addresses(&*host, "hz0.100"), ["10.1.2.1/24"], "the next ADD makes it anew");
}

#[test]
fn a_foreign_bridge_or_interface_is_refused_and_left_as_it_is() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    host.run("ip link add hz0 type bridge").ok();
    host.run("ip link set hz0 up").ok();
    host.netns("c1");
    let add = || Call::new("ADD", &in_100(), "c1").run(&host);
    let refused = add();
    assert_eq!(refused.code(), 7);
    assert!(refused.error().contains("vlan_filtering 1"), "{}", refused.error());
    let filtering =
        || host.ip("-d link show hz0")[0]["linkinfo"]["info_data"]["vlan_filtering"].clone();
    assert_eq!(filtering(), 0);
    host.run("ip link set hz0 type bridge vlan_filtering 1").ok();
    for squatter in ["type dummy", "link hz0 type vlan id 101", "link eth0 type vlan id 100"] {
        host.run(&format!("ip link add name hz0.100 {squatter}")).ok();
        let refused = add();
        assert_eq!(refused.code(), 7, "{squatter}");
        assert!(refused.error().contains("remove or rename"), "{}", refused.error());
        host.run("ip link del hz0.100").ok();
    }
    host.assert_clean("after refused ADDs");
    add().ok();
}

#[test]
fn two_networks_start_six_pods_at_once_on_a_bridge_that_is_not_there() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    thread::scope(|scope| {
        for number in 0..6 {
            let host = &host;
            scope.spawn(move || {
                let conf = if number % 2 == 0 { in_100() } else { in_200() };
                let result = host.add(&conf, &format!("c{number}"));
                let expected = if number % 2 == 0 { "100" } else { "200" };
                let expected = format!("{expected} PVID Egress Untagged");
                assert_eq!(vlans(host, &port(&result)), [expected]);
            });
        }
    });
    assert_eq!(addresses(&*host, "hz0.100"), ["10.1.2.1/24"]);
    assert_eq!(addresses(&*host, "hz0.200"), ["10.1.3.1/24"]);
}

/// With br_netfilter, which `make test-kernels` loads, netfilter sees bridged packets of a VLAN come and go by the bridge.
#[test]
fn pods_of_a_vlan_see_each_other_and_are_masqueraded_to_the_outside() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let mut conf = in_100();
    let outside = host.outside();
    for (pod_routing, names, sees) in
        [("bridge", ["c1", "c2"], "10.1.2.2"), ("host", ["c3", "c4"], "10.1.2.4")]
    {
        conf["ipMasq"] = json!(true);
        conf["podRouting"] = json!(pod_routing);
        let address = |name: &str| {
            let result = host.add(&conf, name);
            let text = result["ips"][0]["address"].as_str().unwrap().to_owned();
            text.split('/').next().unwrap().parse::<IpAddr>().unwrap()
        };
        let [client, server] = names;
        assert_eq!(address(client), sees.parse::<IpAddr>().unwrap());
        let to = address(server);
        let (client, server) = (host.container(client), host.container(server));
        let _echo = Echo::serve(&server, 80);
        assert_eq!(ask_tcp(&client, (to, 80).into()), Ok(sees.parse().unwrap()), "{pod_routing}");
        let _echo = Echo::serve(&outside, 80);
        let seen = ask_tcp(&client, "192.0.2.99:80".parse().unwrap());
        assert_eq!(seen, Ok(host.v4().into()), "{pod_routing}");
    }
}

#[test]
fn a_pod_in_a_vlan_gets_no_host_port() {
    let host = PluginHost::new();
    host.netns("c1");
    let ports = json!({ "portMappings": [mapping("tcp", 8080, "")] });
    let refused = Call::new("ADD", &in_100(), "c1").key("runtimeConfig", ports).run(&host);
    assert_eq!(refused.code(), 7);
    assert!(refused.error().contains("portMappings"), "{}", refused.error());
    host.assert_clean("after a refused ADD");
}

/// The bridge of a network without VLANs gets them, and the pods that it has stay together.
#[test]
fn pods_without_a_vlan_keep_reaching_each_other_when_another_network_brings_vlans() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let plain = conf("1.1.0", json!({ "subnet": "10.1.2.0/24", "podRouting": "bridge" }));
    for name in ["c1", "c2"] {
        host.add(&plain, name);
    }
    host.add(&in_200(), "d1");
    host.add(&plain, "c3");
    for to in ["10.1.2.3", "10.1.2.4", "10.1.2.1"] {
        assert!(pings(&host, "ip netns exec c1", to), "{to}");
    }
}

/// Another network's pod, in another VLAN, asks for the MAC of a running pod.
#[test]
fn a_mac_of_a_running_pod_is_given_to_no_pod_of_another_vlan() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let result = host.add(&in_100(), "c1");
    let mac = result["interfaces"][2]["mac"].as_str().unwrap();
    host.netns("thief");
    let args = format!("MAC={mac}");
    let refused = Call::new("ADD", &in_200(), "thief").with("CNI_ARGS", &args).run(&host);
    assert_eq!(refused.code(), 101);
    assert!(refused.error().contains("in use by"), "{}", refused.error());
    assert!(pings(&host, "", "10.1.2.2"));
}

/// The port has an entry of its MAC in each VLAN; a thief in another one has its own.
#[test]
fn the_mac_of_a_port_is_given_to_no_pod_of_another_vlan_and_comes_back_in_its_own() {
    if !filters_vlans() {
        return println!("this kernel has no VLANs");
    }
    let host = PluginHost::new();
    let result = host.add(&in_100(), "c1");
    host.add(&in_100(), "c2");
    let (port, mac) = (port(&result), result["interfaces"][1]["mac"].as_str().unwrap());
    host.netns("thief");
    let thief = Call::new("ADD", &in_200(), "thief").with("CNI_ARGS", &format!("MAC={mac}"));
    let refused = thief.run(&host);
    assert_eq!(refused.code(), 101);
    assert!(refused.error().contains("in use by this host"), "{}", refused.error());
    let entries = || {
        let shown = host.run("bridge fdb show br hz0").ok();
        let of_port = |line: &&str| line.starts_with(&format!("{mac} dev {port} "));
        shown.lines().filter(of_port).filter(|line| line.contains("permanent")).count()
    };
    let before = entries();
    assert!(before > 1, "{before}");
    host.run(&format!("bridge fdb del {mac} dev {port} master")).ok();
    assert!(entries() < before && check(&host, &in_100(), &result).is_err());
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }, { "containerID": "c2", "ifname": "eth0" }]);
    let gc = Call::new("GC", &in_100(), "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
    let gc = gc.with("CNI_IFNAME", "").key("cni.dev/valid-attachments", valid);
    gc.run(&host).ok();
    assert_eq!(entries(), before);
    check(&host, &in_100(), &result).unwrap();
    assert!(pings(&host, "ip netns exec c1", "10.1.2.3"));
}
