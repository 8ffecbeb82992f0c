//! etcd that lost its data: no host changes its subnet, no host is ever missing.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use humanz::etcd::Update;
use humanz::lease::Saved;

use crate::host::{HOSTS, HUMANZ, Host, SOON, pool, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

const NAMES: [&str; 5] = ["h1", "h2", "h3", "h4", "h5"];

/// Five hosts that know each other, and one of the Python agent.
fn five(etcd: &EtcdServer) -> Vec<Host> {
    etcd.put(&format!("{HOSTS}/py"), "10.244.200.0/24");
    let hosts: Vec<_> = NAMES.iter().map(|name| Host::launch(start(etcd, name))).collect();
    for host in &hosts {
        host.until("all", |found| found.hosts.len() == 6 && found.nodes.len() == 5);
    }
    hosts
}

fn leases(hosts: &[Host]) -> BTreeMap<String, String> {
    hosts.iter().map(|host| (host.identity.name.to_string(), host.subnet())).collect()
}

/// Waits until etcd has its previous content again.
pub fn eventually_says(etcd: &EtcdServer, before: &[(String, String)], prefix: &str) {
    eventually(&format!("{prefix} as before"), SOON, || {
        let now = etcd.list(prefix);
        if now == before { Ok(()) } else { Err(format!("{now:?}\ninstead of {before:?}")) }
    });
}

#[test]
fn an_empty_etcd_is_rebuilt_and_no_host_loses_a_peer() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let hosts = five(&etcd);
        let before = leases(&hosts);
        let (keys, claims) = (etcd.list(HOSTS), etcd.list(&format!("{HUMANZ}/subnets/")));
        let nodes = etcd.list(&format!("{HUMANZ}/nodes/"));
        let id = hosts[0].snapshot().config.clone().unwrap().value.id;
        let marks: Vec<_> = hosts.iter().map(Host::mark).collect();
        etcd.restart_empty();
        eventually_says(&etcd, &keys, HOSTS);
        eventually_says(&etcd, &claims, &format!("{HUMANZ}/subnets/"));
        eventually_says(&etcd, &nodes, &format!("{HUMANZ}/nodes/"));
        for (host, mark) in hosts.iter().zip(marks) {
            host.until("the rebuilt store", |found| {
                found.config.as_ref().unwrap().value.id != id && found.alive.len() == 5
            });
            assert_eq!(host.ever_missing(mark, &["h1", "h2", "h3", "h4", "h5", "py"]), [].into());
        }
        assert_eq!(leases(&hosts), before);
    });
}

#[test]
fn one_survivor_rebuilds_all_and_a_new_host_gets_a_free_subnet() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let mut hosts = five(&etcd);
        let keys = etcd.list(HOSTS);
        let survivor = hosts.remove(2);
        for host in hosts {
            host.stop();
        }
        etcd.kill();
        let newcomer = Host::launch(start(&etcd, "h9"));
        etcd.restart_empty();
        let taken: Vec<_> = keys.iter().map(|(_, subnet)| subnet.clone()).collect();
        assert!(!taken.contains(&newcomer.subnet()), "{} is another's", newcomer.subnet());
        survivor.until("the new host", |found| found.hosts.contains_key("h9"));
        let now = etcd.list(HOSTS);
        assert_eq!(now.len(), 7);
        assert!(keys.iter().all(|pair| now.contains(pair)));
    });
}

#[test]
fn keys_deleted_all_at_once_are_restored_and_no_host_was_missing() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let hosts = five(&etcd);
        let keys = etcd.list(HOSTS);
        let marks: Vec<_> = hosts.iter().map(Host::mark).collect();
        etcd.delete_all("/humanz/");
        eventually_says(&etcd, &keys, HOSTS);
        for (host, mark) in hosts.iter().zip(marks) {
            host.until("all alive", |found| found.hosts.len() == 6 && found.alive.len() == 5);
            assert_eq!(host.ever_missing(mark, &NAMES), [].into());
        }
    });
}

#[test]
fn hosts_that_vanish_together_with_the_settings_were_not_removed() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let hosts = five(&etcd);
        let (keys, mark) = (etcd.list(HOSTS), hosts[0].mark());
        // All that is lost of h1 itself is nothing.
        etcd.call(async |client| {
            let gone = ["h2", "h3", "h4", "h5", "py"].map(|name| format!("{HOSTS}/{name}"));
            let keys = gone.into_iter().chain([format!("{HUMANZ}/config")]);
            let operations: Vec<_> = keys.map(|key| TxnOp::delete(key, None)).collect();
            client.txn(Txn::new().and_then(operations)).await.map(drop)
        });
        eventually_says(&etcd, &keys, HOSTS);
        assert_eq!(hosts[0].ever_missing(mark, &NAMES), [].into());
    });
}

#[test]
fn a_host_that_is_removed_stays_removed() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let mut hosts = five(&etcd);
        let gone = hosts.pop().unwrap();
        let name = gone.identity.name.to_string();
        gone.stop();
        etcd.delete(&format!("{HOSTS}/{name}"));
        for host in &hosts {
            host.until_peers("one less", |peers| !peers.by_name.contains_key(name.as_str()));
        }
        assert_eq!(etcd.get(&format!("{HOSTS}/{name}")), None);
    });
}

#[test]
fn an_etcd_restored_from_a_backup_gets_later_changes_back() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let backup = tempfile::tempdir().unwrap();
        let one = Host::up(&etcd, "h1");
        etcd.kill();
        etcd.copy_data(&backup.path().join("data"));
        etcd.restart();
        let two = Host::up(&etcd, "h2");
        one.until("h2", |found| found.nodes.contains_key("h2"));
        let marks = [one.mark(), two.mark()];
        etcd.kill();
        etcd.replace_data(&backup.path().join("data"));
        etcd.restart();
        for (host, mark) in [&one, &two].into_iter().zip(marks) {
            host.reported(mark, "the return", |update| matches!(update, Update::Connected { .. }));
            host.until("both", |found| found.alive.len() == 2);
            assert_eq!(host.ever_missing(mark, &["h1", "h2"]), [].into());
        }
        assert_eq!(etcd.list(HOSTS).len(), 2);
        assert_eq!((one.subnet(), two.subnet()), ("10.244.1.0/24".into(), "10.244.2.0/24".into()));
    });
}

/// A host that starts with its saved state.
pub fn started_with(etcd: &EtcdServer, known: Saved) -> Host {
    let mut start = start(etcd, known.host.as_str());
    start.saved = Some(known);
    Host::launch(start)
}

#[test]
fn hosts_that_were_down_while_etcd_lost_its_data_rebuild_it_from_their_disks() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let hosts = five(&etcd);
        let (before, keys) = (leases(&hosts), etcd.list(HOSTS));
        let saved: Vec<_> = hosts.into_iter().map(Host::stop).collect();
        etcd.restart_empty();
        let hosts: Vec<_> = saved.into_iter().map(|known| started_with(&etcd, known)).collect();
        for host in &hosts {
            assert_eq!(host.snapshot().hosts.len(), 6, "the first snapshot is whole");
        }
        assert_eq!(leases(&hosts), before);
        assert_eq!(etcd.list(HOSTS), keys);
    });
}

#[test]
fn a_host_that_was_long_offline_does_not_restore_removed_hosts() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let mut hosts = five(&etcd);
        let sleeper = hosts.pop().unwrap().stop();
        let gone = hosts.pop().unwrap().stop();
        for prefix in [HOSTS.to_owned(), format!("{HUMANZ}/nodes")] {
            etcd.delete(&format!("{prefix}/{}", gone.host));
        }
        etcd.delete(&format!("{HUMANZ}/subnets/4/{}-24", gone.lease.subnets.v4.unwrap().ip()));
        for host in &hosts {
            host.until("one less", |found| !found.hosts.contains_key(&gone.host));
        }
        etcd.restart_empty();
        for host in &hosts {
            host.until("rebuilt", |found| {
                !found.config.as_ref().unwrap().value.rebuilt_from.is_empty()
            });
        }
        let subnet = sleeper.lease.clone();
        let awake = started_with(&etcd, sleeper);
        assert_eq!(awake.lease(), subnet);
        awake.until_peers("the others", |peers| peers.by_name.len() == 4);
        assert_eq!(etcd.get(&format!("{HOSTS}/{}", gone.host)), None);
    });
}

#[test]
fn saved_state_of_a_network_with_other_settings_is_not_restored() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let saved = Host::up(&etcd, "h1").stop();
        etcd.restart_empty();
        let mut start = start(&etcd, "h1");
        start.saved = Some(saved);
        start.network.pools.v4 = Some(pool("10.99.0.0/16", 8));
        let host = Host::launch(start);
        assert_eq!(host.subnet(), "10.99.1.0/24");
        assert_eq!(etcd.list(HOSTS).len(), 1);
    });
}

fn leads_elsewhere(update: &Update) -> bool {
    matches!(update, Update::Disconnected { why } if why.what.contains("another etcd cluster"))
}

#[test]
fn another_cluster_behind_the_address_gets_nothing_and_changes_nothing() {
    isolated(|| {
        let mut other = EtcdServer::start_with(&["--initial-cluster-token", "other"]);
        drop(Host::up(&other, "h9").stop());
        other.kill();
        let mut etcd = EtcdServer::start();
        let sleeper = Host::up(&etcd, "h2").stop();
        let host = Host::up(&etcd, "h1");
        let mark = host.mark();
        etcd.kill();
        other.restart();
        host.reported(mark, "another cluster", leads_elsewhere);
        let restarted = started_with(&other, sleeper);
        restarted.reported(0, "another cluster", leads_elsewhere);
        // Longer than both would need to put back what they know.
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(other.list(HOSTS).len(), 1, "a host of another network");
        let follows = |update: &Update| matches!(update, Update::Snapshot(_) | Update::Lease(_));
        assert!(!host.since(mark).iter().chain(&restarted.since(0)).any(follows));
        other.kill();
        etcd.restart();
        host.reported(mark, "its own cluster", follows);
        assert_eq!(restarted.subnet(), "10.244.1.0/24");
        assert_eq!(host.leases(), ["10.244.2.0/24".to_owned()].into());
    });
}

#[test]
fn a_cluster_restored_from_a_snapshot_is_followed_although_its_id_differs() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (snapshot, data) = (path("snapshot"), path("data"));
        let run = |words: &[&str]| {
            let mut etcdctl = Command::new("etcdctl");
            let done = etcdctl.env("ETCDCTL_API", "3").args(words).output().unwrap();
            assert!(done.status.success(), "{words:?}: {done:?}");
        };
        let cluster = |etcd: &EtcdServer| {
            let answer = etcd.call(async |client| client.get("x", None).await);
            answer.header().unwrap().cluster_id()
        };
        let before = Host::up(&etcd, "h1");
        run(&["--endpoints", &etcd.url(), "snapshot", "save", &snapshot]);
        let after = Host::up(&etcd, "h2");
        let (former, marks) = (cluster(&etcd), [before.mark(), after.mark()]);
        etcd.kill();
        let founded = ["--name", "one", "--initial-cluster", "one=http://127.0.0.1:2380"];
        let address = ["--initial-advertise-peer-urls", "http://127.0.0.1:2380"];
        let token = ["--initial-cluster-token", "restored", "--data-dir", &data];
        run(&[&["snapshot", "restore", &snapshot][..], &founded, &address, &token].concat());
        etcd.replace_data(data.as_ref());
        etcd.restart();
        assert_ne!(cluster(&etcd), former);
        for (host, mark) in [&before, &after].into_iter().zip(marks) {
            host.reported(mark, "both hosts", |update| match update {
                Update::Snapshot(found) => found.hosts.len() == 2 && found.revision > 0,
                _ => false,
            });
            assert_eq!(host.leases().len(), 1);
        }
        assert_eq!(etcd.get(&format!("{HOSTS}/h2")), Some(after.subnet()));
    });
}

#[test]
fn a_new_network_under_the_same_prefix_changes_nothing_for_running_hosts() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let mark = host.mark();
        etcd.kill();
        let mut other = start(&etcd, "h2");
        other.network.pools.v4 = Some(pool("10.99.0.0/16", 8));
        etcd.restart_empty();
        // The first host creates the configuration; written by hand, it is certainly the other one.
        etcd.delete_all("/humanz/");
        let config = other.network.config("other").to_json();
        etcd.put(&format!("{HUMANZ}/config"), config);
        let key = format!("{HUMANZ}/config");
        let refuses = |update: &Update| match update {
            Update::Snapshot(found) => Some(found.faults.contains_key(&*key)),
            _ => None,
        };
        host.reported(mark, "settings refused", |update| refuses(update) == Some(true));
        assert_eq!(host.ever_missing(mark, &["h1"]), [].into());
        let mark = host.mark();
        etcd.delete(&format!("{HUMANZ}/config"));
        host.reported(mark, "settings put back", |update| refuses(update) == Some(false));
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")).unwrap(), "10.244.1.0/24");
    });
}
