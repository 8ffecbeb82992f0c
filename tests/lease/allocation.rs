//! Allocation of subnets.

use std::collections::BTreeSet;
use std::time::Instant;

use humanz::lease::LeaseError;

use crate::host::{HOSTS, HUMANZ, Host, pool, start};
use crate::support::etcd::{EtcdServer, isolated};

#[test]
fn the_first_host_gets_slot_1_and_writes_what_is_documented() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        assert_eq!(host.subnet(), "10.244.1.0/24");
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")).unwrap(), "10.244.1.0/24");
        assert_eq!(etcd.get(&format!("{HUMANZ}/subnets/4/10.244.1.0-24")).unwrap(), "h1");
        let node = etcd.get(&format!("{HUMANZ}/nodes/h1")).unwrap();
        assert!(
            node.contains(r#""subnets":["10.244.1.0/24"],"addresses":["192.0.2.1"]"#),
            "{node}"
        );
        let alive = etcd.pairs(&format!("{HUMANZ}/alive/h1")).pop().unwrap();
        assert_ne!(alive.lease(), 0, "the liveness key has a lease");
        assert!(etcd.pairs("/humanz/hosts").iter().all(|pair| pair.lease() == 0));
        assert_eq!(etcd.pairs("/humanz/counter").pop().unwrap().version(), 1);
    });
}

#[test]
fn fifty_hosts_at_once_get_fifty_subnets_in_seconds() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let begin = Instant::now();
        let hosts: Vec<_> =
            (1..=50).map(|n| Host::launch(start(&etcd, &format!("h{n}")))).collect();
        let subnets: BTreeSet<_> = hosts.iter().map(Host::subnet).collect();
        println!("fifty hosts: {:?}", begin.elapsed());
        assert_eq!(subnets.len(), 50);
        assert!(!subnets.contains("10.244.0.0/24"));
        assert_eq!(etcd.list(HOSTS).len(), 50);
        for host in &hosts {
            host.until_peers("all the others", |peers| peers.by_name.len() == 49);
            assert_eq!(host.peers().faults, []);
        }
    });
}

#[test]
fn a_pool_of_15_serves_15_of_20_and_refuses_the_others() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let hosts: Vec<_> = (1..=20)
            .map(|n| {
                let mut start = start(&etcd, &format!("h{n}"));
                start.network.pools.v4 = Some(pool("10.0.0.0/20", 4));
                Host::launch(start)
            })
            .collect();
        for host in &hosts {
            host.wait("an end", |updates| {
                use humanz::etcd::Update::{Fatal, Lease};
                updates
                    .iter()
                    .any(|(_, update)| matches!(update, Lease(_) | Fatal(_)))
                    .then_some(())
            });
        }
        let listed = etcd.list(HOSTS);
        let subnets: BTreeSet<_> = listed.iter().map(|(_, subnet)| subnet).collect();
        assert_eq!((listed.len(), subnets.len()), (15, 15));
        let served: BTreeSet<_> = listed.iter().map(|(key, _)| key.as_str()).collect();
        for host in &hosts {
            if !served.contains(format!("{HOSTS}/{}", host.identity.name).as_str()) {
                let error = host.fatal();
                assert!(error.is_temporary(), "{error}");
                assert!(
                    matches!(error, LeaseError::Exhausted { slots: 15, taken: 15, .. }),
                    "{error}"
                );
            }
        }
    });
}
