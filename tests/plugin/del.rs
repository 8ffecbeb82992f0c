//! DEL succeeds and leaves nothing, whatever is missing.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::facts::veths;
use crate::support::plugin_host::{Call, PluginHost, STORE, conf};

fn subnet() -> Value {
    conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }))
}

/// After ADD and `spoil`, the DEL that `change` makes of the usual one leaves nothing.
fn check(what: &str, spoil: &str, change: impl FnOnce(Call) -> Call) {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    let veth = veths(&host).remove(0);
    host.shell(&spoil.replace("VETH", &veth)).ok();
    let call = change(Call::new("DEL", &subnet(), "c1"));
    let answer = call.run(&host);
    assert_eq!((answer.ended.stdout.as_str(), answer.ended.succeeded()), ("", true), "{what}");
    host.assert_clean(what);
    assert!(call.run(&host).ended.succeeded(), "{what}, twice");
}

#[test]
fn with_everything_there() {
    check("as usual", "true", |call| call);
    let host = PluginHost::new();
    let result = host.add(&subnet(), "c1");
    Call::new("DEL", &subnet(), "c1").key("prevResult", result).run(&host).ok();
    assert_eq!(host.pod_ip("c1", "link show eth0"), Value::Null, "the pod's end is gone as well");
    host.assert_clean("after DEL with prevResult");
}

#[test]
fn with_the_namespace_missing() {
    check("an empty CNI_NETNS", "true", |call| call.with("CNI_NETNS", ""));
    check("a path that is missing", "true", |call| call.with("CNI_NETNS", "/run/netns/none"));
    check("a namespace that is gone", "ip netns del c1", |call| call);
    check("a file that is no namespace", "true", |call| call.with("CNI_NETNS", "/etc/hosts"));
    check("a folder", "true", |call| call.with("CNI_NETNS", "/run"));
}

#[test]
fn with_the_link_or_the_bridge_missing() {
    check("the link deleted", "ip link del VETH", |call| call);
    check("the bridge deleted", "ip link del hz0", |call| call);
    check("the link pulled", "ip link set VETH nomaster", |call| call);
}

#[test]
fn with_half_a_configuration() {
    for key in ["bridge", "subnet"] {
        check(&format!("no {key}"), "true", |call| call.key(key, Value::Null));
    }
    check("another bridge", "true", |call| call.key("bridge", json!("other0")));
    check("another subnet", "true", |call| call.key("subnet", json!("10.9.9.0/24")));
    check("a wrong key", "true", |call| call.key("mtu", json!("x")).key("vlan", json!(7)));
    check("a wrong prevResult", "true", |call| call.key("prevResult", json!({ "ips": 7 })));
    check("wrong CNI_ARGS", "true", |call| call.with("CNI_ARGS", "what;is=this=;"));
    for version in crate::VERSIONS {
        check(version, "true", |call| call.key("cniVersion", json!(version)));
    }
}

#[test]
fn with_nothing_ever_created() {
    let host = PluginHost::new();
    for netns in ["", "/run/netns/none"] {
        Call::new("DEL", &subnet(), "unknown").with("CNI_NETNS", netns).run(&host).ok();
    }
    host.shell("mount -o remount,bind,ro /run").ok();
    Call::new("DEL", &subnet(), "unknown").key("dataDir", json!("/run/none")).run(&host).ok();
}

#[test]
fn with_files_of_the_store_missing_or_broken() {
    let owner = format!("{STORE}/owners/c1:eth0");
    check("the address file deleted", &format!("rm {STORE}/10.1.2.2"), |call| call);
    // ADD's result helps the memory.
    let ips = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.2/24" }] });
    check("the store deleted", "rm -r /run/humanz", |call| call.key("prevResult", ips));
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    host.shell(&format!("echo garbage > {owner}")).ok();
    Call::new("DEL", &subnet(), "c1").run(&host).ok();
    // Its addresses are unknown: the kernel's neighbour entries expire.
    let left = host.leftovers().into_iter().filter(|left| !left.starts_with("neighbour"));
    assert_eq!(left.collect::<Vec<_>>(), ["file quarantine"]);
    let log = host.read("/var/log/humanz.log").unwrap();
    assert!(log.contains("is not an entry") && log.contains("quarantine"), "{log}");
}

#[test]
fn a_link_that_is_not_ours_is_left() {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    let veth = veths(&host).remove(0);
    host.shell(&format!("ip link set {veth} alias 'humanz net c2 eth0'")).ok();
    Call::new("DEL", &subnet(), "c1").run(&host).ok();
    assert_eq!(veths(&host), [veth]);
}

#[test]
fn a_real_failure_is_reported_without_phrases_that_runtimes_ignore() {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    host.shell(&format!("mount --bind -o ro {STORE} {STORE}; mount -o remount,bind,ro {STORE}"))
        .ok();
    let answer = Call::new("DEL", &subnet(), "c1").with("CNI_NETNS", "").run(&host);
    assert_eq!(answer.code(), 5, "{}", answer.error());
    let text = answer.ended.stdout.to_lowercase();
    assert!(!text.contains("not found") && !text.contains("no such file"), "{text}");
    assert_eq!(veths(&host), Vec::<String>::new(), "the link went all the same");
    host.shell(&format!("umount {STORE}")).ok();
    Call::new("DEL", &subnet(), "c1").run(&host).ok();
    host.assert_clean("after the second DEL");
}

/// The link may still be there: nobody else gets its address.
#[test]
fn a_del_that_may_not_remove_the_link_keeps_the_address_and_is_called_again() {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    let before = host.leftovers();
    let refused = Call::new("DEL", &subnet(), "c1").under("setpriv --bounding-set -net_admin");
    let answer = refused.run(&host);
    assert_eq!(answer.code(), 999, "{}", answer.error());
    assert!(answer.error().contains("remove interface"), "{}", answer.error());
    assert_eq!(host.leftovers(), before);
    Call::new("DEL", &subnet(), "c1").run(&host).ok();
    host.assert_clean("after the second DEL");
}

/// Nobody knows what is meant.
#[test]
fn half_a_call_of_del_removes_nothing() {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    let before = host.leftovers();
    let del = || Call::new("DEL", &subnet(), "c1");
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME"] {
        assert_eq!(del().with(variable, "").run(&host).code(), 4, "without {variable}");
    }
    assert_eq!(del().run_with(&host, "{").code(), 6);
    assert_eq!(del().key("name", Value::Null).run(&host).code(), 7);
    assert_eq!(host.leftovers(), before);
    del().run(&host).ok();
    host.assert_clean("after the whole call");
}

#[test]
fn a_late_del_leaves_the_pod_alone_that_has_the_address_now() {
    let host = PluginHost::new();
    let small = conf("1.0.0", json!({ "subnet": "10.1.2.0/30" }));
    let former = host.add(&small, "c1");
    // As one does that is killed before the runtime has learned of its success.
    Call::new("DEL", &small, "c1").run(&host).ok();
    let now = host.add(&small, "c2");
    assert_eq!(now["ips"], former["ips"]);
    let before = host.leftovers();
    let flow = "-s 10.1.2.2 -d 192.0.2.99 -p udp --sport 7 --dport 7 -t 600 -u ASSURED";
    host.run(&format!("conntrack -I {flow}")).ok();
    Call::new("DEL", &small, "c1").key("prevResult", former).run(&host).ok();
    assert_eq!(host.leftovers(), before);
    assert!(host.run("conntrack -L -p udp").stdout.contains("sport=7"), "its flows stay");
    Call::new("CHECK", &small, "c2").key("prevResult", now).run(&host).ok();
}
