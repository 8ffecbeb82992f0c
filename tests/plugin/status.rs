//! STATUS: 50 if an ADD would fail, 51 if running pods suffer too.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost, conf};

fn status(host: &PluginHost, keys: Value) -> Option<(u64, String)> {
    let mut conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/29", "createBridge": false }));
    conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let call = Call::new("STATUS", &conf, "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
    let answer = call.with("CNI_IFNAME", "").run(host);
    match answer.ended.succeeded() {
        true => {
            assert_eq!(answer.ended.stdout, "");
            None
        }
        false => Some((answer.code(), answer.error())),
    }
}

#[track_caller]
fn refused(found: Option<(u64, String)>, code: u64, text: &str) {
    let (found, error) = found.expect("a refusal");
    assert_eq!(found, code, "{error}");
    assert!(error.contains(text), "{error}");
}

#[test]
fn the_bridge_must_be_ready_where_an_agent_makes_it() {
    let host = PluginHost::new();
    refused(status(&host, json!({})), 50, "bridge hz0 is missing");
    host.run("ip link add hz0 type veth").ok();
    refused(status(&host, json!({})), 51, "hz0 is not a bridge");
    host.shell("ip link del hz0; ip link add hz0 type bridge").ok();
    refused(status(&host, json!({})), 51, "bridge hz0 is down");
    host.run("ip link set hz0 up").ok();
    refused(status(&host, json!({})), 51, "no address 10.1.2.1/29");
    host.run("ip addr add 10.1.2.1/29 dev hz0").ok();
    assert_eq!(status(&host, json!({})), None);
    assert_eq!(host.list("/run/humanz"), Vec::<String>::new(), "STATUS changes nothing");
}

#[test]
fn without_an_agent_the_next_add_makes_the_bridge() {
    let host = PluginHost::new();
    assert_eq!(status(&host, json!({ "createBridge": true })), None);
    assert_eq!(host.ip("link show hz0"), Value::Null, "STATUS changes nothing");
    host.run("ip link add hz0 type bridge").ok();
    assert_eq!(status(&host, json!({ "createBridge": true })), None);
}

#[test]
fn a_free_address_is_needed_in_every_range_set() {
    let host = PluginHost::new();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/29" }));
    for number in 0..5 {
        assert_eq!(status(&host, json!({ "createBridge": true })), None);
        host.add(&conf, &format!("c{number}"));
    }
    refused(status(&host, json!({})), 50, "no IP addresses available");
    Call::new("DEL", &conf, "c3").run(&host).ok();
    assert_eq!(status(&host, json!({})), None);
}

#[test]
fn the_store_must_be_writable_and_have_room() {
    let host = PluginHost::new();
    let keys = json!({ "createBridge": true, "dataDir": "/run/store" });
    host.shell("mkdir /run/store; mount -t tmpfs -o ro tmpfs /run/store").ok();
    refused(status(&host, keys.clone()), 50, "/run/store");
    host.shell(
        "umount /run/store; mount -t tmpfs -o size=64k,nr_inodes=3 tmpfs /run/store
         touch /run/store/a /run/store/b",
    )
    .ok();
    refused(status(&host, keys.clone()), 50, "No space");
    host.shell("rm /run/store/a /run/store/b").ok();
    assert_eq!(status(&host, keys), None);
}

#[test]
fn networks_that_are_not_known_keep_every_pod_from_starting() {
    let host = PluginHost::new();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    let whose = |network: &str| {
        json!({ "cni_network": network, "networks": [], "cluster": null }).to_string()
    };
    let (garbled, not_read) = ("/run/humanz/ipam/.networks.json: ", "it has not read etcd");
    let asked = json!({ "createBridge": true });
    let alone = json!({ "createBridge": true, "delegated": false });
    for (number, (text, keys, refusal)) in [
        ("{", &asked, Some(garbled)),
        ("", &asked, Some(garbled)),
        (r#"{"cni_network": "net", "networks": 7}"#, &asked, Some(garbled)),
        (&whose("net"), &asked, Some(not_read)),
        (&whose("another"), &asked, None),
        ("{", &alone, None),
    ]
    .into_iter()
    .enumerate()
    {
        host.shell("mkdir -p /run/humanz/ipam").ok();
        host.write("/run/humanz/ipam/.networks.json", text);
        let name = format!("c{number}");
        host.netns(&name);
        let mut conf = conf.clone();
        conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let add = Call::new("ADD", &conf, &name).run(&host);
        match refusal {
            None => {
                assert_eq!(status(&host, keys.clone()), None, "{text}");
                add.ok();
            }
            Some(why) => {
                refused(status(&host, keys.clone()), 50, why);
                assert!(add.code() == 11 && add.error().contains(why), "{text}: {}", add.error());
            }
        }
    }
}
