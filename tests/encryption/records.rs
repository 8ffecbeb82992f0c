//! Node records and claims of keys that are lost, come late, come again or are somebody else's making, and copies of
//! a host that encrypts: the devices keep to each host's own key, and no packet is in clear text.

use humanz::net::PublicKey;
use humanz::plan::firewall::encryption::FOREIGN;

use crate::ENCRYPTED;
use crate::capture::Capture;
use crate::guard::dropped;
use crate::hosts::{
    Encrypted, device, encrypted, record_key, unanswered, wait_for_routes, wait_for_sessions,
};
use crate::refused::shows_the_reason;
use crate::rotation::{self, CHANGED, KEY_FILE, Traffic, key, wait_for_change};
use crate::support::node::Place;
use crate::support::wait::{SOON, eventually};
use crate::support::{Agent, Cluster, Node, Pod, kernel, local};

fn claim_key(host: &str) -> String {
    format!("/humanz/v1/wireguard/{host}")
}

/// Another host has a way to this key, and answers came by it.
fn wait_for_peer(host: &Node, key: PublicKey) {
    eventually(&format!("{}: a session with {key}", host.name()), CHANGED, || {
        let peers = device(host).peers;
        let has = peers.iter().any(|peer| peer.key == key && peer.last_handshake.is_some());
        if has { Ok(()) } else { Err(format!("{peers:?}")) }
    });
}

/// The record of h2 is again the one it wrote, its key is claimed, and the other hosts reach it.
fn wait_for_own(all: &Encrypted, record: &str, key: PublicKey) {
    let etcd = &all.cluster.etcd;
    eventually("the record is put back", SOON, || {
        let now = etcd.get(&record_key("h2"));
        if now.as_deref() == Some(record) { Ok(()) } else { Err(format!("{now:?}")) }
    });
    eventually("the key is claimed", SOON, || {
        let now = etcd.get(&claim_key("h2")).unwrap_or_default();
        if now.starts_with(&key.to_string()) { Ok(()) } else { Err(now) }
    });
    for other in [1, 3] {
        wait_for_peer(all.host(other), key);
    }
}

#[test]
fn records_that_come_again_or_are_lost_or_forged_cut_no_connection() {
    let Some(all) = encrypted() else { return };
    let etcd = &all.cluster.etcd;
    let both = || (etcd.get(&record_key("h2")).unwrap(), etcd.get(&claim_key("h2")).unwrap());
    let (old_record, old_claim) = both();
    let old = key(all.host(2));
    rotation::ask(all.host(2));
    wait_for_change(&all, 2, old);
    let (record, claim) = both();
    assert_ne!((&record, &claim), (&old_record, &old_claim));
    let now = key(all.host(2));

    let traffic = Traffic::start(&all);
    let none = format!("{}=", "A".repeat(43));
    let hostile: [&str; 6] = [
        &old_record,
        &record.replace(&now.to_string(), &none),
        &record.replace(&now.to_string(), "x"),
        &record.replace("10401", "0"),
        "{}",
        &"[".repeat(100_000),
    ];
    for value in hostile {
        etcd.put(&record_key("h2"), value);
        wait_for_own(&all, &record, now);
    }
    for value in [&old_claim, &format!("{none} {now}"), ""] {
        etcd.put(&claim_key("h2"), value);
        wait_for_own(&all, &record, now);
    }
    for at in [record_key("h2"), claim_key("h2")] {
        etcd.delete(&at);
        wait_for_own(&all, &record, now);
    }
    // Where the owner was not the first to see it, the way was closed until its record was back.
    traffic.assert_whole("records came again, were lost and forged");
    all.all_reach();
}

/// The host cannot put it back meanwhile.
#[test]
fn a_record_that_is_missing_and_comes_late_lets_nothing_out_in_clear_text() {
    let Some(mut all) = encrypted() else { return };
    let capture = Capture::start(&all.cluster);
    all.all_reach();
    let before = key(all.host(2));
    all.agents[1].kill();
    all.cluster.etcd.delete(&record_key("h2"));
    wait_for_routes(all.host(1), 2);
    unanswered(&all.pods[0], all.pods[1].v4());
    capture.assert_encrypted("h2 has no record");
    all.restart(2);
    assert_eq!(key(all.host(2)), before);
    for host in &all.cluster.hosts {
        wait_for_routes(host, 4);
    }
    all.pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", all.pods[1].v4()), SOON);
    capture.assert_encrypted("the record came late");
}

/// Three hosts that encrypt and a fourth one with the disk of the first, which has not started yet.
fn with_copy() -> Option<(Encrypted, Node)> {
    if !kernel::has_wireguard() {
        shows_the_reason();
        return None;
    }
    let cluster = Cluster::new(4);
    let [hosts @ .., copy] = &cluster.hosts[..] else { unreachable!("four hosts") };
    let agents: Vec<Agent> = hosts.iter().map(|host| Agent::start(host, ENCRYPTED)).collect();
    for agent in &agents {
        agent.wait_ready();
    }
    hosts.iter().for_each(|host| wait_for_sessions(host, 2));
    let pods = hosts.iter().map(|host| Pod::add(host, "a")).collect();
    copy.run("mkdir -p /var/lib/humanz").ok();
    for file in ["/etc/machine-id", "/var/lib/humanz/state.json", KEY_FILE] {
        copy.write(file, &hosts[0].read(file).unwrap());
    }
    copy.run(&format!("chmod 600 {KEY_FILE}")).ok();
    let copy = copy.clone();
    Some((Encrypted { agents, pods, cluster }, copy))
}

fn as_first() -> Vec<(&'static str, &'static str)> {
    [ENCRYPTED, &[("NODE_NAME", "h1")]].concat()
}

fn wait_until_refused(copy: &Node) {
    eventually("the copy does not serve", 2 * SOON, || {
        local::connect(copy).map_err(|error| error.to_string())?;
        let (code, body) = local::get(copy, "/readyz");
        if code == 503 && body.contains("machine id") { Ok(()) } else { Err(body) }
    });
}

/// It has the private key and cannot know better: who let it in would send it the packets of the original.
#[test]
fn a_copy_that_serves_without_etcd_gets_no_packet_of_the_original() {
    let Some((all, copy)) = with_copy() else { return };
    let others = [all.host(2), all.host(3)];
    let before = others.map(|host| dropped(host, FOREIGN));
    let traffic = Traffic::start(&all);
    all.cluster.part(&copy, &all.cluster.etcd.node);
    let started = Agent::start(&copy, &as_first());
    started.wait_ready();
    for (host, before) in others.into_iter().zip(before) {
        eventually(&format!("the copy asks {}", host.name()), SOON, || {
            let now = dropped(host, FOREIGN);
            if now > before { Ok(()) } else { Err(format!("{now} dropped")) }
        });
    }
    all.cluster.join();
    wait_until_refused(&copy);
    assert!(device(&copy).peers.iter().all(|peer| peer.last_handshake.is_none()));
    traffic.assert_nothing_lost("a copy of h1 served without etcd");
    all.all_reach();
    started.stop();
}
