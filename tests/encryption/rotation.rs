//! Hosts change their keys under traffic: no packet is lost, and none is in clear text.

use std::time::Duration;

use humanz::net::PublicKey;
use humanz::netlink::wireguard::Wireguard;
use humanz::plan::encryption::{Stage, device_names};
use serde_json::Value;

use crate::ENCRYPTED;
use crate::capture::Capture;
use crate::hosts::{Encrypted, device, encrypted, wait_for_routes};
use crate::stream::Stream;
use crate::support::node::{Place, command};
use crate::support::ping::{Pinger, Report};
use crate::support::wait::eventually;
use crate::support::{Agent, Node};

/// Two times as long as all hosts must be silent on a device, and some more.
pub const CHANGED: Duration = Duration::from_secs(90);

pub const KEY_FILE: &str = "/var/lib/humanz/wireguard.key";

fn has_second(host: &Node) -> bool {
    let [_, second] = device_names();
    host.run(&format!("ip link show {second}")).succeeded()
}

pub fn key(host: &Node) -> PublicKey {
    device(host).public_key.unwrap()
}

/// As an operator does.
pub fn ask(host: &Node) {
    let asked = Agent::run(host, "encryption rotate", ENCRYPTED).ok();
    assert!(asked.starts_with("asked: the agent begins at its next regular check"), "{asked}");
}

/// The host has another key than `old`, and no host has a second device any more.
pub fn wait_for_change(all: &Encrypted, number: usize, old: PublicKey) {
    eventually("the key is changed", CHANGED, || {
        let now = key(all.host(number));
        let hosts = || all.cluster.hosts.iter();
        let second: Vec<bool> = hosts().map(has_second).collect();
        if now != old && !second.contains(&true) {
            return Ok(());
        }
        Err(format!("{now} was {old}; second devices: {second:?}"))
    });
}

/// Traffic of both families, both ways, between the hosts of one segment and across the router.
pub struct Traffic {
    pingers: Vec<Pinger>,
    /// From a pod, and from a host.
    streams: [Stream; 2],
    capture: Capture,
}

impl Traffic {
    pub fn start(all: &Encrypted) -> Traffic {
        let capture = Capture::start(&all.cluster);
        let [one, two, three] = &all.pods[..] else { panic!("three pods") };
        let pairs = [(one, two.v4()), (three, one.v6())];
        let pingers = pairs.map(|(from, to)| Pinger::start(from, to)).into();
        let host = all.host(1);
        // A program of the host that is bound to the address of that.
        let from = [(one.spot(), one.v4()), (host.spot(), host.v4().into())];
        let streams = from.map(|(from, source)| Stream::start(&from, source, two));
        Traffic { pingers, streams, capture }
    }

    pub fn assert_nothing_lost(self, when: &str) {
        for report in self.assert_whole(when) {
            assert!(report.lost.is_empty(), "{report:?}");
        }
    }

    /// Nothing was in clear text, and the streams have all their bytes.
    pub fn assert_whole(self, when: &str) -> Vec<Report> {
        self.capture.assert_encrypted(when);
        let pauses = self.streams.map(Stream::assert_whole);
        println!("{when}: the streams are whole, their longest pauses were {pauses:?}");
        let reports: Vec<Report> = self.pingers.into_iter().map(Pinger::report).collect();
        for report in &reports {
            println!("{when}: {}: {} sent, {} lost", report.name, report.sent, report.lost.len());
        }
        reports
    }
}

#[test]
fn a_change_of_the_key_loses_nothing_and_sends_nothing_in_clear_text() {
    let Some(all) = encrypted() else { return };
    let traffic = Traffic::start(&all);
    for number in [1, 2] {
        let old = key(all.host(number));
        ask(all.host(number));
        wait_for_change(&all, number, old);
        let claim = all.cluster.etcd.get(&format!("/humanz/v1/wireguard/h{number}"));
        assert_eq!(claim, Some(format!("{} {old}", key(all.host(number)))));
        let mode = all.host(number).run(&format!("stat -c %a {KEY_FILE}")).ok();
        assert_eq!(mode.trim(), "600");
        for host in all.cluster.hosts.iter() {
            let peers = device(host).peers;
            assert!(peers.iter().all(|peer| peer.key != old), "{}", host.name());
            wait_for_routes(host, 4);
        }
    }
    traffic.assert_nothing_lost("two hosts changed keys");
    all.all_reach();
}

/// Nobody asks: the file says that the key was made before the last week.
#[test]
fn a_key_that_is_older_than_a_week_is_changed_without_loss() {
    let Some(mut all) = encrypted() else { return };
    let traffic = Traffic::start(&all);
    let old = key(all.host(1));
    all.agents[0].kill();
    let text = all.host(1).read(KEY_FILE).unwrap();
    let mut file: Value = serde_json::from_str(&text).unwrap();
    file["made"] = (file["made"].as_u64().unwrap() - 8 * 24 * 3600).into();
    all.host(1).write(KEY_FILE, &file.to_string());
    all.restart(1);
    wait_for_change(&all, 1, old);
    let text = all.host(1).read(KEY_FILE).unwrap();
    let now: Value = serde_json::from_str(&text).unwrap();
    assert!(now["made"].as_u64() > file["made"].as_u64().map(|made| made + 7 * 24 * 3600));
    traffic.assert_nothing_lost("a key of eight days ago was changed");
}

/// The stage that the key file of the host says.
fn stage(host: &Node) -> Stage {
    let text = host.run(&format!("cat {KEY_FILE}")).ok();
    let file: Value = serde_json::from_str(&text).unwrap();
    Stage::of(&file["privateKey"], file.get("nextKey"))
}

/// At once, not when the agent has done what belongs to the stage.
fn wait_for_stage(host: &Node, wanted: Stage) {
    eventually(&format!("{}: {wanted:?}", host.name()), CHANGED, || match stage(host) {
        found if found == wanted => Ok(()),
        found => Err(format!("{found:?}")),
    });
}

/// A host that is killed has saved less than it knew: here it has the state of a whole change before.
#[test]
fn a_host_that_starts_without_etcd_takes_no_way_from_the_key_that_another_one_has_now() {
    const SAVED: &str = "/var/lib/humanz/state.json";
    let Some(mut all) = encrypted() else { return };
    let traffic = Traffic::start(&all);
    let old = key(all.host(1));
    let saved = || all.host(2).read(SAVED).unwrap_or_default();
    let steady = saved();
    assert!(steady.contains(&old.to_string()), "{steady}");
    ask(all.host(1));
    let mut leaving = String::new();
    eventually("the next key is saved", CHANGED, || {
        leaving = saved();
        if leaving.contains("next") { Ok(()) } else { Err(leaving.clone()) }
    });
    wait_for_change(&all, 1, old);
    let now = key(all.host(1));
    for former in [leaving, steady] {
        all.cluster.etcd.kill();
        all.agents[1].kill();
        all.host(2).write(SAVED, &former);
        all.restart(2);
        assert!(device(all.host(2)).peers.iter().any(|peer| peer.key == now), "it is taken away");
        all.all_reach();
        all.cluster.etcd.restart();
        wait_for_change(&all, 1, old);
    }
    traffic.assert_nothing_lost("the other host had a former key on disk");
}

const STAGES: [Stage; 3] = [Stage::Leaving, Stage::Returning, Stage::Steady];

#[test]
fn an_agent_that_is_killed_at_each_stage_goes_on_and_nothing_is_lost() {
    let Some(mut all) = encrypted() else { return };
    let traffic = Traffic::start(&all);
    let old = key(all.host(1));
    ask(all.host(1));
    for wanted in STAGES {
        wait_for_stage(all.host(1), wanted);
        all.agents[0].kill();
        assert_eq!(stage(all.host(1)), wanted, "it was killed too late");
        all.restart(1);
        println!("killed at {wanted:?}");
    }
    wait_for_change(&all, 1, old);
    traffic.assert_nothing_lost("the agent was killed at each stage");
}

#[test]
fn etcd_may_be_away_at_each_stage_and_the_agent_start_anew_meanwhile() {
    let Some(mut all) = encrypted() else { return };
    let traffic = Traffic::start(&all);
    let old = key(all.host(1));
    ask(all.host(1));
    for wanted in STAGES {
        wait_for_stage(all.host(1), wanted);
        all.cluster.etcd.kill();
        all.agents[0].kill();
        all.restart(1);
        all.agents[1].kill();
        all.restart(2);
        assert_eq!(stage(all.host(1)), wanted, "no step without etcd");
        all.cluster.etcd.restart();
        println!("etcd was away at {wanted:?}");
    }
    wait_for_change(&all, 1, old);
    traffic.assert_nothing_lost("etcd was away at each stage");
}

/// The first device stays in use until the host behind the firewall is reached by the second one.
#[test]
fn a_change_whose_port_a_firewall_blocks_waits_and_loses_nothing() {
    let Some(all) = encrypted() else { return };
    let traffic = Traffic::start(&all);
    let old = key(all.host(1));
    let block = "table inet theirs { chain in { \
                 type filter hook input priority -200; udp dport 10402 drop; }; }";
    all.host(2).run_command(&mut command("nft -f -"), block).ok();
    ask(all.host(1));
    eventually("h3 is reached by the second device", CHANGED, || {
        let [_, second] = device_names();
        let found = all.host(1).inside(|| Wireguard::open().unwrap().unwrap().device(&second));
        let peers = found.map_err(|error| error.to_string())?.peers;
        let reached = peers.iter().filter(|peer| peer.last_handshake.is_some()).count();
        if reached == 1 { Ok(()) } else { Err(format!("{reached} of {}", peers.len())) }
    });
    // Two times as long as all hosts must be silent on the device that is left.
    std::thread::sleep(Duration::from_secs(30));
    assert_eq!(stage(all.host(1)), Stage::Leaving);
    all.host(2).run("nft delete table inet theirs").ok();
    wait_for_change(&all, 1, old);
    traffic.assert_nothing_lost("the second port was blocked for a while");
}

/// The records of etcd are of a time before the change: the host puts its own back.
#[test]
fn an_etcd_restored_from_before_a_change_of_the_key_gets_the_new_one_back() {
    let Some(all) = encrypted() else { return };
    let old = key(all.host(1));
    all.cluster.etcd.keep_copy();
    ask(all.host(1));
    wait_for_change(&all, 1, old);
    let new = key(all.host(1));
    let capture = Capture::start(&all.cluster);
    all.cluster.etcd.restart_from_copy();
    eventually("the new key is claimed again", CHANGED, || {
        let claim = all.cluster.etcd.get("/humanz/v1/wireguard/h1").unwrap_or_default();
        if claim.starts_with(&new.to_string()) { Ok(()) } else { Err(claim) }
    });
    assert_eq!(key(all.host(1)), new);
    for other in [2, 3] {
        eventually(&format!("h{other} has the new key"), CHANGED, || {
            let peers = device(all.host(other)).peers;
            let has = peers.iter().any(|peer| peer.key == new && peer.last_handshake.is_some());
            if has { Ok(()) } else { Err(format!("{peers:?}")) }
        });
    }
    all.all_reach();
    capture.assert_encrypted("etcd was restored from before a change");
}
