//! GC removes unlisted attachments together, and nothing else.

use serde_json::{Value, json};

use crate::support::cni::PLUGINS;
use crate::support::facts::veths;
use crate::support::node::command;
use crate::support::plugin_host::{Call, PluginHost, STORE, conf};
use crate::support::{Place, soon};

fn subnet() -> Value {
    conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }))
}

fn gc(conf: &Value, valid: Value) -> Call {
    let call = Call::new("GC", conf, "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
    call.with("CNI_IFNAME", "").key("cni.dev/valid-attachments", valid)
}

fn listed(names: &[&str]) -> Value {
    names.iter().map(|name| json!({ "containerID": name, "ifname": "eth0" })).collect()
}

#[test]
fn an_absent_list_is_refused_and_an_empty_one_means_no_attachment_is_valid() {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    let mut call = gc(&subnet(), Value::Null);
    call.conf.as_object_mut().unwrap().remove("cni.dev/valid-attachments");
    assert_eq!(call.run(&host).code(), 7);
    assert_eq!(veths(&host).len(), 1);
    gc(&subnet(), Value::Null).run(&host).ok();
    host.assert_clean("after GC with null");
    host.add(&subnet(), "c2");
    gc(&subnet(), json!([])).run(&host).ok();
    host.assert_clean("after GC with an empty list");
}

#[test]
fn twenty_stale_pods_are_removed_and_valid_and_foreign_ones_stay() {
    let host = PluginHost::new();
    let (ours, other) =
        (subnet(), Call::new("ADD", &subnet(), "x").key("name", json!("other")).conf);
    let names: Vec<String> = (0..20).map(|number| format!("dead{number}")).collect();
    for name in &names {
        host.add(&ours, name);
    }
    let alive = host.add(&ours, "alive");
    host.netns("theirs");
    let theirs =
        Call::new("ADD", &other, "theirs").with("CNI_ARGS", "IP=10.1.2.200").run(&host).ok();
    host.shell("ip link add hzforeign type veth peer name hzforeign2").ok();
    // A pod whose link went by itself, and one whose reservation was lost.
    let name = |result: &Value| result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    host.run("ip netns del dead0").ok();
    host.shell(&format!("rm {STORE}/owners/dead1:eth0")).ok();
    let took = gc(&ours, listed(&["alive"])).run(&host);
    println!("GC of 20 pods: {:?}", took.ended.took);
    took.ok();
    let mut left = vec![name(&alive), name(&theirs), "hzforeign".into(), "hzforeign2".into()];
    let mut there = veths(&host);
    left.sort();
    there.sort();
    assert_eq!(there, left);
    assert_eq!(host.list(&format!("{STORE}/owners")), ["alive:eth0"]);
    let kept = |left: &String| left.starts_with("file") || left.starts_with("neighbour");
    let mut rest = host.leftovers().into_iter().filter(kept).collect::<Vec<_>>();
    rest.retain(|left| !left.contains("10.1.2.22") && !left.contains("10.1.2.200"));
    assert_eq!(rest, Vec::<String>::new());
    Call::new("CHECK", &ours, "alive").key("prevResult", alive).run(&host).ok();
}

#[test]
fn foreign_links_in_our_group_are_not_deleted_with_ours() {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    let group = u32::from_be_bytes(*b"hzgc");
    host.shell(&format!("ip link add bystander type bridge; ip link set bystander group {group}"))
        .ok();
    gc(&subnet(), json!([])).run(&host).ok();
    host.assert_clean("after GC");
    assert_eq!(host.ip("link show bystander")[0]["ifname"], "bystander");
}

#[test]
fn a_failure_does_not_prevent_the_other_removals() {
    let host = PluginHost::new();
    for name in ["c1", "c2"] {
        host.add(&subnet(), name);
    }
    host.shell(&format!("mount --bind {STORE} {STORE}; mount -o remount,bind,ro {STORE}")).ok();
    let answer = gc(&subnet(), json!([])).run(&host);
    assert_eq!(answer.code(), 5, "{}", answer.error());
    assert_eq!(veths(&host), Vec::<String>::new());
    host.shell(&format!("umount {STORE}")).ok();
    gc(&subnet(), json!([])).run(&host).ok();
    host.assert_clean("after the second GC");
}

#[test]
fn a_member_that_cannot_be_read_stops_gc_before_it_begins() {
    let host = PluginHost::new();
    host.add(&subnet(), "c1");
    let hostile = json!([{ "containerID": "../../etc", "ifname": "eth0" }]);
    assert_eq!(gc(&subnet(), hostile).run(&host).code(), 7);
    assert_eq!(veths(&host).len(), 1);
}

#[test]
fn the_renamed_link_of_a_valid_pod_stays_and_that_of_another_goes() {
    let host = PluginHost::new();
    host.add(&subnet(), "alive");
    host.add(&subnet(), "dead");
    for (number, veth) in veths(&host).iter().enumerate() {
        host.shell(&format!("ip link set {veth} down; ip link set {veth} name renamed{number}; ip link set renamed{number} up")).ok();
    }
    gc(&subnet(), listed(&["alive"])).run(&host).ok();
    assert_eq!(veths(&host).len(), 1);
    assert_eq!(host.list(&format!("{STORE}/owners")), ["alive:eth0"]);
    assert_eq!(host.pod_ip("alive", "link show eth0")[0]["ifname"], "eth0");
}

/// podman 5 beside CRI-O, which asks for GC when it starts.
#[test]
fn a_runtime_that_does_not_know_the_containers_of_podman_5_takes_no_network_from_them() {
    let host = PluginHost::new();
    host.run("mkdir -p /etc/cni/net.d").ok();
    host.write("/etc/cni/net.d/05-humanz.conf", &subnet().to_string());
    let podman = |verb: &str, name: &str| {
        let port = json!({ "host_port": 8080, "container_port": 80, "protocol": "tcp" });
        let document = json!({
            "container_id": format!("{name}-0123"), "container_name": name, "port_mappings": [port],
            "network": { "name": "mine", "options": {} }, "network_options": { "interface_name": "eth0" },
        });
        let mut line = command(&format!("{PLUGINS}/humanz {verb} /run/netns/{name}"));
        host.run_command(&mut line, &document.to_string()).ok()
    };
    for name in ["web", "c1", "c2"] {
        host.netns(name);
    }
    podman("setup", "web");
    let of_web = host.leftovers();
    for name in ["c1", "c2"] {
        let pod = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web";
        Call::new("ADD", &subnet(), name).with("CNI_ARGS", pod).run(&host).ok();
    }
    gc(&subnet(), listed(&["c1"])).run(&host).ok();
    assert_eq!(veths(&host).len(), 2);
    gc(&subnet(), json!([])).run(&host).ok();
    assert_eq!(host.leftovers(), of_web);
    // What is left of a container that ended without podman is no more than that of another runtime.
    host.run("ip netns del web").ok();
    soon("its link is gone", || veths(&host).is_empty());
    gc(&subnet(), json!([])).run(&host).ok();
    host.assert_clean("after GC");
}
