//! Twelve thousand hosts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use etcd_client::{Txn, TxnOp};
use humanz::etcd::{self, Update};
use humanz::inspect::state_file;
use humanz::lease::{Saved, Snapshot, peers};
use humanz::net::PerFamily;
use humanz::net::subnet::{self, Pool};

use crate::host::{self, HOSTS, HUMANZ, pool, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

const HOSTS_IN_ALL: u32 = 12_000;

/// The latest snapshot and when it came.
type Latest = Option<(Instant, Arc<Snapshot>)>;

fn wide() -> Pool {
    pool("10.0.0.0/8", 16)
}

/// Host key, claim and record of host `number`.
fn keys(number: u32) -> Vec<TxnOp> {
    let (name, subnet) = (format!("node-{number:05}.example.com"), wide().subnet(number + 1));
    let address = subnet::offset("172.16.0.0".parse().unwrap(), u128::from(number) + 1);
    let node = format!(
        r#"{{"schema":1,"machineId":"{number:032x}","bootId":"{number:08x}-0000-4000-8000-000000000000","version":"0.1.0","subnets":["{subnet}"],"addresses":["{address}"],"backend":"direct","mtu":1500}}"#
    );
    let alive =
        format!(r#"{{"schema":1,"machineId":"{number:032x}","since":"2026-11-20T18:46:00Z"}}"#);
    vec![
        TxnOp::put(format!("{HOSTS}/{name}"), subnet.to_string(), None),
        TxnOp::put(
            format!("{HUMANZ}/subnets/4/{}-{}", subnet.ip(), subnet.prefix()),
            name.clone(),
            None,
        ),
        TxnOp::put(format!("{HUMANZ}/nodes/{name}"), node, None),
        TxnOp::put(format!("{HUMANZ}/alive/{name}"), alive, None),
    ]
}

/// A value of `/proc/self/status`, in KiB.
pub fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn twelve_thousand_hosts_are_read_watched_saved_and_restored() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        etcd.call(async |client| {
            for first in (0..HOSTS_IN_ALL).step_by(30) {
                let operations: Vec<_> = (first..first + 30).flat_map(keys).collect();
                client.txn(Txn::new().and_then(operations)).await?;
            }
            Ok(())
        });
        let mut start = start(&etcd, "h1");
        start.network.pools = PerFamily { v4: Some(wide()), v6: None };
        let (pools, identity) = (start.network.pools, start.identity.clone());
        let latest: Arc<Mutex<Latest>> = Arc::default();
        let missing = Arc::new(Mutex::new(0));
        let (to, least) = (Arc::clone(&latest), Arc::clone(&missing));
        let before = status("VmRSS");
        let begin = Instant::now();
        let handle = etcd::spawn(start, host::contact(), Arc::default(), move |update| {
            if let Update::Snapshot(snapshot) = update {
                let gone = (HOSTS_IN_ALL as usize).saturating_sub(snapshot.hosts.len());
                *least.lock().unwrap() += usize::from(gone > 1);
                *to.lock().unwrap() = Some((Instant::now(), snapshot));
            }
        })
        .unwrap();
        let until = |what: &str, holds: &dyn Fn(&Snapshot) -> bool| {
            eventually(what, Duration::from_secs(60), || {
                let latest = latest.lock().unwrap();
                let hit = latest.as_ref().filter(|(_, snapshot)| holds(snapshot));
                hit.cloned().ok_or_else(|| "not yet".to_owned())
            })
        };
        let (read, snapshot) = until("the first snapshot", &|_| true);
        println!(
            "read {:?}, memory + {} KiB",
            read - begin,
            status("VmRSS").saturating_sub(before)
        );
        assert_eq!(snapshot.hosts.len(), 12_001);

        let begin = Instant::now();
        let subnets = PerFamily { v4: snapshot.hosts["h1"].value.into(), v6: None };
        let others = peers(&snapshot, &identity.name, &subnets, &pools);
        println!("peers of it {:?}", begin.elapsed());
        assert_eq!((others.by_name.len(), others.faults.len()), (12_000, 0));
        drop(others);

        let saved = Saved {
            host: identity.name.clone(),
            machine_id: identity.machine_id.clone(),
            lease: humanz::lease::Lease { subnets },
            snapshot: Arc::clone(&snapshot),
            resolved: Default::default(),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let begin = Instant::now();
        state_file::write(&path, &saved).unwrap();
        let (took, bytes) = (begin.elapsed(), std::fs::metadata(&path).unwrap().len());
        let begin = Instant::now();
        assert_eq!(state_file::read(&path).unwrap().unwrap().snapshot.hosts.len(), 12_001);
        println!("saved {bytes} bytes in {took:?}, loaded in {:?}", begin.elapsed());
        drop((saved, snapshot));

        let joined = (0..5)
            .map(|n| {
                let key = format!("{HOSTS}/late{n}");
                let sent = etcd.put(&key, format!("10.250.{n}.0/24"));
                let name = format!("late{n}");
                until("the late one", &|found| found.hosts.contains_key(name.as_str())).0 - sent
            })
            .min()
            .unwrap();
        println!(
            "event to snapshot {joined:?}, memory + {} KiB",
            status("VmRSS").saturating_sub(before)
        );
        assert!(joined < Duration::from_secs(5));

        etcd.restart_empty();
        let begin = Instant::now();
        let rebuilt = |found: &Snapshot| {
            found.config.as_ref().is_some_and(|config| !config.value.rebuilt_from.is_empty())
        };
        let (back, _) = until("the rebuilt store", &rebuilt);
        println!(
            "rebuilt {:?} after etcd was back, memory + {} KiB, peak {} KiB",
            back - begin,
            status("VmRSS").saturating_sub(before),
            status("VmHWM")
        );
        assert_eq!(*missing.lock().unwrap(), 0, "snapshots without them");
        assert_eq!(etcd.pairs(HOSTS).len(), 12_006);
        handle.session.stop();
    });
}
