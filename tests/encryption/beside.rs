//! Beside other software with devices, marks and rules of its own.

use std::net::SocketAddr;

use humanz::net::PrivateKey;

use crate::ENCRYPTED;
use crate::capture::Capture;
use crate::hosts::{Encrypted, encrypted};
use crate::refused::shows_the_reason;
use crate::rotation::{ask, key, wait_for_change};
use crate::support::echo::{Echo, ask_tcp};
use crate::support::node::Place;
use crate::support::process::Process;
use crate::support::wait::{SOON, eventually};
use crate::support::{Agent, Cluster, Node, Pod, kernel, local};
use crate::user_space::device;

const SERVICE: &str = "10.96.0.10:80";

fn secret(number: u8) -> String {
    PrivateKey::of_random([number; 32]).secret_text()
}

/// What Tailscale makes on a host, with the other host as the one peer: a TUN device, marked outer packets, a table
/// before the main one, chains. Source: Tailscale's `wgengine/router` for Linux.
fn tailscale(host: &Node, own: u8, other: &Node, far: u8) -> Process {
    let process = device(host, "tailscale0");
    let public = host.shell(&format!("echo {} | wg pubkey", secret(far))).ok();
    let marked = "fwmark 0x80000/0xff0000";
    host.shell(&format!(
        "set -e
         echo {} | wg set tailscale0 listen-port 41641 fwmark 0x80000 private-key /dev/stdin \\
            peer {} endpoint {}:41641 allowed-ips 100.64.0.{far}/32
         ip address add 100.64.0.{own}/32 dev tailscale0
         ip link set tailscale0 up mtu 1280
         ip rule add pref 5210 {marked} lookup main
         ip rule add pref 5230 {marked} lookup default
         ip rule add pref 5250 {marked} type unreachable
         ip rule add pref 5270 lookup 52
         ip route add 100.64.0.{far} dev tailscale0 table 52
         iptables -N ts-input
         iptables -I INPUT -j ts-input
         iptables -A ts-input -s 100.64.0.{own} -i lo -j ACCEPT
         iptables -A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP
         iptables -A ts-input -i tailscale0 -j ACCEPT
         iptables -A ts-input -p udp --dport 41641 -j ACCEPT
         iptables -N ts-forward
         iptables -I FORWARD -j ts-forward
         iptables -A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000
         iptables -A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT
         iptables -A ts-forward -s 100.64.0.0/10 -o tailscale0 -j DROP
         iptables -A ts-forward -o tailscale0 -j ACCEPT
         iptables -t nat -N ts-postrouting
         iptables -t nat -I POSTROUTING -j ts-postrouting
         iptables -t nat -A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE",
        secret(own),
        public.trim(),
        other.v4(),
    ))
    .ok();
    process
}

/// A service with one pod behind it, as kube-proxy makes it in its mode iptables.
fn kube_proxy(host: &Node, pod: &Pod) {
    let (service, port) = SERVICE.split_once(':').unwrap();
    host.shell(&format!(
        "set -e
         iptables -t nat -N KUBE-MARK-MASQ
         iptables -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
         iptables -t nat -N KUBE-POSTROUTING
         iptables -t nat -A POSTROUTING -j KUBE-POSTROUTING
         iptables -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
         iptables -t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
         iptables -t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
         iptables -t nat -N KUBE-SVC-WEB
         iptables -t nat -A KUBE-SVC-WEB ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
         iptables -t nat -A KUBE-SVC-WEB -p tcp -j DNAT --to-destination {}:{port}
         iptables -t nat -N KUBE-SERVICES
         iptables -t nat -A PREROUTING -j KUBE-SERVICES
         iptables -t nat -A OUTPUT -j KUBE-SERVICES
         iptables -t nat -A KUBE-SERVICES -d {service}/32 -p tcp --dport {port} -j KUBE-SVC-WEB",
        pod.v4(),
    ))
    .ok();
}

fn assert_all_work(all: &Encrypted, capture: &Capture, when: &str) {
    all.all_reach();
    let host = all.host(1);
    host.until_ok("ping -n -c 1 -W 1 100.64.0.2", SOON);
    let service: SocketAddr = SERVICE.parse().unwrap();
    assert_eq!(ask_tcp(&all.pods[0], service), Ok(all.pods[0].v4()), "{when}: a pod's call");
    let own = host.run("ip -4 -o address show dev humanz-wg").ok();
    let seen = ask_tcp(host, service).unwrap_or_else(|why| panic!("{when}: {why}"));
    assert!(own.contains(&format!(" {seen}/")), "{when}: the host's call, from {seen}: {own}");
    capture.assert_encrypted(when);
    let rules = host.run("ip rule").ok();
    assert_eq!(rules.lines().filter(|rule| rule.starts_with("52")).count(), 4, "{when}: {rules}");
    let status = local::status(host);
    for kind in ["route-conflict", "packet-lost", "packet-doubtful", "host-unreachable"] {
        assert!(!local::has_problem(&status, kind), "{when}: {status:#}");
    }
}

#[test]
fn tailscale_and_kube_proxy_work_beside_it_and_see_nothing_in_clear_text() {
    let Some(mut all) = encrypted() else { return };
    let capture = Capture::start(&all.cluster);
    let (one, two) = (all.host(1).clone(), all.host(2).clone());
    let _devices = [tailscale(&one, 1, &two, 2), tailscale(&two, 2, &one, 1)];
    let _echo = Echo::serve(&all.pods[2], 80);
    kube_proxy(&one, &all.pods[2]);
    assert_all_work(&all, &capture, "after the agents");
    all.agents[0].stop();
    all.restart(1);
    assert_all_work(&all, &capture, "before the agent");
}

/// An operator's, up before the agents, with a port of its own or the agent's.
fn operators_device(host: &Node, port: u16) {
    let key = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=";
    host.shell(&format!(
        "set -e
         ip link add wg0 type wireguard
         echo {} | wg set wg0 listen-port {port} private-key /dev/stdin \\
            peer {key} endpoint 192.0.2.77:51820 allowed-ips 10.9.0.0/24
         ip address add 10.9.0.1/24 dev wg0
         ip link set wg0 up",
        secret(8),
    ))
    .ok();
}

fn of_wg0(host: &Node) -> String {
    host.shell("wg showconf wg0; ip -o address show dev wg0; ip route show dev wg0").ok()
}

#[test]
fn a_wireguard_device_of_the_operator_stays_as_it_is() {
    let Some(mut all) = encrypted() else { return };
    let host = all.host(1).clone();
    operators_device(&host, 51820);
    let before = of_wg0(&host);
    all.restart(1);
    all.all_reach();
    let rotated = key(&host);
    ask(&host);
    wait_for_change(&all, 1, rotated);
    assert_eq!(of_wg0(&host), before);
    all.agents[0].stop();
    Agent::run(&host, "uninstall --force", ENCRYPTED).ok();
    assert_eq!(of_wg0(&host), before);
}

#[test]
fn a_port_that_another_device_has_is_a_problem_until_it_is_free() {
    if !kernel::has_wireguard() {
        return shows_the_reason();
    }
    let cluster = Cluster::new(2);
    let host = &cluster.hosts[0];
    operators_device(host, 10401);
    let before = of_wg0(host);
    let capture = Capture::start(&cluster);
    let agents: Vec<Agent> =
        cluster.hosts.iter().map(|host| Agent::start(host, ENCRYPTED)).collect();
    agents[1].wait_ready();
    eventually("the problem", SOON, || {
        let status = local::status(host);
        let of_port = local::problem(&status, "change-failed", "tunnel humanz-wg");
        let fix = of_port.and_then(|problem| problem["fix"].as_str()).unwrap_or_default();
        if fix.contains("set ENCRYPTION_PORT") { Ok(()) } else { Err(format!("{status:#}")) }
    });
    assert_eq!(of_wg0(host), before);
    host.run("ip link del wg0").ok();
    agents[0].wait_ready();
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), SOON);
    capture.assert_encrypted("the port is free again");
}
