//! Pods with several interfaces, each in a network of its own.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply, own};
use crate::support::cni::Network;
use crate::support::ping::round_trip;
use crate::support::{Agent, Cluster, Node, Place, Pod, facts, soon};
use crate::tenants::{
    add, blocks, is_in, namespace, small, try_add, two_tenants, with_two_networks,
};

fn networks(list: &str) -> Value {
    json!({"humanz.io/networks": list})
}

/// The addresses of the interface of a pod.
pub fn addresses(pod: &Pod, ifname: &str) -> Vec<IpAddr> {
    let interfaces = pod.result["interfaces"].as_array().unwrap();
    let is_own = |it: &Value| it["name"] == ifname && !it["sandbox"].is_null();
    let place = interfaces.iter().position(is_own).unwrap_or_else(|| panic!("{}", pod.result));
    let ips = pod.result["ips"].as_array().unwrap().iter();
    let own = ips.filter(|ip| ip["interface"] == place);
    own.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap())
        .collect()
}

fn pings(from: &Pod, more: &str, to: IpAddr) -> bool {
    from.run(&format!("ping -n -c 1 -W 1 {more} {to}")).stdout.contains(" 0% packet loss")
}

#[test]
fn commands_say_the_network_of_each_interface_and_count_pods() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_two_networks());
    let agents = cluster.start_agents(FROM_ETCD);
    let both = try_add(h1, "shop/both", networks("front,back@eth1")).unwrap();
    let (red, plain) = (add(h2, "red/a"), add(h2, "plain/a"));
    let rows = |line: &str| -> Vec<(String, String)> {
        let text = Agent::run(h1, line, FROM_ETCD).ok();
        let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = |words: Vec<&str>| {
            let at = words.iter().position(|word| word.contains(",fd"))?;
            Some((words[at].to_owned(), words[at + 1].to_owned()))
        };
        words.filter_map(row).collect()
    };
    let row = |addresses: &[IpAddr], network: &str| {
        let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        (text.join(","), network.to_owned())
    };
    let own =
        [row(&addresses(&both, "eth0"), "blue/front"), row(&addresses(&both, "eth1"), "blue/back")];
    assert_eq!(rows("pods"), own);
    let others = [row(&plain.addresses(), "humanz"), row(&red.addresses(), "red/front")];
    assert_eq!(rows("pods --all"), [&own[..], &others].concat());
    let all = Agent::run(h1, "pods --all", FROM_ETCD).ok();
    assert!(all.contains("3 pods on 2 of 2 hosts"), "{all}");
    let status = Agent::run(h1, "status", FROM_ETCD).stdout;
    for words in ["2 interfaces plugged in", "2 interfaces in network humanz"] {
        assert!(status.contains(words), "{words} in {status}");
    }
    agents.iter().for_each(Agent::stop);
}

/// Names of interfaces sort before eth0, too.
#[test]
fn commands_judge_a_pod_by_the_address_that_it_sends_from() {
    let cluster = Cluster::new(1);
    let h1 = &cluster.hosts[0];
    let peer = json!({"direction": "in", "action": "allow", "peer": {"network": "back"}});
    let mut objects = with_two_networks();
    objects.last_mut().unwrap()["spec"]["allow"] = json!(["back", "own"]);
    for (kind, name, spec) in [
        ("GroupPolicy", "back", json!({"rules": [peer]})),
        ("Group", "own", json!({"policies": ["back"], "default": {"in": "deny"}})),
    ] {
        objects.push(own(kind, name, spec));
        objects.last_mut().unwrap()["metadata"]["tenant"] = json!("blue");
    }
    apply(h1, &objects);
    let agents = cluster.start_agents(FROM_ETCD);
    let both = try_add(h1, "shop/both", networks("front,back@a0")).unwrap();
    let asks = json!({"humanz.io/network": "back", "humanz.io/group": "own"});
    let back = try_add(h1, "shop/back", asks).unwrap();
    let (eth0, a0) = (addresses(&both, "eth0"), addresses(&both, "a0"));
    let [v4, v6] = [back.v4(), back.v6()];
    soon("the policy", || pings(&both, "", v4) && pings(&both, "", v6));
    let run = |line: String| Agent::run(h1, &line, FROM_ETCD);
    let judged = run("policy test --from shop/both --to shop/back".into()).ok();
    for (source, to) in [(a0[0], v4), (a0[1], v6)] {
        let words = format!("shop/both {source} -> shop/back {to} icmp");
        assert!(judged.contains(&words), "{words} in {judged}");
    }
    for family in ["", " --ipv6"] {
        // Nobody listens there.
        let seen = run(format!("explain shop/both shop/back 5000 --quiet{family}")).stdout;
        assert!(seen.contains("tcp/5000 allowed: policy blue/back ingress rule 0"), "{seen}");
    }
    // Of what it does not share with the other end it sends from the first one.
    let outside =
        run(format!("policy test --from shop/both --to {}:80", cluster.outside.v4())).ok();
    assert!(outside.contains(&format!("shop/both {} -> ", eth0[0])), "{outside}");
    let judged = run("policy test --from shop/back --to shop/both".into()).ok();
    assert!(judged.contains(&format!(" -> shop/both {} icmp", eth0[0])), "{judged}");
    agents.iter().for_each(Agent::stop);
}

#[test]
fn explain_says_that_answers_by_another_interface_are_dropped() {
    let cluster = Cluster::new(1);
    let h1 = &cluster.hosts[0];
    apply(h1, &with_two_networks());
    let agents = cluster.start_agents(FROM_ETCD);
    let both = try_add(h1, "shop/both", networks("front,back@eth1")).unwrap();
    let back = try_add(h1, "shop/back", json!({"humanz.io/network": "back"})).unwrap();
    let (eth0, eth1) = (addresses(&both, "eth0"), addresses(&both, "eth1"));
    for (at, family) in [(0, ""), (1, " --ipv6")] {
        soon("the network of both", || pings(&back, "", eth1[at]));
        assert!(!pings(&back, "", eth0[at]));
        let explain =
            |to: &str| Agent::run(h1, &format!("explain shop/back {to}{family}"), FROM_ETCD);
        let lost = explain("shop/both");
        let words = format!(
            "lost at pod-way-back (shop/both): packets to {} leave by the interface with {}, whose \
                             guard drops those of {}",
            back.addresses()[at],
            eth1[at],
            eth0[at]
        );
        assert!(!lost.succeeded() && lost.stdout.contains(&words), "{lost}");
        explain(&eth1[at].to_string()).ok();
    }
    agents.iter().for_each(Agent::stop);
}

/// A frozen agent cannot help a plugin that gets an address which is still that of the pod before.
#[test]
fn a_freed_address_rests_where_pods_of_other_networks_start() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &with_two_networks());
    let agents = cluster.start_agents(FROM_ETCD);
    let (first, _last) = (add(host, "shop/first"), add(host, "shop/last"));
    let freed = first.addresses();
    first.delete();
    let _back = try_add(host, "shop/back", json!({"humanz.io/network": "back"})).unwrap();
    let _plain = add(host, "plain/a");
    let next = add(host, "shop/next");
    assert!(next.addresses().iter().all(|it| !freed.contains(it)), "{freed:?}: {}", next.result);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_pod_has_an_interface_in_each_network_that_it_lists() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_two_networks());
    let agents = cluster.start_agents(FROM_ETCD);
    let both = try_add(h1, "shop/both", networks("front,back@eth1")).unwrap();
    let front = add(h2, "shop/front");
    let back = try_add(h2, "shop/back", json!({"humanz.io/network": "back"})).unwrap();
    let here = try_add(h1, "shop/here", json!({"humanz.io/network": "back"})).unwrap();
    let red = add(h1, "red/a");
    let (eth0, eth1) = (addresses(&both, "eth0"), addresses(&both, "eth1"));
    assert!(is_in(eth0[0], "10.32.0.0/16") && is_in(eth0[1], "fd00:32::/64"), "{}", both.result);
    assert!(is_in(eth1[0], "10.34.0.0/16") && is_in(eth1[1], "fd00:34::/64"), "{}", both.result);
    for family in ["-4", "-6"] {
        let defaults = both.run(&format!("ip {family} route show default")).ok();
        assert!(defaults.contains("dev eth0") && !defaults.contains("dev eth1"), "{defaults}");
    }
    // Within each network by its interface, on both hosts, and from there.
    for at in [0, 1] {
        soon("the front", || {
            pings(&front, "", eth0[at]) && pings(&both, "", front.addresses()[at])
        });
        soon("the back", || pings(&back, "", eth1[at]) && pings(&both, "", back.addresses()[at]));
        soon("the back on this host", || {
            pings(&here, "", eth1[at]) && pings(&both, "", here.addresses()[at])
        });
        for to in [eth0[at], eth1[at]] {
            assert!(!pings(&red, "", to), "another tenant reaches {to}");
        }
    }
    assert!(round_trip(&both, cluster.outside.v4().into()).is_ok());
    // Each port has a guard of its own: the address of one interface is not let out by another.
    assert!(!pings(&both, &format!("-I {}", eth0[0]), back.v4()));
    let seen = Agent::run(h1, "endpoint ls", FROM_ETCD).ok();
    for address in eth0.iter().chain(&eth1) {
        assert!(seen.contains(&address.to_string()), "{seen}");
    }

    let shown = Agent::run(h1, "endpoint show shop/both --json", FROM_ETCD).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["endpoint"]["network"], "blue/front", "{shown}");
    assert_eq!(shown["further"][0]["network"], "blue/back", "{shown}");
    both.check().unwrap_or_else(|error| panic!("CHECK: {error}"));
    let latest = Network::of(h1).with_version("1.1.0");
    latest.gc(h1, &[&both.attachment, &here.attachment, &red.attachment]).unwrap();
    both.check().unwrap_or_else(|error| panic!("CHECK after GC: {error}"));
    // The agent restores the guards of both.
    let guards = |host: &Node| {
        let listed = host.run("nft list table netdev humanz").stdout;
        listed.lines().filter(|line| line.contains("chain hz")).count()
    };
    let before = guards(h1);
    h1.run("nft delete table netdev humanz").ok();
    soon("the guards to be there again", || guards(h1) == before);
    both.check().unwrap_or_else(|error| panic!("CHECK with new guards: {error}"));
    both.run(&format!("ip addr del {}/26 dev eth1", eth1[0])).ok();
    let broken = both.check().unwrap_err();
    assert!(broken.code == 103 && broken.to_string().contains(&eth1[0].to_string()), "{broken}");

    both.delete();
    assert_eq!(facts::veths(h1).len(), 2, "those of the others");
    let store = h1.list("/run/humanz/ipam/humanz");
    for address in eth0.iter().chain(&eth1) {
        assert!(!store.contains(&address.to_string()), "{store:?}");
    }
    // Without the store nobody knows which interfaces belong together: those of a valid container stay.
    let both = try_add(h1, "shop/again", networks("front,back")).unwrap();
    let store = "/run/humanz/ipam/humanz";
    h1.shell(&format!("mount --bind {store} {store}; mount -o remount,bind,ro {store}")).ok();
    let valid = [&both.attachment, &here.attachment, &red.attachment];
    assert_eq!(latest.gc(h1, &valid).unwrap_err().code, 5);
    h1.shell(&format!("umount {store}")).ok();
    both.check().unwrap_or_else(|error| panic!("CHECK: {error}"));
    both.delete();
    // What GC says is not valid goes with all of its interfaces.
    try_add(h1, "shop/gone", networks("back,front@eth1,default/default@eth2")).err().unwrap();
    try_add(h1, "shop/left", networks("back,front")).unwrap();
    assert_eq!(facts::veths(h1).len(), 4);
    latest.gc(h1, &[&here.attachment, &red.attachment]).unwrap();
    assert_eq!(facts::veths(h1).len(), 2);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn of_several_interfaces_a_pod_gets_all_or_none() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let more = namespace(
        "shop",
        json!({"tenant": "blue", "network": "small", "allow": ["front", "default/default"]}),
    );
    let [full, _] = small("10.35.0.0/28");
    apply(host, &[two_tenants(), vec![full, more]].concat());
    let agents = cluster.start_agents(FROM_ETCD);
    for (pod, list, code) in [
        ("shop/a", "front,red/front@eth1", 7),
        ("shop/b", "front,nothing@eth1", 7),
        ("shop/c", "front@eth1,small", 7),
        ("shop/d", "front,small@eth0", 7),
        ("shop/e", "front,front@eth1", 7),
        ("shop/f", "front,small@../../x", 7),
        ("shop/g", "front,small@lo", 7),
        ("plain/h", "../front,x\n", 7),
    ] {
        let refused =
            try_add(host, pod, networks(list)).err().unwrap_or_else(|| panic!("{pod} started"));
        assert_eq!(refused.code, code, "{pod}: {refused}");
    }
    for (key, text) in [
        ("humanz.io/networks", format!("front,small@{}", "x".repeat(4096))),
        ("humanz.io/networks", format!("front{}", ",front".repeat(100))),
        ("humanz.io/network", "f".repeat(4096)),
        ("io.contiv.network", "ä".repeat(300)),
    ] {
        let refused = try_add(host, "shop/long", json!({ key: text })).err().unwrap();
        assert!(refused.code == 7 && refused.ended.stdout.len() < 1000, "{key}: {refused}");
        host.run("ip netns del shop-long").ok();
    }
    assert_eq!(facts::veths(host), Vec::<String>::new());
    // Ten addresses in two blocks: the eleventh pod has none, and its first interface goes again.
    let mut pods: Vec<Pod> = (0..10)
        .map(|number| try_add(host, &format!("shop/p{number}"), networks("front,small")).unwrap())
        .collect();
    let refused = try_add(host, "shop/p10", networks("front,small")).err().unwrap();
    assert!(refused.code == 11 && refused.to_string().contains("10.35.0.0/28"), "{refused}");
    assert_eq!(facts::veths(host).len(), 20);
    let is_front = |key: &&String| key.contains("/10.32.") || key.contains("/fd00:32:");
    let held = blocks(&cluster);
    assert_eq!(held.iter().filter(is_front).count(), 2, "one block of each family: {held:?}");
    pods.pop().unwrap().delete();
    let settings = try_add(host, "shop/both", networks("default/default,small@eth1")).unwrap();
    assert!(is_in(settings.v4(), "10.244.0.0/16"));
    assert!(is_in(addresses(&settings, "eth1")[0], "10.35.0.0/28"));
    settings.check().unwrap_or_else(|error| panic!("CHECK: {error}"));
    settings.delete();
    pods.into_iter().for_each(Pod::delete);
    assert_eq!(facts::veths(host), Vec::<String>::new());
    agents.iter().for_each(Agent::stop);
}
