//! humanz in a plugin chain: behind a plugin that creates the interface, and before others.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::hostports::elements;
use crate::support::cni::{Attachment, Network, PLUGINS};
use crate::support::echo::{Echo, ask_tcp};
use crate::support::facts::veths;
use crate::support::node::command;
use crate::support::plugin_host::{Call, PluginHost, STORE, conf};
use crate::support::{Place, soon};

/// A host that has the reference plugins too.
fn host() -> PluginHost {
    let host = PluginHost::new();
    host.shell(&format!("ln -s /usr/lib/cni/* {PLUGINS}/")).ok();
    host
}

fn network(version: &str, plugins: Value) -> Network {
    let plugins = plugins.as_array().unwrap().clone();
    Network { name: "net".into(), version: version.into(), plugins }
}

/// The reference plugins' bridge, with addresses of host-local.
fn bridge() -> Value {
    json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.2.0/24" }]],
            "routes": [{ "dst": "0.0.0.0/0" }] } })
}

fn rate(host: &PluginHost, place: &str, link: &str) -> Option<u64> {
    let shown = host.run(&format!("{place} tc -j qdisc show dev {link} root")).ok();
    let queues: Value = serde_json::from_str(&shown).unwrap();
    queues[0]["options"]["rate"].as_u64().map(|rate| rate * 8)
}

const IN_POD: &str = "ip netns exec c1";

#[test]
fn behind_the_bridge_plugin_humanz_limits_and_tunes_the_existing_interface() {
    let host = host();
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        let ours = json!({ "type": "humanz", "capabilities": { "bandwidth": true, "mac": true },
            "mtu": 1400, "txQLen": 500, "sysctl": { "net.core.somaxconn": "77" } });
        let network = network(version, json!([bridge(), ours]));
        host.netns("c1");
        let limits = json!({ "ingressRate": 8_000_000, "egressRate": 16_000_000 });
        let attachment = Attachment {
            runtime: json!({ "bandwidth": limits, "mac": "02:00:00:00:00:07" }),
            ..Attachment::new("c1")
        };
        let result = network.add(&host, &attachment).unwrap();
        assert_eq!(result["cniVersion"], version);
        let returned = result["interfaces"].as_array().unwrap();
        let names: Vec<&str> = returned.iter().map(|link| link["name"].as_str().unwrap()).collect();
        assert_eq!((names.len(), names[0], names[2]), (3, "cni0", "eth0"));
        assert_eq!(returned[2]["mac"], "02:00:00:00:00:07");
        assert_eq!(returned[2]["mtu"], if version < "1.0.0" { Value::Null } else { json!(1400) });
        assert_eq!(result["ips"].as_array().unwrap().len(), 1);
        assert_eq!(rate(&host, "", names[1]), Some(8_000_000));
        assert_eq!(rate(&host, IN_POD, "eth0"), Some(16_000_000));
        let link = &host.pod_ip("c1", "link show eth0")[0];
        assert_eq!((&link["mtu"], &link["txqlen"]), (&json!(1400), &json!(500)));
        assert_eq!(link["address"], "02:00:00:00:00:07");
        host.run(&format!("{IN_POD} ping -n -c 1 -W 5 10.1.2.1")).ok();
        if version > "0.3.1" {
            network.check(&host, &attachment, &result).unwrap();
            host.run(&format!("{IN_POD} tc qdisc del dev eth0 root")).ok();
            let failure = network.check(&host, &attachment, &result).unwrap_err();
            assert_eq!(failure.code, 103);
            assert!(failure.ended.stdout.contains("is limited to nothing"), "{failure}");
        }
        network.del(&host, &attachment, &result).unwrap();
        network.del(&host, &attachment, &Value::Null).unwrap();
        host.run("ip netns del c1").ok();
        assert_eq!(veths(&host), Vec::<String>::new(), "{version}");
    }
    assert!(!host.list("/run/humanz/ipam").contains(&"net".to_owned()), "nothing is reserved");
    let foreign = host.list("/var/lib/cni/networks/net");
    assert!(!foreign.contains(&"taken-over-by-humanz".to_owned()), "{foreign:?}");
}

#[test]
fn behind_humanz_on_another_bridge_humanz_checks_only_what_it_did() {
    let host = host();
    let first = json!({ "type": "humanz", "bridge": "hz7", "subnet": "10.1.2.0/24" });
    let second = json!({ "type": "humanz", "sysctl": { "net.core.somaxconn": "77" } });
    let network = network("1.0.0", json!([first, second]));
    host.netns("c1");
    let attachment = Attachment::new("c1");
    let result = network.add(&host, &attachment).unwrap();
    network.check(&host, &attachment, &result).unwrap();
    host.run(&format!("{IN_POD} sysctl -qw net.core.somaxconn=78")).ok();
    let failure = network.check(&host, &attachment, &result).unwrap_err();
    assert!(failure.ended.stdout.contains("somaxconn in the pod is 78"), "{failure}");
    network.del(&host, &attachment, &result).unwrap();
    host.assert_clean("after DEL");
}

/// Nothing of the pod passes the host's own stack there: a port of the host would lead nowhere.
#[test]
fn behind_macvlan_and_host_device_what_needs_the_hosts_end_is_refused_and_the_rest_done() {
    let host = host();
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.2.0/24" }]] });
    host.shell("ip link add up0 type veth peer name up1 && ip link set up0 up").ok();
    let macvlan = json!({ "type": "macvlan", "master": "up0", "ipam": ipam });
    let device = json!({ "type": "host-device", "device": "dev0", "ipam": ipam });
    // Not every kernel has macvlan.
    let has_macvlan = host.run("ip link add link up0 name try0 type macvlan").succeeded();
    host.run("ip link del try0");
    for first in if has_macvlan { vec![macvlan, device] } else { vec![device] } {
        host.run("ip link add dev0 type veth peer name dev1").ok();
        let keys = json!({ "portMappings": true, "bandwidth": true });
        let ours = json!({ "type": "humanz", "capabilities": keys, "sysctl": { "net.core.somaxconn": "77" } });
        let network = network("1.0.0", json!([first, ours]));
        let port = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        let down = json!({ "ingressRate": 8_000_000, "ingressBurst": 80_000 });
        for (runtime, key) in [
            (json!({ "portMappings": port }), "portMappings"),
            (json!({ "bandwidth": down }), "ingressRate"),
        ] {
            host.netns("c1");
            let attachment = Attachment { runtime, ..Attachment::new("c1") };
            let failure = network.add(&host, &attachment).unwrap_err();
            assert_eq!(failure.code, 7, "{failure}");
            assert!(
                failure.ended.stdout.contains(&format!("{key}: eth0 has no end on the host")),
                "{failure}"
            );
            network.del(&host, &attachment, &Value::Null).unwrap();
            host.run("ip netns del c1").ok();
        }
        host.netns("c1");
        let up = json!({ "bandwidth": { "egressRate": 16_000_000, "egressBurst": 160_000 } });
        let attachment = Attachment { runtime: up, ..Attachment::new("c1") };
        let result = network.add(&host, &attachment).unwrap();
        assert_eq!(rate(&host, IN_POD, "eth0"), Some(16_000_000));
        network.check(&host, &attachment, &result).unwrap();
        network.del(&host, &attachment, &result).unwrap();
        host.run("ip netns del c1").ok();
        host.shell("ip link del dev0 2>/dev/null || true").ok();
    }
}

#[test]
fn before_other_plugins_humanz_is_a_main_plugin_like_any_other() {
    let host = host();
    let first = json!({ "type": "humanz", "bridge": "hz0", "subnet": "10.1.2.0/24" });
    let network = network(
        "1.0.0",
        json!([
            first,
            { "type": "portmap", "capabilities": { "portMappings": true } },
            { "type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 80_000,
              "egressRate": 8_000_000, "egressBurst": 80_000 },
            { "type": "tuning", "sysctl": { "net.core.somaxconn": "77" }, "mtu": 1400 },
            { "type": "firewall" },
        ]),
    );
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let attachment =
        Attachment { runtime: json!({ "portMappings": ports }), ..Attachment::new("c1") };
    host.netns("c1");
    let result = network.add(&host, &attachment).unwrap();
    assert_eq!(result["interfaces"][2]["name"], "eth0");
    assert_eq!(host.ip("link show type ifb").as_array().unwrap().len(), 1, "the other plugin's");
    host.run(&format!("{IN_POD} ping -n -c 1 -W 5 10.1.2.1")).ok();
    // portmap 1.1.1 looks for rules of IPv6 that it did not make.
    let mut others = network.clone();
    others.plugins.retain(|plugin| plugin["type"] != "portmap");
    others.check(&host, &attachment, &result).unwrap();
    network.del(&host, &attachment, &result).unwrap();
    host.assert_clean("after DEL");
    assert_eq!(host.ip("link show type ifb"), json!([]));
}

#[test]
fn between_two_plugins_humanz_passes_the_previous_result_on() {
    let host = host();
    let ours = json!({ "type": "humanz", "ingressRate": 8_000_000 });
    let tuning = json!({ "type": "tuning", "sysctl": { "net.core.somaxconn": "77" } });
    let network = network("1.0.0", json!([bridge(), ours, tuning]));
    host.netns("c1");
    let attachment = Attachment::new("c1");
    let result = network.add(&host, &attachment).unwrap();
    network.check(&host, &attachment, &result).unwrap();
    network.del(&host, &attachment, &result).unwrap();
    assert_eq!(veths(&host), Vec::<String>::new());
}

#[test]
fn host_ports_forward_to_a_pod_attached_by_another_plugin() {
    let host = host();
    let capabilities = json!({ "portMappings": true, "bandwidth": true });
    let network =
        network("1.0.0", json!([bridge(), { "type": "humanz", "capabilities": capabilities }]));
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let asking = |name: &str| Attachment {
        runtime: json!({ "portMappings": ports, "bandwidth": { "ingressRate": 80_000_000 } }),
        ..Attachment::new(name)
    };
    let (first, second) = (asking("c1"), asking("c2"));
    host.netns("c1");
    host.netns("c2");
    let result = network.add(&host, &first).unwrap();
    let failure = network.add(&host, &second).unwrap_err();
    assert_eq!(failure.code, 104);
    assert!(failure.ended.stdout.contains("c1"), "the holder's name: {failure}");
    network.del(&host, &second, &Value::Null).unwrap();
    network.check(&host, &first, &result).unwrap();
    let echo = Echo::serve(&host.container("c1"), 80);
    for address in ["127.0.0.1", "10.1.2.1"] {
        let asked = ask_tcp(&*host, SocketAddr::new(address.parse().unwrap(), 8080));
        assert_eq!(asked, Ok("10.1.2.1".parse().unwrap()), "{address}");
    }
    drop(echo);
    network.del(&host, &first, &result).unwrap();
    ask_tcp(&*host, SocketAddr::new("10.1.2.1".parse().unwrap(), 8080)).unwrap_err();
    let result = network.add(&host, &second).unwrap();
    network.check(&host, &second, &result).unwrap();
    let gc =
        Call::new("GC", &conf("1.1.0", json!({})), "").key("cni.dev/valid-attachments", json!([]));
    let gc = gc.with("CNI_CONTAINERID", "").with("CNI_NETNS", "").with("CNI_IFNAME", "");
    gc.run(&host).ok();
    assert_eq!(network.check(&host, &second, &result).unwrap_err().code, 103);
    assert_eq!(host.list(&format!("{STORE}/owners")), Vec::<String>::new());
}

/// The other plugin gives the next pod the address, whatever this store has reserved.
#[test]
fn an_add_closes_the_port_of_a_pod_that_ended_under_a_held_lock() {
    let host = host();
    let network = network(
        "1.0.0",
        json!([bridge(), { "type": "humanz", "capabilities": { "portMappings": true } }]),
    );
    let asking = |name: &str, port: u16, args: &str| Attachment {
        runtime: json!({ "portMappings": [{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }] }),
        args: args.to_owned(),
        ..Attachment::new(name)
    };
    let lock = "/run/humanz/ipam/.hostports/lock";
    let first = asking("c1", 8080, "IgnoreUnknown=1");
    host.netns("c1");
    let result = network.add(&host, &first).unwrap();
    let holder = host.spawn(&mut command(&format!("flock -F {lock} sleep 600")));
    soon("the lock is held", || !host.run(&format!("flock -n {lock} true")).succeeded());
    network.del(&host, &first, &result).unwrap();
    holder.kill();
    soon("the lock is free", || host.run(&format!("flock -n {lock} true")).succeeded());
    assert_eq!(host.list(&format!("{STORE}/ended")), ["c1:eth0"]);
    host.netns("c2");
    let second = asking("c2", 9090, "IgnoreUnknown=1;IP=10.1.2.2");
    let result = network.add(&host, &second).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24");
    assert_eq!(elements(&host), ["any4 tcp . 9090 : 10.1.2.2 . 80"]);
    network.del(&host, &second, &result).unwrap();
    assert_eq!(host.list(&format!("{STORE}/owners")), Vec::<String>::new());
}

/// The result of the previous plugin: its bridge, its veth, and `eth0`.
fn previous() -> Value {
    json!({ "cniVersion": "1.1.0",
        "interfaces": [{ "name": "cni0" }, { "name": "vhost" },
            { "name": "eth0", "mac": "02:00:00:00:00:05", "sandbox": "/run/netns/c1" }],
        "ips": [{ "address": "10.1.2.2/24", "interface": 2 }],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.2.1" }],
        "dns": { "nameservers": ["10.1.2.1"] } })
}

/// A pod with a veth of another plugin.
fn plugged() -> PluginHost {
    let host = host();
    host.netns("c1");
    let make = "ip link add vhost type veth peer name eth0 netns c1 && ip link set vhost up \
        && ip -n c1 link set eth0 address 02:00:00:00:00:05 mtu 1450 up";
    host.shell(make).ok();
    host
}

/// `verb` of humanz behind another plugin.
fn behind(verb: &str, keys: Value) -> Call {
    let mut conf = conf("1.1.0", keys);
    conf["prevResult"] = previous();
    Call::new(verb, &conf, "c1")
}

#[test]
fn without_requests_the_result_is_passed_on_and_every_verb_succeeds() {
    let host = plugged();
    assert_eq!(behind("ADD", json!({})).run(&host).ok(), previous());
    behind("CHECK", json!({})).run(&host).ok();
    behind("DEL", json!({})).run(&host).ok();
    let plain = conf("1.1.0", json!({}));
    let without = |verb: &str| {
        let call = Call::new(verb, &plain, "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
        call.with("CNI_IFNAME", "")
    };
    without("GC").key("cni.dev/valid-attachments", json!([])).run(&host).ok();
    without("STATUS").run(&host).ok();
    assert!(veths(&host).contains(&"vhost".to_owned()), "it is somebody else's");
    assert_eq!(host.list(STORE), Vec::<String>::new());
}

#[test]
fn settings_of_the_main_plugin_are_refused_later_in_the_chain() {
    let host = plugged();
    for (keys, names) in [
        (json!({ "subnet": "10.1.2.0/24" }), "subnet or ranges"),
        (json!({ "routes": [{ "dst": "10.0.0.0/8" }] }), "routes"),
        (json!({ "ipMasq": true }), "ipMasq"),
        (json!({ "portIsolation": true }), "portIsolation"),
        (json!({ "macspoofchk": true }), "macspoofchk"),
    ] {
        let answer = behind("ADD", keys).run(&host);
        assert_eq!(answer.code(), 7);
        assert!(answer.error().contains(names), "{}", answer.error());
    }
}

#[test]
fn an_unexpected_interface_is_reported() {
    let host = plugged();
    let limited = json!({ "ingressRate": 8000 });
    let mut strange = previous();
    strange["interfaces"][2]["name"] = json!("eth7");
    let answer = behind("ADD", limited.clone()).key("prevResult", strange).run(&host);
    assert_eq!(answer.code(), 7);
    assert!(answer.error().contains("no interface eth0 in a container"), "{}", answer.error());
    // A number alone does not make a link of the host the other end.
    let mut unlisted = previous();
    unlisted["interfaces"][1]["name"] = json!("other");
    let answer = behind("ADD", limited.clone()).key("prevResult", unlisted).run(&host);
    assert_eq!(answer.code(), 7);
    assert!(answer.error().contains("ingressRate: eth0 has no end"), "{}", answer.error());
    host.run("ip -n c1 link del eth0").ok();
    let answer = behind("ADD", limited.clone()).run(&host);
    assert!(answer.error().contains("eth0 of prevResult does not exist"), "{}", answer.error());
    let answer = behind("CHECK", limited).run(&host);
    assert!(answer.error().contains("eth0 is missing in the pod"), "{}", answer.error());
    host.run("ip -n c1 link add eth0 type bridge").ok();
    behind("ADD", json!({ "egressRate": 8000 })).run(&host).ok();
}

#[test]
fn after_any_failed_call_the_interface_is_as_it_was() {
    let host = plugged();
    let state = || {
        let link = &host.pod_ip("c1", "link show eth0")[0];
        let keys = ["mtu", "txqlen", "address", "flags"].map(|key| link[key].to_string());
        let somaxconn = host.run(&format!("{IN_POD} cat /proc/sys/net/core/somaxconn")).ok();
        (keys, somaxconn, rate(&host, "", "vhost"), rate(&host, IN_POD, "eth0"))
    };
    let before = state();
    let keys = json!({ "ingressRate": 8_000_000, "egressRate": 8_000_000, "mtu": 1300,
        "txQLen": 50, "promisc": true, "allmulti": true, "mac": "02:00:00:00:00:77",
        "sysctl": { "net.core.somaxconn": "77" } });
    let mut refused = 0;
    for (calls, error) in [("sendto", "ENOBUFS"), ("setns", "EPERM"), ("write", "EIO")] {
        for when in 1..40 {
            let trace = format!(
                "strace -f -qq -o /run/trace -e trace={calls} -e inject={calls}:error={error}:when={when}"
            );
            let answer = behind("ADD", keys.clone()).under(&trace).run(&host);
            let seen = host.read("/run/trace").expect("strace is needed: apt-get install strace");
            if !answer.ended.succeeded() {
                refused += 1;
                assert_eq!(state(), before, "{error} of {calls} number {when}");
            }
            reset(&host);
            if !seen.contains("INJECTED") {
                break;
            }
        }
    }
    assert!(refused >= 7, "{refused}");
    behind("ADD", keys.clone()).run(&host).ok();
    let after = state();
    assert_ne!(after, before);
    behind("ADD", keys).run(&host).ok();
    assert_eq!(state(), after, "once more");
}

#[test]
fn a_call_that_is_killed_anywhere_leaves_nothing_after_del() {
    let host = plugged();
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let runtime = json!({ "portMappings": ports, "bandwidth": { "ingressRate": 8_000_000 } });
    let keys = json!({ "runtimeConfig": runtime, "sysctl": { "net.core.somaxconn": "77" } });
    behind("ADD", keys.clone()).run(&host).ok();
    behind("DEL", keys.clone()).run(&host).ok();
    let clean = host.leftovers();
    let calls =
        "?open,openat,?link,linkat,?rename,renameat,?unlink,unlinkat,sendto,write,writev,setns";
    let mut kills = 0;
    for when in 1.. {
        let strace = format!(
            "strace -f -qq -o /run/trace -e trace={calls} -e inject={calls}:signal=KILL:when={when}"
        );
        let killed = !behind("ADD", keys.clone()).under(&strace).run(&host).ended.succeeded();
        behind("DEL", keys.clone()).run(&host).ok();
        assert_eq!(host.leftovers(), clean, "ADD killed at call {when}");
        if !killed {
            break;
        }
        kills += 1;
        // The next call finds the limits and settings that the killed one left.
        behind("ADD", keys.clone()).run(&host).ok();
        behind("DEL", keys.clone()).run(&host).ok();
    }
    println!("ADD behind another plugin killed {kills} times");
    assert!(kills > 12, "{kills}");
}

/// The pod as [`plugged`] made it.
fn reset(host: &PluginHost) {
    for end in ["", "ip netns exec c1"] {
        // Where there is no limit this fails.
        let link = if end.is_empty() { "vhost" } else { "eth0" };
        host.run(&format!("{end} tc qdisc del dev {link} root"));
    }
    let line = "\
        ip -n c1 link set eth0 mtu 1450 txqueuelen 1000 promisc off allmulticast off \
        address 02:00:00:00:00:05; ip netns exec c1 sysctl -q -w net.core.somaxconn=4096";
    host.shell(line).ok();
}

#[test]
fn a_later_plugin_that_changes_the_mac_is_what_check_says_of_the_guard() {
    let host = host();
    let first = json!({ "type": "humanz", "bridge": "hz0", "subnet": "10.1.2.0/24" });
    let tuning = json!({ "type": "tuning", "mac": "02:00:00:00:00:07" });
    let network = network("1.0.0", json!([first, tuning]));
    host.netns("c1");
    let attachment = Attachment::new("c1");
    let result = network.add(&host, &attachment).unwrap();
    let failure = network.check(&host, &attachment, &result).unwrap_err();
    assert_eq!(failure.code, 103);
    assert!(failure.ended.stdout.contains("incomplete or for another MAC"), "{failure}");
    network.del(&host, &attachment, &result).unwrap();
}
