//! Guards on a host without an agent, after somebody changed nftables: what CHECK says of them, and what
//! the next ADD or GC makes of them.

use serde_json::{Value, json};

use crate::packets::{self, IPV4, ethernet};
use crate::scene::{At, By, Scene, marked4, marked6};
use crate::support::Place;
use crate::support::plugin_host::{Call, conf};

fn keys() -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    json!({ "ranges": sets, "isGateway": true })
}

/// Frames of the attacker with sources of nobody arrive at the victim: of IPv4, of IPv6.
fn forged(scene: &Scene) -> (bool, bool) {
    let (from, to) = (scene.attacker, scene.victim);
    let arrives = |kind: u16, packet: &[u8], mark: &[u8]| {
        let frame = ethernet(to.mac, from.mac, kind, packet);
        scene.arrives(&[frame], At::Victim, &[mark.to_vec()])
    };
    let v4 = marked4(("10.1.2.99".parse().unwrap(), to.v4), b"forged source, IPv4");
    let v6 = marked6(("fd00::99".parse().unwrap(), to.v6), b"forged source, IPv6");
    (
        arrives(IPV4, &v4, b"forged source, IPv4"),
        arrives(packets::IPV6, &v6, b"forged source, IPv6"),
    )
}

fn reaches(scene: &Scene) -> bool {
    let to = scene.victim;
    let ping = |to: &str| {
        let command = format!("ip netns exec attacker ping -n -c 1 -W 1 {to}");
        scene.run(&command).succeeded()
    };
    ping(&to.v4.to_string()) && ping(&to.v6.to_string())
}

fn gc(scene: &Scene) {
    gc_of(scene, &conf("1.1.0", keys()), &["attacker", "victim", "bystander"]);
}

fn gc_of(scene: &Scene, conf: &Value, pods: &[&str]) {
    let valid: Value =
        pods.iter().map(|name| json!({ "containerID": name, "ifname": "eth0" })).collect();
    let call = Call::new("GC", conf, "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
    let call = call.with("CNI_IFNAME", "").key("cni.dev/valid-attachments", valid);
    call.run(&scene.host).ok();
}

fn add(scene: &Scene) {
    scene.host.add(&conf("1.1.0", keys()), "new");
    Call::new("DEL", &conf("1.1.0", keys()), "new").run(&scene.host).ok();
    scene.run("ip netns del new").ok();
}

/// What pods share is there once: without it all of them are mute, or may send what they like.
#[test]
fn the_next_add_or_gc_restores_the_guards_of_running_pods() {
    let scene = Scene::new(By::Humanz);
    assert!(reaches(&scene));
    for (broken, are_mute) in [
        ("nft flush ruleset", false),
        ("nft delete table netdev humanz", false),
        ("nft 'add table netdev humanz { flags dormant; }'", false),
        ("nft insert rule netdev humanz routed-1 accept", false),
        ("nft flush table netdev humanz", true),
        ("nft flush chain netdev humanz routed-1", true),
    ] {
        for (repair, name) in [(add as fn(&Scene), "ADD"), (gc, "GC")] {
            scene.shell(broken).ok();
            // The control: it matters.
            assert_eq!(reaches(&scene), !are_mute, "{broken}");
            assert!(are_mute || forged(&scene) == (true, true), "{broken}");
            repair(&scene);
            assert!(reaches(&scene), "{name} after {broken}");
            assert_eq!(forged(&scene), (false, false), "{name} after {broken}");
        }
    }
    // A pod's own chain is restored by GC; nothing that an ADD needs shows it.
    scene.shell("nft flush chain netdev humanz $(nft list table netdev humanz | awk '/chain hz/ {print $2; exit}')").ok();
    gc(&scene);
    assert!(reaches(&scene));
}

/// Somebody gives a pod another address or MAC to send under.
#[test]
fn check_says_that_a_guard_lets_more_pass() {
    let scene = Scene::with(By::Humanz, keys());
    let conf = conf("1.1.0", keys());
    let port = scene.port(&scene.attacker);
    let mac = scene.attacker.mac.map(|byte| format!("{byte:02x}")).concat();
    let check = || {
        let mut result = scene.result.clone();
        result["cniVersion"] = conf["cniVersion"].clone();
        let call = Call::new("CHECK", &conf, "attacker").key("prevResult", result);
        call.run(&scene.host)
    };
    let nft = |verb: &str, (set, key): (&str, &str)| {
        scene.run(&format!("nft {verb} element netdev humanz {set} {{ {key} }}")).ok();
    };
    let own4 = format!("\"{port}\" . 0x{mac} . 0x0a010263");
    let own6 = format!("\"{port}\" . 0x{mac} . 0xfd000000000000000000000000000099");
    let other = format!("\"{port}\" . 0x020000000077");
    check().ok();
    for (surplus, passes) in [
        (("own4", &*own4), (true, false)),
        (("own6", &*own6), (false, true)),
        (("nd6", &*own6), (false, false)),
        (("mac", &*other), (false, false)),
    ] {
        nft("add", surplus);
        assert_eq!(forged(&scene), passes, "{surplus:?}");
        let answer = check();
        assert_eq!(answer.code(), 103, "{surplus:?}");
        assert!(answer.error().contains("the guard of interface"), "{}", answer.error());
        nft("delete", surplus);
        check().ok();
        assert_eq!(forged(&scene), (false, false), "{surplus:?}");
    }
    // GC takes it back, too.
    nft("add", ("own4", &own4));
    gc(&scene);
    check().ok();
    assert_eq!(forged(&scene), (false, false));
}

/// Rules for `allowedAddresses` of a configuration before.
#[test]
fn shared_rules_of_former_settings_go_when_nobody_uses_them() {
    let scene = Scene::with(By::Humanz, keys());
    let with = |allowed: &str| {
        let mut keys = keys();
        keys["allowedAddresses"] = json!([allowed]);
        conf("1.1.0", keys)
    };
    let shared = || {
        let rules = scene.run("nft list table netdev humanz").ok();
        rules.lines().filter(|line| line.trim().starts_with("chain routed-1")).count()
    };
    scene.host.add(&with("10.9.0.0/16"), "vpn");
    gc_of(&scene, &conf("1.1.0", keys()), &["attacker", "victim", "bystander", "vpn"]);
    assert_eq!(shared(), 1, "GC has led all pods to the rules of its configuration");
    Call::new("DEL", &conf("1.1.0", keys()), "vpn").run(&scene.host).ok();
    scene.host.add(&with("10.8.0.0/16"), "other");
    assert_eq!(shared(), 2);
    Call::new("DEL", &conf("1.1.0", keys()), "other").run(&scene.host).ok();
    gc(&scene);
    assert_eq!(shared(), 1);
    assert!(reaches(&scene));
    assert_eq!(forged(&scene), (false, false));
}
