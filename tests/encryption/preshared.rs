//! A secret that hosts have besides their keys: who has another one, or none, is not reached.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humanz::netlink::wireguard::{NewWireguardPeer, PeerEdit, Wireguard, WireguardPeer};
use humanz::plan::encryption::device_name;
use serde_json::Value;

use crate::ENCRYPTED;
use crate::hosts::{Encrypted, device, unanswered, wait_for_routes, wait_for_sessions};
use crate::refused::shows_the_reason;
use crate::rotation::{Traffic, ask, key, wait_for_change};
use crate::support::node::Place;
use crate::support::wait::{SOON, eventually};
use crate::support::{Agent, Cluster, Node, Pod, kernel, local};

const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
const ANOTHER: &str = "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICA=";
const FILE: &str = "/etc/humanz/psk";
const SET: (&str, &str) = ("ENCRYPTION_PSK_FILE", FILE);

fn give(host: &Node, secret: &str) {
    host.shell(&format!(
        "umask 077; mkdir -p /etc/humanz; echo {secret} >{FILE}.new; mv {FILE}.new {FILE}"
    ))
    .ok();
}

/// Three hosts, each with its secret; `None` where the kernel has no WireGuard.
fn hosts_with(secrets: [&str; 3]) -> Option<Encrypted> {
    if !kernel::has_wireguard() {
        shows_the_reason();
        return None;
    }
    let cluster = Cluster::routed(2, 1);
    cluster.hosts.iter().zip(secrets).for_each(|(host, secret)| give(host, secret));
    let agents = cluster.start_agents(&settings());
    for host in &cluster.hosts {
        wait_for_routes(host, 4);
        if secrets == [secrets[0]; 3] {
            wait_for_sessions(host, 2);
        }
    }
    let pods = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    Some(Encrypted { agents, pods, cluster })
}

fn settings() -> Vec<(&'static str, &'static str)> {
    ENCRYPTED.iter().copied().chain([("PROBE_INTERVAL", "1s"), SET]).collect()
}

fn ping(to: &Pod) -> String {
    format!("ping -n -c 1 -W 1 {}", to.v4())
}

/// As `wg` shows them: the pre-shared key by the other host's public key.
fn shown(host: &Node) -> BTreeMap<String, String> {
    let lines = host.run("wg show humanz-wg preshared-keys").ok();
    let pair = |line: &str| line.split_once('\t').map(|(key, of)| (key.to_owned(), of.to_owned()));
    lines.lines().filter_map(pair).collect()
}

/// That of `host` for `other`.
fn of_pair(host: &Node, other: &Node) -> String {
    shown(host).remove(&key(other).to_string()).expect("the other host is a peer")
}

fn hosts_without_answer(host: &Node) -> Vec<Value> {
    local::problems(&local::status(host), "host-unanswered").cloned().collect()
}

/// `host` reports those it gets no handshake from, with what may be the reason.
fn wait_for_reports(host: &Node, silent: &[&str]) {
    eventually(&format!("{} names {silent:?}", host.name()), 3 * SOON, || {
        let found = hosts_without_answer(host);
        let is_right = |name: &&str| {
            found.iter().any(|problem| {
                let has_in_fix =
                    |words: &str| problem["fix"].as_str().unwrap_or_default().contains(words);
                problem["subject"] == format!("host {name}")
                    && has_in_fix("ENCRYPTION_PSK_FILE (set here)")
            })
        };
        let right = found.len() == silent.len() && silent.iter().all(is_right);
        if right { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// The present one and, in a change, the next one.
fn private_keys(host: &Node) -> Vec<String> {
    let text = host.run("cat /var/lib/humanz/wireguard.key").ok();
    let file: Value = serde_json::from_str(&text).unwrap();
    let keys = ["privateKey", "nextKey"].map(|name| file[name].as_str().map(str::to_owned));
    keys.into_iter().flatten().collect()
}

fn assert_shows_nothing(all: &Encrypted) {
    let mut secrets = vec![SECRET.to_owned(), ANOTHER.to_owned()];
    secrets.extend(all.cluster.hosts.iter().flat_map(|host| shown(host).into_values()));
    let private: Vec<String> = all.cluster.hosts.iter().flat_map(private_keys).collect();
    assert!(private.len() >= all.cluster.hosts.len(), "each host has a key");
    let stored: Vec<(String, String)> = all.cluster.etcd.list("/");
    assert!(stored.len() > 3, "{stored:?}");
    let mut texts = vec![("etcd".to_owned(), format!("{stored:?}"))];
    for (host, agent) in all.cluster.hosts.iter().zip(&all.agents) {
        let run = |line: &str| Agent::run(host, line, &settings());
        let bundle = run("doctor --bundle /opt/b.tar");
        assert!(bundle.stdout.contains("written to /opt/b.tar"), "{bundle}");
        let config = run("config");
        assert!(config.stdout.contains(FILE), "the path is no secret: {config}");
        let named = [
            ("status", local::status(host).to_string()),
            ("status --json", run("status --json").stdout),
            ("metrics", local::get(host, "/metrics").1),
            ("doctor", bundle.stdout),
            ("bundle", host.run("tar -xOf /opt/b.tar").ok()),
            ("config", config.stdout),
            ("log", agent.log()),
            ("state", host.shell("cat /var/lib/humanz/*.json").ok()),
        ];
        // The one place where private keys are.
        let keys = host.run("cat /var/lib/humanz/wireguard.key").ok();
        secrets.iter().for_each(|secret| assert!(!keys.contains(secret.as_str()), "{secret}"));
        texts.extend(named.map(|(name, text)| (format!("{name} of {}", host.name()), text)));
    }
    for (name, text) in texts {
        assert!(!text.is_empty(), "{name}");
        for secret in secrets.iter().chain(&private) {
            assert!(!text.contains(secret.as_str()), "a secret is in {name}");
        }
    }
}

#[test]
fn hosts_with_one_secret_reach_each_other_and_one_with_another_is_reported() {
    let Some(all) = hosts_with([SECRET, SECRET, ANOTHER]) else { return };
    let [one, two, three] = [1, 2, 3].map(|number| all.host(number));
    all.pods[0].until_ok(&ping(&all.pods[1]), SOON);
    all.pods[1].until_ok(&ping(&all.pods[0]), SOON);
    unanswered(&all.pods[0], all.pods[2].v4());
    unanswered(&all.pods[2], all.pods[1].v4());
    wait_for_reports(one, &["h3"]);
    wait_for_reports(three, &["h1", "h2"]);
    // Each pair has its own, as both of its hosts have it, unless they have different secrets.
    assert_eq!(of_pair(one, two), of_pair(two, one));
    assert_ne!(of_pair(one, two), of_pair(one, three));
    assert_ne!(of_pair(one, three), of_pair(two, three));
    assert_ne!(of_pair(one, three), of_pair(three, one));
    assert_shows_nothing(&all);

    // The right secret, as a file that takes the other one's place.
    give(three, SECRET);
    eventually("it is taken over", SOON, || {
        let (here, there) = (of_pair(one, three), of_pair(three, one));
        if here == there { Ok(()) } else { Err("the keys of the pair differ".to_owned()) }
    });
    all.pods[0].until_ok(&ping(&all.pods[2]), 3 * SOON);
    all.pods[2].until_ok(&ping(&all.pods[1]), 3 * SOON);
    eventually("no host is reported", 3 * SOON, || {
        let left: Vec<Value> = [one, three].into_iter().flat_map(hosts_without_answer).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });

    let traffic = Traffic::start(&all);
    let (old, before) = (key(one), of_pair(one, two));
    ask(one);
    wait_for_change(&all, 1, old);
    assert_ne!(of_pair(one, two), before, "it follows the keys");
    assert_eq!(of_pair(one, two), of_pair(two, one));
    traffic.assert_nothing_lost("a host changed its key, with a secret");
    assert_shows_nothing(&all);
}

#[test]
fn a_key_that_is_removed_or_replaced_by_hand_is_put_back() {
    let Some(all) = hosts_with([SECRET; 3]) else { return };
    all.all_reach();
    let host = all.host(1);
    let right = shown(host);
    let public = key(all.host(2)).to_string();
    for by_hand in [
        format!("wg set humanz-wg peer {public} preshared-key /dev/null"),
        format!(
            "echo {ANOTHER} >/tmp/other; wg set humanz-wg peer {public} preshared-key /tmp/other"
        ),
    ] {
        host.shell(&by_hand).ok();
        eventually("it is put back", SOON, || {
            if shown(host) == right { Ok(()) } else { Err(by_hand.clone()) }
        });
    }
    // By another program, in one message with the rest.
    let there = device(host).peers[0].clone();
    host.inside(|| {
        let kernel = Wireguard::open().unwrap().unwrap();
        let (key, allowed) = (there.key, there.allowed.clone());
        let bare = NewWireguardPeer { key, preshared: None, endpoint: None, allowed };
        kernel.change_peers(&device_name(), [PeerEdit::Set(&bare)]).unwrap();
    });
    eventually("it is put back", SOON, || {
        if device(host).peers.contains(&there) || shown(host) == right {
            return Ok(());
        }
        Err(format!("{:?}", device(host).peers))
    });
    all.all_reach();
}

/// Longer than a session lasts.
const SESSION: Duration = Duration::from_secs(200);

#[test]
fn a_secret_that_is_changed_on_all_hosts_at_once_loses_nothing() {
    let Some(all) = hosts_with([SECRET; 3]) else { return };
    let traffic = Traffic::start(&all);
    let before = shown(all.host(1));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    all.cluster.hosts.iter().for_each(|host| give(host, ANOTHER));
    eventually("handshakes with the new keys", SESSION, || {
        let late = |peer: &WireguardPeer| peer.last_handshake.is_none_or(|last| last <= since);
        let late: Vec<WireguardPeer> = device(all.host(1)).peers.into_iter().filter(late).collect();
        if late.is_empty() { Ok(()) } else { Err(format!("{late:?}")) }
    });
    let after = shown(all.host(1));
    assert!(after.iter().all(|(key, of)| before.get(key) != Some(of)), "{after:?}");
    for other in [2, 3] {
        let pair = [(1, other), (other, 1)].map(|(a, b)| of_pair(all.host(a), all.host(b)));
        assert_eq!(pair[0], pair[1]);
    }
    traffic.assert_nothing_lost("another secret on all hosts");
}

/// What cannot be read is no reason to do without.
#[test]
fn a_file_that_others_can_read_or_that_is_gone_changes_no_key_and_is_reported() {
    let Some(mut all) = hosts_with([SECRET; 3]) else { return };
    all.all_reach();
    let right = shown(all.host(1));
    assert!(right.values().all(|key| key != "(none)"), "{right:?}");
    let subject = format!("ENCRYPTION_PSK_FILE={FILE}");
    let is_reported = |host: &Node, words: &str| {
        local::status_when(host, words, |status| {
            let problem = local::problem(status, "invalid-setting", &subject);
            problem.is_some_and(|it| it["what"].as_str().unwrap().contains(words))
        });
    };
    for (change, words) in [
        (format!("chmod 0644 {FILE}"), "others than root can read"),
        (format!("chmod 0600 {FILE}; echo hunter2 >{FILE}"), "its content is not a secret"),
        (format!("rm {FILE}"), "cannot be read: No such file"),
    ] {
        all.host(1).shell(&change).ok();
        is_reported(all.host(1), words);
        assert_eq!(shown(all.host(1)), right, "{change}");
        all.all_reach();
    }
    // An agent that starts without the file goes on with what the kernel has.
    all.agents[0].kill();
    all.agents[0] = Agent::start(all.host(1), &settings());
    all.agents[0].wait_ready();
    is_reported(all.host(1), "cannot be read: No such file");
    assert_eq!(shown(all.host(1)), right);
    all.all_reach();
    assert!(!all.agents[0].log().contains("hunter2"));
    give(all.host(1), SECRET);
    local::status_when(all.host(1), "the problem ends", |status| {
        local::problem(status, "invalid-setting", &subject).is_none()
    });
    assert_eq!(shown(all.host(1)), right);
}
