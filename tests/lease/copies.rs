//! Copied machines: the same name, the same machine id, the same state.

use std::time::Duration;

use humanz::etcd::{EtcdStart, Update};
use humanz::lease::{LeaseError, Saved};
use humanz::net::PerFamily;

use crate::host::{HOSTS, HUMANZ, Host, SOON, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

/// The machine of h1 after its disk was copied: another boot, another address.
fn copy(etcd: &EtcdServer, boot: &str, saved: Option<Saved>) -> EtcdStart {
    let mut copy = start(etcd, "h1");
    copy.identity.boot_id = boot.to_owned();
    copy.attributes.addresses = PerFamily { v4: "192.0.2.99".parse().ok(), v6: None };
    copy.saved = saved;
    copy
}

/// Waits for a trouble since `mark` that is like that.
fn trouble(host: &Host, mark: usize, like: impl Fn(&LeaseError) -> bool) -> LeaseError {
    host.wait("trouble", |updates| {
        updates[mark..].iter().find_map(|(_, update)| match update {
            Update::Trouble(Some(error)) if like(error) => Some(error.clone()),
            _ => None,
        })
    })
}

fn is_copy(error: &LeaseError) -> bool {
    matches!(error, LeaseError::HeldByCopy { .. })
}

fn is_original(error: &LeaseError) -> bool {
    matches!(error, LeaseError::Copied { .. })
}

/// Key and revision of the last change of all that the original owns.
fn keys(etcd: &EtcdServer) -> Vec<(String, i64)> {
    let owned = [format!("{HOSTS}/"), format!("{HUMANZ}/nodes/"), format!("{HUMANZ}/subnets/")];
    let pairs = owned.iter().flat_map(|prefix| etcd.pairs(prefix));
    pairs.map(|pair| (pair.key_str().unwrap().to_owned(), pair.mod_revision())).collect()
}

fn a_copy_beside_its_original(boot: &str, with_state: bool) {
    isolated(|| {
        let etcd = EtcdServer::start();
        let state = Host::up(&etcd, "h1").stop();
        let mut again = start(&etcd, "h1");
        again.saved = Some(state.clone());
        let original = Host::launch(again);
        original.snapshot();
        let (before, mark) = (keys(&etcd), original.mark());
        let copied = Host::launch(copy(&etcd, boot, Some(state).filter(|_| with_state)));
        let error = trouble(&copied, 0, is_copy).with_fix();
        for word in ["name h1", "machine id machine-of-h1", "192.0.2.1", "NODE_NAME"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        let error = trouble(&original, mark, is_original).with_fix();
        for word in ["h1", "machine id machine-of-h1", "NODE_NAME"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        // Longer than one of them would need to fight back.
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(keys(&etcd), before, "the copy writes nothing of the original's");
        let served = |update: &Update| matches!(update, Update::Lease(_) | Update::Snapshot(_));
        assert!(!copied.since(0).iter().any(served), "the copy is not served");
        assert_eq!(original.leases().len(), 1);
        let writes = etcd.pairs(&format!("{HUMANZ}/alive/h1"))[0].version();
        assert!(writes <= 4, "the alive key was written {writes} times");
        let mark = original.mark();
        drop(copied);
        original.reported(mark, "no copy", |update| matches!(update, Update::Trouble(None)));
    });
}

#[test]
fn a_copied_machine_does_not_serve_beside_its_original() {
    a_copy_beside_its_original("boot-of-the-copy", true);
}

#[test]
fn a_machine_copied_while_it_ran_does_not_serve_beside_its_original() {
    a_copy_beside_its_original("boot-1", true);
}

#[test]
fn a_copy_without_the_state_does_not_serve_either() {
    a_copy_beside_its_original("boot-of-the-copy", false);
}

#[test]
fn of_copies_that_start_at_once_one_is_served() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let state = Host::up(&etcd, "h1").stop();
        let hosts: Vec<_> = (0..6)
            .map(|n| Host::launch(copy(&etcd, &format!("boot-{n}"), Some(state.clone()))))
            .collect();
        let served = |host: &Host| {
            host.wait("served, or refused as a copy", |updates| {
                updates.iter().find_map(|(_, update)| match update {
                    Update::Snapshot(_) => Some(true),
                    Update::Trouble(Some(LeaseError::HeldByCopy { .. })) => Some(false),
                    _ => None,
                })
            })
        };
        assert_eq!(hosts.iter().filter(|host| served(host)).count(), 1);
    });
}

/// Puts the alive key of an agent that is gone, for so many seconds; the key.
fn left_alive(etcd: &EtcdServer, value: &str, seconds: i64) -> String {
    let alive = format!("{HUMANZ}/alive/h1");
    etcd.call(async |client| {
        let lease = client.lease_grant(seconds, None).await?.id();
        let options = etcd_client::PutOptions::new().with_lease(lease);
        client.put(alive.as_str(), value, Some(options)).await.map(drop)
    });
    alive
}

#[test]
fn an_agent_whose_predecessor_died_takes_its_alive_key_over() {
    isolated(|| {
        let etcd = EtcdServer::start();
        Host::up(&etcd, "h1").stop();
        // As an agent of an earlier version left it, and one of this version that was killed.
        let earlier = r#"{"schema":1,"machineId":"machine-of-h1","since":"2026-11-20T18:46:00Z"}"#;
        let killed = earlier.replace('}', r#","instance":"dead"}"#);
        for (left, boot) in [(earlier, "boot-1"), (&killed, "boot-1"), (&killed, "boot-2")] {
            left_alive(&etcd, left, if boot == "boot-1" { 600 } else { 4 });
            let begun = std::time::Instant::now();
            let mut again = start(&etcd, "h1");
            again.identity.boot_id = boot.to_owned();
            let host = Host::launch(again);
            host.snapshot();
            let took = begun.elapsed();
            println!("served {took:?} after the start, alive key {left}");
            let most = Duration::from_secs(if boot == "boot-1" { 4 } else { 10 });
            assert!(took < most, "{took:?}");
            assert_eq!(host.subnet(), "10.244.1.0/24");
            let alive = etcd.get(&format!("{HUMANZ}/alive/h1")).unwrap();
            assert!(alive.contains("instance") && !alive.contains("dead"), "{alive}");
            assert_eq!(etcd.get(&format!("{HUMANZ}/contenders/h1")), None, "nobody is asked now");
            host.stop();
        }
    });
}

#[test]
fn an_agent_that_moved_waits_until_the_alive_key_of_its_predecessor_is_gone() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let state = Host::up(&etcd, "h1").stop();
        let left = r#"{"schema":1,"machineId":"machine-of-h1","since":"2026-11-20T18:46:00Z","instance":"dead"}"#;
        let alive = left_alive(&etcd, left, 4);
        let host = Host::launch(copy(&etcd, "boot-1", Some(state)));
        trouble(&host, 0, |error| matches!(error, LeaseError::MayBeCopy { .. }));
        assert!(etcd.get(&alive).is_some_and(|found| found.contains("dead")), "it is asked first");
        host.reported(0, "the end of it", |update| matches!(update, Update::Trouble(None)));
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

/// Every user of etcd may keep every lease.
#[test]
fn an_alive_key_that_somebody_keeps_delays_its_host_and_no_more() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let state = Host::up(&etcd, "h1").stop();
        let left = r#"{"schema":1,"machineId":"machine-of-h1","since":"2026-11-20T18:46:00Z","instance":"dead"}"#;
        let alive = left_alive(&etcd, left, 600);
        let begun = std::time::Instant::now();
        let mut again = start(&etcd, "h1");
        again.identity.boot_id = "boot-2".to_owned();
        again.saved = Some(state);
        let host = Host::launch(again);
        trouble(&host, 0, |error| matches!(error, LeaseError::MayBeCopy { .. }));
        let found = || etcd.get(&alive).unwrap_or_default();
        eventually("its own alive key", Duration::from_secs(150), || {
            if found().contains("dead") { Err(found()) } else { Ok(()) }
        });
        let took = begun.elapsed();
        println!("the name is taken after {took:?}");
        assert!(took > Duration::from_secs(60), "{took:?}: twice the life of the key");
        host.reported(0, "the end of it", |update| matches!(update, Update::Trouble(None)));
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn a_copy_with_the_same_address_does_not_take_the_name_of_a_stalled_original() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let state = Host::up(&etcd, "h1").stop();
        // An original that stands still for longer than the first windows, and then answers.
        let alive = left_alive(
            &etcd,
            r#"{"schema":1,"machineId":"machine-of-h1","since":"2026-11-20T18:46:00Z","instance":"first"}"#,
            600,
        );
        let mut again = start(&etcd, "h1");
        again.identity.boot_id = "boot-of-the-copy".to_owned();
        again.saved = Some(state);
        let copied = Host::launch(again);
        trouble(&copied, 0, |error| matches!(error, LeaseError::MayBeCopy { .. }));
        std::thread::sleep(Duration::from_secs(5));
        assert!(etcd.get(&alive).is_some_and(|found| found.contains("first")), "it is taken");
        etcd.put(&alive, etcd.get(&alive).unwrap().replace('}', r#","answers":"it"}"#));
        let answered = std::time::Instant::now();
        trouble(&copied, 0, is_copy);
        let took = answered.elapsed();
        assert!(took < Duration::from_secs(3), "an answer is received after {took:?}");
        let served = |update: &Update| matches!(update, Update::Lease(_) | Update::Snapshot(_));
        assert!(!copied.since(0).iter().any(served), "the copy is not served");
    });
}

#[test]
fn an_original_that_was_cut_off_finds_itself_replaced_and_stands_back() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let original = Host::up(&etcd, "h1");
        let mark = original.mark();
        // It lived on while it did not answer, and its copy took the key over and answers.
        let other = |answers: &str| {
            format!(
                r#"{{"schema":1,"machineId":"machine-of-h1","since":"2026-11-20T18:46:00Z","instance":"other"{answers}}}"#
            )
        };
        etcd.put(&format!("{HUMANZ}/alive/h1"), other(""));
        eventually("a question", SOON, || {
            etcd.get(&format!("{HUMANZ}/contenders/h1")).ok_or("none".to_owned())
        });
        etcd.put(&format!("{HUMANZ}/alive/h1"), other(r#","answers":"it""#));
        let error = trouble(&original, mark, is_copy);
        assert_eq!(error.disputed(&original.lease().subnets).len(), 1, "closed for new pods");
        let node = etcd.pairs(&format!("{HUMANZ}/nodes/h1"))[0].mod_revision();
        etcd.put(&format!("{HOSTS}/h7"), "10.244.77.0/24");
        original.until_peers("others all the same", |peers| peers.by_name.contains_key("h7"));
        assert_eq!(etcd.pairs(&format!("{HUMANZ}/nodes/h1"))[0].mod_revision(), node);
    });
}
