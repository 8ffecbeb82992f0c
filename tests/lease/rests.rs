//! A watch that rests while hundreds of hosts change: nothing is missed and nothing seen twice.

use std::thread;
use std::time::{Duration, Instant};

use etcd_client::{Txn, TxnOp};
use humanz::etcd::Update;

use crate::host::{HOSTS, Host};
use crate::support::etcd::{EtcdServer, isolated};

/// More changes than a host follows in a second, even if half of them count for the second before; and more
/// than one that has rested follows.
const MANY: usize = 1000;
const FEW: usize = 100;

/// The shortest rest is half a second.
const REST: Duration = Duration::from_millis(300);

/// The shortest third rest, of a crowd that goes on.
const LONG_REST: Duration = Duration::from_secs(2);

/// So many changes in this time make a host rest.
const WINDOW: Duration = Duration::from_secs(1);

/// Crowds of which one comes fast enough.
const ATTEMPTS: usize = 10;

/// What a host knew of a crowd, and when.
struct Crowd {
    began: Instant,
    known: Instant,
}

impl Crowd {
    /// Whether the host rested after the crowd, until `later`. It need not if this machine was too busy.
    fn rested(&self, later: Instant) -> bool {
        let (rest, took) = (later - self.known, self.known - self.began);
        assert!(rest > REST || took > WINDOW, "it did not rest: {rest:?}, {took:?}");
        rest > REST
    }
}

/// So many hosts change together, and `host` knows them.
fn crowd(etcd: &EtcdServer, host: &Host, (count, value): (usize, &str)) -> Crowd {
    let began = Instant::now();
    etcd.call(async |client| {
        for part in 0..count / FEW {
            let keys = (0..FEW).map(|n| format!("{HOSTS}/crowd{}", part * FEW + n));
            let puts: Vec<_> = keys.map(|key| TxnOp::put(key, value, None)).collect();
            client.txn(Txn::new().and_then(puts)).await?;
        }
        Ok(())
    });
    let known = host.until("the crowd", |found| {
        let of = |name: &str| found.hosts.get(name).map(|stored| stored.value.to_string());
        of(&format!("crowd{}", count - 1)).as_deref() == Some(value)
    });
    Crowd { began, known }
}

/// `host` knows what etcd holds, and each snapshot since `mark` was another one.
fn knows_all(etcd: &EtcdServer, host: &Host, mark: usize) {
    let found = host.snapshot();
    let held: Vec<_> = etcd.list(HOSTS).into_iter().collect();
    let known = found
        .hosts
        .iter()
        .map(|(name, stored)| (format!("{HOSTS}/{name}"), stored.value.to_string()));
    assert_eq!(known.collect::<Vec<_>>(), held);
    let snapshots: Vec<_> = host
        .since(mark)
        .into_iter()
        .filter_map(|update| match update {
            Update::Snapshot(snapshot) => Some(snapshot),
            _ => None,
        })
        .collect();
    for pair in snapshots.windows(2) {
        assert!(!pair[0].says_the_same(&pair[1]), "published twice: {}", pair[1].revision);
    }
}

#[test]
fn what_happens_while_a_watch_rests_is_seen_once_and_whole() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let rested = |round: &usize| {
            let crowd = crowd(&etcd, &host, (MANY, &format!("10.245.{round}.0/24")));
            let mark = host.mark();
            let name = format!("late{round}");
            etcd.put(&format!("{HOSTS}/{name}"), "10.244.77.0/24");
            etcd.delete(&format!("{HOSTS}/crowd{round}"));
            etcd.put(&format!("{HOSTS}/crowd{}", round + 9), "10.245.99.0/24");
            etcd.put(&format!("{HOSTS}/short"), "10.245.98.0/24");
            etcd.delete(&format!("{HOSTS}/short"));
            let later = host.until(&name, |found| found.hosts.contains_key(&*name));
            host.until("all", |found| !found.hosts.contains_key("short"));
            knows_all(&etcd, &host, mark);
            crowd.rested(later)
        };
        let rests = (0..ATTEMPTS).filter(rested).take(3).count();
        assert_eq!(rests, 3, "this machine is too busy");
    });
}

/// A survivor would put back too late what etcd lost, and an agent that is asked answer too late.
#[test]
fn a_change_of_an_urgent_key_ends_a_rest() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let own = format!("{HOSTS}/h1");
        let ended = |attempt: usize| {
            let value = |round| format!("10.245.{}.0/24", 3 * attempt + round);
            crowd(&etcd, &host, (MANY, &value(0)));
            crowd(&etcd, &host, (FEW, &value(1)));
            crowd(&etcd, &host, (FEW, &value(2)));
            let late = format!("late{attempt}");
            etcd.put(&format!("{HOSTS}/{late}"), "10.244.77.0/24");
            thread::sleep(REST);
            let rests = !host.snapshot().hosts.contains_key(&*late);
            let deleted = Instant::now();
            etcd.delete(&own);
            host.until("the late host", |found| found.hosts.contains_key(&*late));
            let waited = deleted.elapsed();
            println!("rested: {rests}; over after {waited:?}");
            while etcd.get(&own).is_none() {
                thread::sleep(REST);
            }
            rests && waited < LONG_REST - 2 * REST
        };
        assert!((0..ATTEMPTS).any(ended), "none of its rests ended early");
    });
}

#[test]
fn what_is_compacted_while_a_watch_rests_is_read_again() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let rested = |attempt| {
            let crowd = crowd(&etcd, &host, (MANY, &format!("10.245.{attempt}.0/24")));
            let (mark, name) = (host.mark(), format!("late{attempt}"));
            etcd.put(&format!("{HOSTS}/{name}"), "10.244.77.0/24");
            etcd.delete(&format!("{HOSTS}/crowd1"));
            etcd.compact();
            let later = host.until(&name, |found| found.hosts.contains_key(&*name));
            knows_all(&etcd, &host, mark);
            crowd.rested(later)
        };
        assert!((0..ATTEMPTS).any(rested), "this machine is too busy");
    });
}

/// Of a store that was replaced by an older one the watch would get later changes only.
#[test]
fn an_etcd_that_is_restored_while_a_watch_rests_is_read_again() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let backup = tempfile::tempdir().unwrap();
        let host = Host::up(&etcd, "h1");
        etcd.kill();
        etcd.copy_data(&backup.path().join("data"));
        etcd.restart();
        crowd(&etcd, &host, (MANY, "10.245.1.0/24"));
        for round in 0..2 {
            crowd(&etcd, &host, (FEW, &format!("10.245.{}.0/24", 2 + round)));
        }
        let (mark, rests) = (host.mark(), Instant::now());
        etcd.kill();
        etcd.replace_data(&backup.path().join("data"));
        etcd.restart();
        for number in 0..40 {
            etcd.put(&format!("{HOSTS}/late{number}"), "10.245.7.0/24");
        }
        println!("etcd was away and ahead again within {:?}", rests.elapsed());
        let lost = |update: &Update| matches!(update, Update::Disconnected { .. });
        host.reported(mark, "the loss", lost);
        host.until("all", |found| {
            (0..40).all(|number| found.hosts.contains_key(&*format!("late{number}")))
        });
    });
}
