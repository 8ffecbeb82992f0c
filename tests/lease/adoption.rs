//! Hosts with existing keys, and names in use.

use humanz::etcd::Update;
use humanz::lease::LeaseError;
use humanz::lease::records::Alive;

use crate::host::{HOSTS, HUMANZ, Host, SOON, pool, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

#[test]
fn what_the_python_agent_left_is_adopted_and_completed() {
    isolated(|| {
        let etcd = EtcdServer::start();
        etcd.put(&format!("{HOSTS}/h1"), "10.244.17.0/24");
        let host = Host::up(&etcd, "h1");
        assert_eq!(host.subnet(), "10.244.17.0/24");
        assert_eq!(etcd.get(&format!("{HUMANZ}/subnets/4/10.244.17.0-24")).unwrap(), "h1");
        assert!(etcd.get(&format!("{HUMANZ}/nodes/h1")).unwrap().contains("machine-of-h1"));
        assert_eq!(etcd.pairs(&format!("{HOSTS}/h1"))[0].version(), 1, "the key is not touched");
        assert_eq!(etcd.list("/humanz/counter"), [], "no number is drawn");
    });
}

#[test]
fn a_restart_keeps_the_subnet_whichever_keys_are_missing() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let _first = Host::up(&etcd, "h1");
        let saved = Host::up(&etcd, "h2").stop();
        for gone in
            ["/humanz/v1/subnets/4/10.244.2.0-24", "/humanz/v1/nodes/h2", "/humanz/hosts/h2"]
        {
            etcd.delete(gone);
            let host = Host::up(&etcd, "h2");
            assert_eq!(host.subnet(), "10.244.2.0/24", "without {gone}");
            assert!(etcd.get(gone).is_some(), "{gone} is written again");
            host.stop();
        }
        for gone in
            [format!("{HUMANZ}/subnets/"), format!("{HUMANZ}/nodes/h2"), format!("{HOSTS}/h2")]
        {
            etcd.delete_all(&gone);
        }
        let mut start = start(&etcd, "h2");
        start.saved = Some(saved);
        assert_eq!(Host::launch(start).subnet(), "10.244.2.0/24", "it is remembered");
    });
}

#[test]
fn a_reboot_keeps_the_subnet_and_publishes_the_new_boot_id() {
    isolated(|| {
        let etcd = EtcdServer::start();
        Host::up(&etcd, "h1").stop();
        let mut again = start(&etcd, "h1");
        again.identity.boot_id = "boot-2".to_owned();
        let host = Host::launch(again);
        assert_eq!(host.subnet(), "10.244.1.0/24");
        host.until("the new boot", |found| &*found.nodes["h1"].value.boot_id == "boot-2");
    });
}

#[test]
fn a_name_of_a_living_machine_is_refused_and_of_a_dead_one_taken_over() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let living = Host::up(&etcd, "h1");
        let mut other = start(&etcd, "h1");
        other.identity.machine_id = "another-machine".to_owned();
        match Host::launch(other).fatal() {
            LeaseError::HeldByOther { host, machine_id, addresses, since } => {
                assert_eq!((host.as_str(), machine_id.as_str()), ("h1", "machine-of-h1"));
                assert_eq!(addresses.v4.unwrap().to_string(), "192.0.2.1");
                assert!(since.starts_with("20") && since.ends_with('Z'), "{since}");
            }
            other => panic!("{other}"),
        }
        living.stop();
        let mut other = start(&etcd, "h1");
        other.identity.machine_id = "another-machine".to_owned();
        let host = Host::launch(other);
        assert_eq!(host.subnet(), "10.244.1.0/24");
        host.until("its own record", |found| {
            &*found.nodes["h1"].value.machine_id == "another-machine"
        });
    });
}

#[test]
fn a_name_taken_by_another_machine_is_reported_and_not_contended() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let mark = host.mark();
        let key = format!("{HUMANZ}/alive/h1");
        let other = Alive::new("another-machine", std::time::UNIX_EPOCH).to_json();
        etcd.put(&key, other.as_str());
        host.reported(mark, "trouble", |update| {
            matches!(update, Update::Trouble(Some(LeaseError::HeldByOther { .. })))
        });
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        host.until_peers("others all the same", |peers| peers.by_name.contains_key("h3"));
        assert_eq!(etcd.get(&key).unwrap(), other);
        let mark = host.mark();
        etcd.delete(&key);
        host.reported(mark, "no trouble", |update| matches!(update, Update::Trouble(None)));
        eventually("its own liveness key", SOON, || {
            let alive = etcd.get(&key).unwrap_or_default();
            if alive.contains("machine-of-h1") { Ok(()) } else { Err(alive) }
        });
    });
}

#[test]
fn of_machines_that_start_at_once_with_one_name_one_is_served() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let hosts: Vec<_> = (0..8)
            .map(|n| {
                let mut start = start(&etcd, "h1");
                start.identity.machine_id = format!("machine-{n}");
                Host::launch(start)
            })
            .collect();
        let served = |host: &Host| {
            host.wait("an end", |updates| {
                updates.iter().find_map(|(_, update)| match update {
                    Update::Snapshot(_) => Some(true),
                    Update::Fatal(LeaseError::HeldByOther { .. }) => Some(false),
                    _ => None,
                })
            })
        };
        assert_eq!(hosts.iter().filter(|host| served(host)).count(), 1);
    });
}

#[test]
fn a_pool_that_no_longer_holds_the_subnet_is_refused() {
    isolated(|| {
        let etcd = EtcdServer::start();
        Host::up(&etcd, "h1").stop();
        let mut changed = start(&etcd, "h1");
        changed.network.pools.v4 = Some(pool("10.99.0.0/16", 8));
        let error = Host::launch(changed).fatal();
        let LeaseError::OutsidePool { subnet, pool, .. } = &error else { panic!("{error}") };
        assert_eq!((&*subnet.to_string(), &*pool.to_string()), ("10.244.1.0/24", "10.99.0.0/16"));
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")).unwrap(), "10.244.1.0/24", "nothing changed");
    });
}

#[test]
fn a_new_host_with_other_settings_than_the_network_is_refused() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let _first = Host::up(&etcd, "h1");
        let mut other = start(&etcd, "h2");
        other.network.pools.v4 = Some(pool("10.244.0.0/16", 7));
        let error = Host::launch(other).fatal().to_string();
        assert!(
            error.contains("IP_SUBNET_MARGIN is 7 on this host, but 8 in the network"),
            "{error}"
        );
        assert_eq!(etcd.get(&format!("{HOSTS}/h2")), None);
    });
}

#[test]
fn a_dual_stack_host_gets_both_and_an_ipv6_one_writes_its_key() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let dual = |name| {
            let mut start = start(&etcd, name);
            start.network.pools.v6 = Some(pool("fd00:10::/48", 16));
            start
        };
        let (one, two) = (Host::launch(dual("h1")), Host::launch(dual("h2")));
        one.until_peers("both", |peers| {
            peers
                .by_name
                .get("h2")
                .is_some_and(|peer| peer.subnets.v4.is_some() && peer.subnets.v6.is_some())
        });
        let (v6, other) = (one.lease().subnets.v6.unwrap(), two.lease().subnets.v6.unwrap());
        assert_ne!(v6, other);
        assert_eq!(etcd.get(&format!("{HUMANZ}/subnets/6/{}-64", v6.ip())).unwrap(), "h1");
    });
    isolated(|| {
        let etcd = EtcdServer::start();
        let mut only = start(&etcd, "h1");
        only.network.pools.v4 = None;
        only.network.pools.v6 = Some(pool("fd00:10::/48", 16));
        let host = Host::launch(only);
        host.snapshot();
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")).unwrap(), "fd00:10:0:1::/64");
    });
}
