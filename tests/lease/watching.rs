//! Changes of other hosts, and their delay.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use humanz::etcd::Update;
use humanz::lease::Snapshot;
use humanz::lease::records::Alive;
use humanz::net::PerFamily;

use crate::host::{HOSTS, HUMANZ, Host, start};
use crate::support::etcd::{EtcdServer, isolated};

/// Far above what is printed, which the bench holds against its target; only an event is so quick.
const PROMPT: Duration = Duration::from_secs(5);

/// The shortest of several takes: a busy machine delays any one of them.
fn shortest(takes: usize, mut take: impl FnMut(usize) -> Duration) -> Duration {
    (0..takes).map(&mut take).min().unwrap()
}

#[test]
fn joining_leaving_and_moving_hosts_are_received_promptly() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let timed =
            |change: &str, value: Option<&str>, known: &dyn Fn(&humanz::lease::Peers) -> bool| {
                let sent = etcd.call(async |client| {
                    client.get("x", None).await?;
                    let sent = Instant::now();
                    match value {
                        Some(value) => client.put(change, value, None).await.map(drop)?,
                        None => client.delete(change, None).await.map(drop)?,
                    }
                    Ok(sent)
                });
                host.until_peers(change, known).duration_since(sent)
            };
        let key = format!("{HOSTS}/h9");
        let has = |subnet: &'static str| {
            move |peers: &humanz::lease::Peers| {
                let peer = peers.by_name.get("h9");
                peer.and_then(|peer| peer.subnets.v4).is_some_and(|had| had.to_string() == subnet)
            }
        };
        let joined = shortest(5, |_| {
            let took = timed(&key, Some("10.244.9.0/24"), &has("10.244.9.0/24"));
            etcd.delete(&key);
            host.until_peers("gone again", |peers| peers.by_name.is_empty());
            took
        });
        etcd.put(&key, "10.244.9.0/24");
        let moved = shortest(6, |n| {
            let subnet = ["10.244.8.0/24", "10.244.9.0/24"][n % 2];
            timed(&key, Some(subnet), &has(subnet))
        });
        let node = |address: &str| {
            format!(
                r#"{{"schema":1,"machineId":"m9","bootId":"b","version":"0.1.0","subnets":["10.244.9.0/24"],"addresses":["{address}"],"backend":"direct","mtu":1500}}"#
            )
        };
        let readdressed = shortest(6, |n| {
            let address = ["192.0.2.9", "192.0.2.99"][n % 2];
            timed(&format!("{HUMANZ}/nodes/h9"), Some(&node(address)), &move |peers| {
                let address: IpAddr = address.parse().unwrap();
                peers.by_name.get("h9").is_some_and(|peer| peer.addresses.v4 == Some(address))
            })
        });
        let left = shortest(5, |_| {
            let took = timed(&key, None, &|peers| !peers.by_name.contains_key("h9"));
            etcd.put(&key, "10.244.9.0/24");
            host.until_peers("back again", |peers| peers.by_name.contains_key("h9"));
            took
        });
        println!(
            "joined {joined:?}, new subnet {moved:?}, new address {readdressed:?}, left {left:?}"
        );
        assert!([joined, moved, readdressed, left].iter().all(|took| *took < PROMPT));
    });
}

#[test]
fn a_host_that_moves_publishes_its_new_address_and_keeps_its_subnet() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        let address: IpAddr = "192.0.2.200".parse().unwrap();
        let mut attributes = two.attributes.clone();
        attributes.addresses = PerFamily { v4: Some(address), v6: "2001:db8::2".parse().ok() };
        attributes.mtu = 1400;
        let mark = two.mark();
        two.handle().session.set_attributes(attributes);
        one.until_peers("the new address", |peers| {
            let peer = peers.by_name.get("h2");
            peer.is_some_and(|peer| peer.addresses.v4 == Some(address) && peer.mtu == Some(1400))
        });
        two.until("its own record", |found| found.nodes["h2"].value.mtu == 1400);
        let lease_changed = two.since(mark).iter().any(|update| matches!(update, Update::Lease(_)));
        assert!(!lease_changed, "the lease did not change");
        assert_eq!(one.peers().by_name["h2"].subnets, two.lease().subnets);
    });
}

#[test]
fn a_stopped_host_is_not_alive_and_keeps_everything_else() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        one.until_peers("alive", |peers| peers.by_name.get("h2").is_some_and(|peer| peer.alive));
        let before = Instant::now();
        two.stop();
        assert!(before.elapsed() < Duration::from_secs(2), "a stop is quick");
        one.until_peers("not alive", |peers| {
            peers.by_name.get("h2").is_some_and(|peer| !peer.alive)
        });
        assert_eq!(one.peers().by_name["h2"].subnets.v4.unwrap().to_string(), "10.244.2.0/24");
    });
}

#[test]
fn a_lost_liveness_key_is_restored_and_changes_nothing_else() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let key = format!("{HUMANZ}/alive/h1");
        host.until("alive", |found| found.alive.contains_key("h1"));
        let lease = etcd.pairs(&key)[0].lease();
        etcd.delete(&key);
        host.until("alive again", |found| {
            found.alive.get("h1").is_some_and(|alive| alive.created > 1)
        });
        etcd.call(async |client| client.lease_client().revoke(lease).await.map(drop));
        crate::support::wait::eventually("another lease", crate::host::SOON, || {
            let pairs = etcd.pairs(&key);
            let other = pairs.first().is_some_and(|pair| pair.lease() != lease);
            if other { Ok(()) } else { Err(format!("{pairs:?}")) }
        });
        let alive = Alive::parse(etcd.get(&key).unwrap().as_bytes()).unwrap();
        assert_eq!(&*alive.machine_id, "machine-of-h1");
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn own_keys_deleted_or_overwritten_by_hand_are_restored_at_once() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        two.until_peers("h1", |peers| peers.by_name.contains_key("h1"));
        let node = etcd.get(&format!("{HUMANZ}/nodes/h1")).unwrap();
        let keys = [
            (format!("{HOSTS}/h1"), "10.244.1.0/24"),
            (format!("{HUMANZ}/nodes/h1"), node.as_str()),
            (format!("{HUMANZ}/subnets/4/10.244.1.0-24"), "h1"),
        ];
        let back = |what: &str| {
            crate::support::wait::eventually(what, crate::host::SOON, || {
                let wrong =
                    keys.iter().find(|(key, value)| etcd.get(key).as_deref() != Some(value));
                wrong.map_or(Ok(()), |(key, _)| Err(format!("{key}: {:?}", etcd.get(key))))
            });
        };
        for (key, _) in &keys {
            etcd.delete(key);
            back(&format!("{key} deleted"));
            for value in ["10.244.77.0/24", "$(touch /x)", "h2", ""] {
                etcd.put(key, value);
                back(&format!("{key} overwritten"));
            }
        }
        assert_eq!(one.subnet(), "10.244.1.0/24");
        two.until_peers("h1 again", |peers| {
            peers.by_name.get("h1").is_some_and(|peer| !peer.addresses.is_empty())
        });
    });
}

/// Who reads of the loss sooner than the owner would take its routes away, and end its encrypted sessions.
#[test]
fn what_a_living_host_puts_back_was_missing_for_nobody() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (_one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        let (node, host) = (format!("{HUMANZ}/nodes/h1"), format!("{HOSTS}/h1"));
        let own = [(&node, etcd.get(&node).unwrap()), (&host, etcd.get(&host).unwrap())];
        two.until("alive", |found| found.alive.contains_key("h1"));
        let complete =
            |found: &Snapshot| found.nodes.contains_key("h1") && found.hosts.contains_key("h1");
        for value in [None, Some(""), Some("{}"), Some("$(touch /x)")].repeat(5) {
            for (key, before) in &own {
                let mark = two.mark();
                match value {
                    Some(value) => drop(etcd.put(key, value)),
                    None => drop(etcd.delete(key)),
                }
                crate::support::wait::eventually("put back", crate::host::SOON, || {
                    let now = etcd.get(key);
                    if now.as_ref() == Some(before) { Ok(()) } else { Err(format!("{now:?}")) }
                });
                let back = etcd.pairs(key)[0].mod_revision();
                two.until("read again", |found| found.revision >= back);
                let lacking = two
                    .since(mark)
                    .into_iter()
                    .filter(|update| matches!(update, Update::Snapshot(found) if !complete(found)));
                assert_eq!(lacking.count(), 0, "{key}: {value:?}");
            }
        }
    });
}

/// A key without an agent: nobody puts back what it lost, one after the other.
#[test]
fn a_record_that_stays_away_is_missing_after_a_second() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        let key = |range: &str| format!("{HUMANZ}/{range}/h1");
        let value = etcd.get(&key("alive")).unwrap();
        one.stop();
        etcd.put(&key("alive"), value);
        two.until("alive", |found| found.alive.contains_key("h1"));
        let after = |key: &str, is_lost: fn(&Snapshot) -> bool| {
            let deleted = Instant::now();
            etcd.delete(key);
            let took = two.until("gone", is_lost) - deleted;
            assert!(took > Duration::from_millis(900), "{key}: {took:?}");
        };
        after(&key("nodes"), |found| !found.nodes.contains_key("h1"));
        after(&format!("{HOSTS}/h1"), |found| !found.hosts.contains_key("h1"));
    });
}

/// As a stolen host may do with its own keys.
#[test]
fn a_host_that_lost_its_record_and_writes_on_delays_no_other_one_for_long() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        let [alive, node] = ["alive", "nodes"].map(|range| format!("{HUMANZ}/{range}/h1"));
        let value = etcd.get(&alive).unwrap();
        one.stop();
        etcd.put(&alive, value.as_str());
        two.until("alive", |found| found.alive.contains_key("h1"));
        let begun = Instant::now();
        etcd.delete(&node);
        etcd.put(&format!("{HOSTS}/h9"), "10.244.9.0/24");
        while begun.elapsed() < PROMPT {
            etcd.put(&alive, value.as_str());
        }
        let ended = Instant::now();
        let seen = two.wait("h9", |updates| {
            let has = |update: &Update| {
                matches!(update, Update::Snapshot(found) if found.hosts.contains_key("h9"))
            };
            updates.iter().find(|(_, update)| has(update)).map(|(at, _)| *at)
        });
        assert!(seen < ended, "only once it was over: {:?}", seen - begun);
    });
}

#[test]
fn a_subnet_taken_while_the_host_runs_is_reported_and_kept() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let mark = host.mark();
        // In one revision, as another host would do it that took the name's keys for abandoned.
        let (key, claim) = (format!("{HOSTS}/h1"), format!("{HUMANZ}/subnets/4/10.244.1.0-24"));
        let (other, node) = (format!("{HOSTS}/h2"), format!("{HUMANZ}/nodes/h1"));
        etcd.call(async |client| {
            use etcd_client::{Txn, TxnOp};
            let operations = [
                TxnOp::delete(key.as_str(), None),
                TxnOp::delete(node.as_str(), None),
                TxnOp::put(claim.as_str(), "h2", None),
                TxnOp::put(other.as_str(), "10.244.1.0/24", None),
            ];
            client.txn(Txn::new().and_then(operations)).await.map(drop)
        });
        host.reported(mark, "trouble", |update| {
            let Update::Trouble(Some(error)) = update else { return false };
            error.to_string().contains("10.244.1.0/24, which this host uses, belongs to host h2")
        });
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        host.until_peers("others all the same", |peers| peers.by_name.contains_key("h3"));
        assert_eq!(host.subnet(), "10.244.1.0/24");
        let mark = host.mark();
        etcd.delete(&claim);
        etcd.delete(&other);
        host.reported(mark, "no trouble", |update| matches!(update, Update::Trouble(None)));
        assert_eq!(etcd.get(&key).unwrap(), "10.244.1.0/24");
    });
}

#[test]
fn a_burst_of_changes_makes_few_snapshots() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::launch(start(&etcd, "h1"));
        host.snapshot();
        let mark = host.mark();
        etcd.call(async |client| {
            for n in 2..=200 {
                client.put(format!("{HOSTS}/h{n}"), format!("10.244.{n}.0/24"), None).await?;
            }
            Ok(())
        });
        host.until_peers("all", |peers| peers.by_name.len() == 199);
        let snapshots = host.since(mark).len();
        println!("199 puts made {snapshots} snapshots");
        assert!(snapshots < 199);
    });
}
