//! Pods of a manually configured network beside the agent's on its bridge: the port flags of that
//! network apply when the agent reattaches them.

use serde_json::json;

use crate::support::cni::Network;
use crate::support::wait::SOON;
use crate::support::{Node, Place, Pod, eventually, soon};
use crate::{alone, serve};

/// The agent's network on this host, with more in it.
fn network(host: &Node, more: &[(&str, bool)]) -> Network {
    let mut network = Network::of(host);
    for (key, value) in more {
        network.plugins[0][*key] = json!(value);
    }
    network
}

/// CHECK says that the pod is as ADD made it.
fn is_whole(pod: &Pod) {
    let check = || pod.check().map_err(|error| error.to_string());
    eventually(&format!("CHECK of {}", pod.label()), SOON, check);
}

fn reaches(pod: &Pod, to: &str) -> bool {
    pod.run(&format!("ping -n -c 1 -W 1 {to}")).succeeded()
}

fn reaches_soon(pod: &Pod, to: &str) {
    pod.until_ok(&format!("ping -n -c 1 -W 1 {to}"), SOON);
}

/// Deletes the bridge under the agent.
fn lose_bridge(host: &Node) {
    let before = host.read("/sys/class/net/humanz0/ifindex");
    host.run("ip link del humanz0").ok();
    eventually("there is another bridge", SOON, || {
        match host.read("/sys/class/net/humanz0/ifindex") {
            index if index.is_some() && index != before => Ok(()),
            index => Err(format!("{index:?}")),
        }
    });
}

#[test]
fn a_pod_that_is_taken_off_the_bridge_is_back_at_once() {
    let alone = alone();
    let host = &alone.host;
    let _agent = serve(host, &[("RESYNC_INTERVAL", "3600s")]);
    let pod = Pod::try_add(host, "c1", &network(host, &[])).unwrap();
    // The agent must have received the link event of the pod first.
    reaches_soon(&pod, "10.244.1.1");
    for _ in 0..3 {
        host.shell("ip link set $(ls /sys/class/net/humanz0/brif) nomaster").ok();
        reaches_soon(&pod, "10.244.1.1");
        is_whole(&pod);
    }
}

#[test]
fn pods_are_reattached_with_the_same_port_flags() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pod = |name: &str, more: &[(&str, bool)]| {
        Pod::try_add(host, name, &network(host, more)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let usual = pod("usual", &[]);
    let locked = pod("locked", &[("macspoofchk", true)]);
    let isolated = [pod("one", &[("portIsolation", true)]), pod("two", &[("portIsolation", true)])];
    let all = pod("all", &[("macspoofchk", true), ("portIsolation", true), ("hairpinMode", false)]);
    let gateway = "10.244.1.1";
    for _ in 0..2 {
        lose_bridge(host);
        for pod in [&usual, &locked, &isolated[0], &isolated[1], &all] {
            is_whole(pod);
            reaches_soon(pod, gateway);
            reaches_soon(pod, "fd10:0:0:1::1");
        }
        reaches_soon(&locked, &usual.v4().to_string());
        assert!(!reaches(&isolated[0], &isolated[1].v4().to_string()), "they are isolated");
        assert!(!reaches(&isolated[0], &all.v4().to_string()), "they are isolated");
        for pod in [&locked, &all] {
            drops_frames_with_another_mac(pod, gateway);
        }
    }
    agent.stop();
}

fn drops_frames_with_another_mac(pod: &Pod, gateway: &str) {
    let output = pod.run("ip -o link show eth0").ok();
    let (_, own) = output.split_once("link/ether ").unwrap();
    let (own, _) = own.split_once(' ').unwrap();
    for foreign in ["02:00:00:00:00:99", "0a:58:0a:f4:01:02"] {
        pod.run(&format!("ip link set eth0 address {foreign}")).ok();
        assert!(!reaches(pod, gateway), "{}: sent as {foreign}", pod.label());
    }
    pod.run(&format!("ip link set eth0 address {own}")).ok();
    reaches_soon(pod, gateway);
}

#[test]
fn an_isolated_pod_is_not_for_a_moment_up_and_a_usual_port() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let isolated = [("portIsolation", true)];
    let pod = Pod::try_add(host, "a", &network(host, &isolated)).unwrap_or_else(|e| panic!("{e}"));
    let output = host.run("ip -o link show master humanz0").ok();
    let port = output.split([':', '@']).nth(1).unwrap().trim().to_owned();
    let monitor = host.spawn(&mut crate::support::node::command("ip -o monitor link"));
    soon("the monitor receives events", || {
        host.shell("ip link add poke type bridge; ip link del poke").ok();
        monitor.log().contains("poke")
    });
    lose_bridge(host);
    is_whole(&pod);
    let index = host.read("/sys/class/net/humanz0/ifindex").unwrap();
    let bridge = format!("{}: humanz0:", index.trim());
    let plugged = eventually("the monitor shows the pod's attachment", SOON, || {
        let log = monitor.log();
        let new = log.lines().skip_while(|line| !line.starts_with(&bridge));
        let mut at_port = new.filter(|line| line.contains(&port) && line.contains(" master "));
        at_port.next().map(str::to_owned).ok_or(log.clone())
    });
    let flags = plugged.split(['<', '>']).nth(1).unwrap();
    assert!(!flags.split(',').any(|flag| flag == "UP"), "{plugged}");
    reaches_soon(&pod, "10.244.1.1");
    agent.stop();
}

#[test]
fn a_pod_that_spoofs_while_the_bridge_is_away_gets_not_one_frame_through() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let locked = [("macspoofchk", true)];
    let pod = Pod::try_add(host, "a", &network(host, &locked)).unwrap_or_else(|e| panic!("{e}"));
    pod.run("ip link set eth0 address 02:00:00:00:00:99").ok();
    let mut flood = crate::support::node::command("ping -q -f 10.244.1.1");
    let flood = pod.spawn(&mut flood);
    for _ in 0..5 {
        lose_bridge(host);
        is_complete_except_its_mac(&pod);
        let learned = host.run("bridge fdb show br humanz0").ok();
        assert!(!learned.contains("02:00:00:00:00:99"), "{learned}");
    }
    drop(flood);
    agent.stop();
}

fn is_complete_except_its_mac(pod: &Pod) {
    eventually("its port is locked again", SOON, || match pod.check() {
        Err(error) if error.to_string().contains("locked") => Err(error.to_string()),
        Err(error) if error.to_string().contains("port of") => Err(error.to_string()),
        _ => Ok(()),
    });
}

/// Until the clock came to that time again its port stayed down, and status said that nothing is wrong.
#[test]
fn a_pod_from_before_the_clock_was_set_back_is_plugged_in_again() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[("RESYNC_INTERVAL", "1s")]);
    for time in ["1000000000", "4102444800"] {
        let pod = Pod::add(host, &format!("at{time}"));
        let later = format!("s/\"time\":[0-9]*/\"time\":{time}/");
        host.shell(&format!("sed -i '{later}' /run/humanz/ipam/humanz/owners/at{time}:*")).ok();
        host.shell(&format!("sed -i '{later}' /run/humanz/ipam/humanz/{}", pod.v4())).ok();
        let port = host.shell("ls /sys/class/net | grep '^hz'").ok();
        let port = port.trim();
        host.shell(&format!("ip link set {port} down; nft delete table netdev humanz")).ok();
        soon("its port is up, with a guard", || {
            let is_up = host.run(&format!("ip link show {port} up")).stdout.contains(port);
            is_up && host.run("nft list table netdev humanz").stdout.contains(port)
        });
        pod.delete();
    }
    agent.stop();
}
