//! Guards on a host without an agent, after somebody changed nftables: what CHECK says of them, and what
//! the next ADD or GC makes of them.

use serde_json::{Value, json};

use crate::packets::{self, IPV4, ethernet};
use crate::scene::{At, By, Scene, marked4, marked6};
use crate::support::Place;
use crate::support::plugin_host::{Answer, Call, conf};

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
        ("nft insert rule netdev humanz routed-2 accept", false),
        ("nft flush table netdev humanz", true),
        ("nft flush chain netdev humanz routed-2", true),
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

/// Somebody gives a pod another address or MAC to send under. CHECK does not look for it, so that its
/// cost does not grow with the pods of the host.
#[test]
fn gc_takes_back_what_lets_more_pass() {
    let scene = Scene::with(By::Humanz, keys());
    let (port, mac) = key(&scene);
    let own4 = format!("{port} . 0x{mac} . 0x0a010263");
    let own6 = format!("{port} . 0x{mac} . 0xfd000000000000000000000000000099");
    let other = format!("{port} . 0x020000000077");
    check(&scene).ok();
    for (set, key, passes) in [
        ("own4", &own4, (true, false)),
        ("own6", &own6, (false, true)),
        ("nd6", &own6, (false, false)),
        ("mac", &other, (false, false)),
    ] {
        nft(&scene, &format!("add element netdev humanz {set} {{ {key} }}"));
        assert_eq!(forged(&scene), passes, "{set}");
        gc(&scene);
        let listed = scene.run(&format!("nft get element netdev humanz {set} {{ {key} }}"));
        assert!(!listed.succeeded(), "{set}: {}", listed.stdout);
        assert_eq!(forged(&scene), (false, false), "{set}");
    }
}

#[test]
fn check_says_what_is_missing_or_changed_of_a_guard() {
    let scene = Scene::with(By::Humanz, keys());
    let (port, mac) = key(&scene);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let attacker = scene.attacker;
    let own4 = format!("own4 {{ {port} . 0x{mac} . 0x{} }}", hex(&attacker.v4.octets()));
    let of =
        |set: &str, address: &[u8]| format!("{set} {{ {port} . 0x{mac} . 0x{} }}", hex(address));
    let [own6, nd6] = ["own6", "nd6"].map(|set| of(set, &attacker.v6.octets()));
    let link_local = of("nd6", &attacker.link_local().octets());
    let (mac, host) = (format!("mac {{ {port} . 0x{mac} }}"), format!("port {{ {port} }}"));
    check(&scene).ok();
    for element in [own4, own6, nd6, link_local, mac, host] {
        nft(&scene, &format!("delete element netdev humanz {element}"));
        assert_unguarded(&scene, &element);
        gc(&scene);
        check(&scene).ok();
    }
    let other_mac = format!(
        "delete element netdev humanz port {{ {port} }}; \
         add element netdev humanz port {{ {port} : 0x020000000077 }}"
    );
    for broken in [
        "add table netdev humanz { flags dormant; }",
        "insert rule netdev humanz routed-2 accept",
        "insert rule netdev humanz drop-mac accept",
        "flush chain netdev humanz drop-source",
        &format!("flush chain netdev humanz {}", scene.port(&attacker)),
        &other_mac,
    ] {
        nft(&scene, broken);
        assert_unguarded(&scene, broken);
        gc(&scene);
        check(&scene).ok();
    }
}

#[test]
fn check_reads_no_more_beside_many_pods() {
    let scene = Scene::with(By::Humanz, keys());
    let bytes = || {
        let traced = "strace -f -qq -o /run/trace -e trace=recvfrom";
        check_call(&scene).under(traced).run(&scene.host).ok();
        let sum = "awk -F' = ' '$NF > 0 {sum += $NF} END {print sum}' /run/trace";
        scene.shell(sum).ok().trim().parse::<u64>().unwrap()
    };
    let alone = bytes();
    for number in 0..20 {
        scene.host.add(&conf("1.1.0", keys()), &format!("more{number}"));
    }
    let beside = bytes();
    assert!(alone > 1000 && beside <= alone + alone / 20, "{alone} bytes, then {beside}");
}

/// Index and MAC of the attacker, as nft writes them in keys.
fn key(scene: &Scene) -> (String, String) {
    let mac = scene.attacker.mac.map(|byte| format!("{byte:02x}")).concat();
    (format!("\"{}\"", scene.port(&scene.attacker)), mac)
}

fn nft(scene: &Scene, line: &str) {
    scene.run(&format!("nft {line}")).ok();
}

fn check_call(scene: &Scene) -> Call {
    let conf = conf("1.1.0", keys());
    let mut result = scene.result.clone();
    result["cniVersion"] = conf["cniVersion"].clone();
    Call::new("CHECK", &conf, "attacker").key("prevResult", result)
}

fn check(scene: &Scene) -> Answer {
    check_call(scene).run(&scene.host)
}

fn assert_unguarded(scene: &Scene, broken: &str) {
    let answer = check(scene);
    assert_eq!(answer.code(), 103, "{broken}");
    assert!(answer.error().contains("the guard of interface"), "{broken}: {}", answer.error());
}

/// Rules for `allowedAddresses` of a configuration before.
#[test]
fn shared_rules_of_former_settings_go_when_no_port_uses_them() {
    let scene = Scene::with(By::Humanz, keys());
    let with = |allowed: &str| {
        let mut keys = keys();
        keys["allowedAddresses"] = json!([allowed]);
        conf("1.1.0", keys)
    };
    let shared = || {
        let rules = scene.run("nft list table netdev humanz").ok();
        rules.lines().filter(|line| line.trim().starts_with("chain routed-2")).count()
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
