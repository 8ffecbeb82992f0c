//! WireGuard in user space at the other end: what humanz gives a device works with an implementation that is not the
//! kernel's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use humanz::net::{Family, PerFamily, PresharedSecret, PrivateKey, PublicKey};
use humanz::netlink::wireguard::NewWireguardPeer;
use humanz::plan::encryption::{EncryptedPeer, PeerChange, Preshared, missing_peers};
use humanz::plan::firewall::encryption::{ARRIVING, LEAVING};

use crate::capture::Capture;
use crate::guard::{dropped, guard, in_clear_text, ping};
use crate::hosts::encrypted;
use crate::support::node::{Place, command};
use crate::support::process::Process;
use crate::support::wait::SOON;
use crate::support::{Node, local};

const PORT: u16 = 10401;

/// A device of this name until the process ends.
pub fn device(host: &Node, name: &str) -> Process {
    let process = host.spawn(&mut command(&format!("wireguard-go -f {name}")));
    host.until_ok(&format!("wg show {name}"), SOON);
    process
}

/// Gives the device its key, and gives back the public one.
fn give_key(host: &Node, key: &PrivateKey) -> PublicKey {
    let mut set = command(&format!("wg set humanz-wg listen-port {PORT} private-key /dev/stdin"));
    host.run_command(&mut set, &key.secret_text()).ok();
    host.run("wg show humanz-wg public-key").ok().trim().parse().unwrap()
}

/// The other host as an agent plans it.
fn planned(
    own: PublicKey,
    key: PublicKey,
    number: u8,
    host: &Node,
    secret: &str,
) -> NewWireguardPeer {
    let secret: PresharedSecret = secret.parse().unwrap();
    let (v4, v6) = (host.v4(), host.v6());
    let peer = EncryptedPeer {
        key,
        address: v4.into(),
        addresses: PerFamily { v4: Some(v4.into()), v6: Some(v6.into()) },
        port: PORT,
        rotation_port: None,
        next: None,
        host: host.name().parse().unwrap(),
        alive: true,
        subnets: vec![
            format!("10.244.{number}.0/24").parse().unwrap(),
            format!("fd10:244:0:{number}::/64").parse().unwrap(),
        ],
        mtu_bytes: None,
    };
    let keys = Preshared { secret: Some(&secret), own: Some(own) };
    match missing_peers(&[peer], keys, &[]).pop() {
        Some(PeerChange::Set(_, new)) => new,
        other => panic!("{other:?}"),
    }
}

fn set_peer(host: &Node, peer: &NewWireguardPeer) {
    let allowed: Vec<String> = peer.allowed.iter().map(ToString::to_string).collect();
    let mut set = command(&format!(
        "wg set humanz-wg peer {} preshared-key /dev/stdin endpoint {} allowed-ips {}",
        peer.key,
        peer.endpoint.unwrap(),
        allowed.join(","),
    ));
    let secret = peer.preshared.as_ref().unwrap().secret_bytes();
    host.run_command(&mut set, &STANDARD.encode(secret)).ok();
}

#[test]
fn keys_and_peers_as_planned_connect_devices_in_user_space() {
    let cluster = in_clear_text();
    let [one, two] = &cluster.hosts[..] else { panic!("two hosts") };
    let capture = Capture::start(&cluster);
    let _devices = [one, two].map(|host| device(host, "humanz-wg"));
    let keys =
        [(one, 1), (two, 2)].map(|(host, byte)| give_key(host, &PrivateKey::of_random([byte; 32])));
    let give = |secrets: [&str; 2]| {
        set_peer(one, &planned(keys[0], keys[1], 2, two, secrets[0]));
        set_peer(two, &planned(keys[1], keys[0], 1, one, secrets[1]));
    };
    for (host, far) in [(one, 2), (two, 1)] {
        host.shell(&format!(
            "ip link set humanz-wg up mtu 1420
             ip route replace 10.244.{far}.0/24 dev humanz-wg
             ip -6 route replace fd10:244:0:{far}::/64 dev humanz-wg"
        ))
        .ok();
    }
    guard(one, two, true);
    guard(two, one, true);
    let secret = |byte| STANDARD.encode([byte; 32]);
    give([&secret(1), &secret(2)]);
    assert!(!one.run(ping(Family::V4)).succeeded(), "with another secret");
    give([&secret(1), &secret(1)]);
    for family in Family::BOTH {
        one.until_ok(ping(family), SOON);
    }
    assert_eq!((dropped(one, LEAVING), dropped(two, ARRIVING)), (0, 0));
    capture.assert_encrypted("between devices in user space");
}

/// What each line that this command prints is made into.
fn lines(host: &Node, line: &str, made: impl Fn(&str) -> String) -> String {
    host.run(line).ok().lines().map(made).collect()
}

/// Its device is exchanged for one with the same keys and peers, as on a host whose kernel has none.
#[test]
fn agents_reach_a_host_whose_wireguard_is_in_user_space() {
    let Some(mut all) = encrypted() else { return };
    let capture = Capture::start(&all.cluster);
    all.agents.pop().unwrap().stop();
    let host = all.host(3).clone();
    let addresses = lines(&host, "ip -o address show dev humanz-wg", |line| {
        let address = line.split_whitespace().nth(3).unwrap();
        format!("ip address add {address} dev humanz-wg\n")
    });
    let routes = ["-4", "-6"].map(|family| {
        lines(&host, &format!("ip {family} route show dev humanz-wg proto 104"), |route| {
            format!("ip {family} route add {route} proto 104 dev humanz-wg\n")
        })
    });
    host.shell("umask 077; wg showconf humanz-wg >/run/wg.conf; ip link delete humanz-wg").ok();
    let _device = device(&host, "humanz-wg");
    let [v4, v6] = routes;
    host.shell(&format!(
        "set -e
         wg setconf humanz-wg /run/wg.conf
         {addresses}ip link set humanz-wg up mtu 1440
         {v4}{v6}"
    ))
    .ok();
    for address in all.pods[2].addresses() {
        all.pods[0].until_ok(&format!("ping -n -c 1 -W 1 {address}"), SOON);
    }
    all.all_reach();
    capture.assert_encrypted("with a host in user space");
    let status = local::status(all.host(1));
    let peers = status["peers"].as_array().unwrap().iter();
    let peer = peers.into_iter().find(|peer| peer["name"] == "h3").unwrap();
    assert!(peer["encryption"]["handshake_seconds"].as_f64().unwrap() < 180.0, "{peer}");
}
