//! Several interfaces of one container, in one network and in several.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::facts::veths;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// The network `net`.
fn first() -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    conf("1.1.0", json!({ "ranges": sets }))
}

/// Another network, on a bridge of its own.
fn other() -> Value {
    let sets = json!([[{ "subnet": "10.9.9.0/24" }], [{ "subnet": "fd09::/64" }]]);
    conf("1.1.0", json!({ "name": "other", "bridge": "hz1", "ranges": sets }))
}

/// `verb` for an interface of the container `c1`.
fn call(verb: &str, conf: &Value, ifname: &str) -> Call {
    Call::new(verb, conf, "c1").with("CNI_IFNAME", ifname)
}

/// The default routes of the pod.
fn defaults(host: &PluginHost) -> Vec<String> {
    let shown =
        ["-4", "-6"].map(|family| host.run(&format!("ip {family} -n c1 route show default")).ok());
    let word = |line: &str| line.split(' ').take(5).collect::<Vec<_>>().join(" ");
    shown.concat().lines().map(word).collect()
}

fn returned_defaults(result: &Value) -> usize {
    let routes = result["routes"].as_array().map_or(&[][..], Vec::as_slice);
    routes.iter().filter(|route| route["dst"].as_str().unwrap().ends_with("/0")).count()
}

#[test]
fn the_first_interface_keeps_the_default_route_and_interfaces_are_independent() {
    let host = PluginHost::new();
    host.netns("c1");
    let attachments = [(first(), "eth0"), (first(), "net1"), (other(), "net2")];
    let results: Vec<Value> = attachments
        .iter()
        .map(|(conf, ifname)| call("ADD", conf, ifname).run(&host).ok())
        .collect();
    assert_eq!(results.iter().map(returned_defaults).collect::<Vec<_>>(), [2, 0, 0]);
    assert_eq!(defaults(&host), ["default via 10.1.2.1 dev eth0", "default via fd00::1 dev eth0"]);
    for address in ["10.1.2.2", "10.1.2.3", "10.9.9.2", "fd00::2", "fd00::3", "fd09::2"] {
        host.run(&format!("ping -n -c 1 -W 5 {address}")).ok();
    }
    let check = |place: usize| {
        let (conf, ifname) = &attachments[place];
        call("CHECK", conf, ifname).key("prevResult", results[place].clone()).run(&host)
    };
    for place in 0..3 {
        check(place).ok();
    }
    call("DEL", &attachments[1].0, "net1").run(&host).ok();
    assert_eq!(veths(&host).len(), 2);
    check(0).ok();
    check(2).ok();
    assert_eq!(check(1).code(), 103);
    let alive = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    let gc = |conf: &Value| {
        let call = Call::new("GC", conf, "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
        call.with("CNI_IFNAME", "").key("cni.dev/valid-attachments", alive.clone()).run(&host).ok()
    };
    gc(&first());
    assert_eq!(veths(&host).len(), 2, "the other network's is none of its business");
    gc(&other());
    assert_eq!(veths(&host).len(), 1);
    check(0).ok();
    call("DEL", &first(), "eth0").run(&host).ok();
    host.assert_clean("after DEL");
}

#[test]
fn each_family_has_its_own_default_route() {
    let host = PluginHost::new();
    host.netns("c1");
    let only_v4 = conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    call("ADD", &only_v4, "eth0").run(&host).ok();
    let result = call("ADD", &other(), "net1").run(&host).ok();
    assert_eq!(returned_defaults(&result), 1);
    assert_eq!(defaults(&host), ["default via 10.1.2.1 dev eth0", "default via fd09::1 dev net1"]);
    call("CHECK", &other(), "net1").key("prevResult", result).run(&host).ok();
}

#[test]
fn a_default_route_in_routes_is_mandatory() {
    let host = PluginHost::new();
    host.netns("c1");
    call("ADD", &first(), "eth0").run(&host).ok();
    let before = host.leftovers();
    let asking = |route: Value| call("ADD", &other(), "net1").key("routes", json!([route]));
    let answer = asking(json!({ "dst": "0.0.0.0/0" })).run(&host);
    assert!(answer.error().contains("add route 0.0.0.0/0"), "{}", answer.error());
    assert!(answer.error().contains("priority"), "{}", answer.error());
    assert_eq!(host.leftovers(), before);
    asking(json!({ "dst": "0.0.0.0/0", "priority": 50 })).run(&host).ok();
}
