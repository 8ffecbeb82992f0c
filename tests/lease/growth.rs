//! The pool of a network grows while hosts use it.

use std::collections::BTreeSet;

use humanz::etcd::{EtcdSetup, Update};
use humanz::lease::LeaseError;
use humanz::net::{PerFamily, subnet};

use crate::host::{COUNTER, HUMANZ, Host, SOON, pool, settings, start, v4_pools};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

/// The answer for a host whose settings have `network` and `margin`.
fn configured(etcd: &EtcdServer, host: &Host, network: &str, margin: u8) -> EtcdSetup {
    let mut wide = host.network.clone();
    wide.pools = PerFamily { v4: Some(pool(network, margin)), v6: None };
    EtcdSetup { etcd: settings(&[etcd.url()]), network: wide }
}

fn config(etcd: &EtcdServer) -> String {
    etcd.get(&format!("{HUMANZ}/config")).unwrap_or_default()
}

#[test]
fn one_host_widens_the_pool_and_the_others_continue() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (first, second) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        let (lease, mark) = (first.lease(), second.mark());
        first.handle().session.set_up(configured(&etcd, &first, "10.244.0.0/15", 9));
        second.until("the wide pool", |snapshot| {
            snapshot
                .config
                .as_ref()
                .is_some_and(|config| config.value.pools().v4 == Some(pool("10.244.0.0/15", 9)))
        });
        // A host configured with the narrow pool joins the wide one, with a subnet outside the
        // narrow one.
        for _ in 0..255 {
            etcd.put(COUNTER, "");
        }
        let third = Host::up(&etcd, "h3");
        assert!(third.subnet().starts_with("10.245."), "{}", third.subnet());
        second.until("the third host", |snapshot| snapshot.hosts.contains_key("h3"));
        assert_eq!(second.ever_missing(mark, &["h1", "h2"]), [].into());
        let trouble = second.since(mark).into_iter().any(|u| matches!(u, Update::Trouble(Some(_))));
        assert!(!trouble, "the narrow pool is none");
        assert_eq!(first.lease(), lease);
        // No host narrows it again, and a starting host may widen it too.
        second.stop();
        let second = Host::up(&etcd, "h2");
        assert_eq!(second.subnet(), "10.244.2.0/24");
        assert!(config(&etcd).contains("10.244.0.0/15"));
        let mut wider = start(&etcd, "h2");
        wider.saved = Some(second.stop());
        wider.network.pools.v4 = Some(pool("10.244.0.0/14", 10));
        let second = Host::launch(wider);
        assert_eq!(second.subnet(), "10.244.2.0/24");
        assert!(config(&etcd).contains("10.244.0.0/14"));
    });
}

#[test]
fn hosts_configured_with_different_widths_at_once_end_with_the_widest() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let hosts: Vec<_> = (1..=4).map(|n| Host::up(&etcd, &format!("h{n}"))).collect();
        let subnets: Vec<_> = hosts.iter().map(Host::subnet).collect();
        for (host, (network, margin)) in hosts.iter().zip([
            ("10.244.0.0/15", 9),
            ("10.240.0.0/12", 12),
            ("10.244.0.0/14", 10),
            ("10.244.0.0/16", 8),
        ]) {
            host.handle().session.set_up(configured(&etcd, host, network, margin));
        }
        eventually("the widest", SOON, || {
            let found = config(&etcd);
            if found.contains("10.240.0.0/12") { Ok(()) } else { Err(found) }
        });
        for (host, subnet) in hosts.iter().zip(&subnets) {
            host.until("the widest", |snapshot| {
                snapshot
                    .config
                    .as_ref()
                    .is_some_and(|c| c.value.pools().v4 == Some(pool("10.240.0.0/12", 12)))
            });
            assert_eq!(host.leases(), [subnet.clone()].into());
        }
    });
}

/// The wide pool begins lower, so the same slot is another subnet for a host configured with the
/// narrow one.
#[test]
fn hosts_that_join_while_the_pool_grows_never_share_a_subnet() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let launch = |number: u8| {
            let mut start = start(&etcd, &format!("h{number}"));
            let configured = [("10.244.0.0/20", 4), ("10.244.8.0/21", 3)];
            let (network, margin) = configured[usize::from(number % 2)];
            start.network.pools.v4 = Some(pool(network, margin));
            Host::launch(start)
        };
        let hosts: Vec<Host> = std::thread::scope(|scope| {
            let starts: Vec<_> = (1..=14).map(|n| scope.spawn(move || launch(n))).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let subnets: BTreeSet<String> = hosts.iter().map(Host::subnet).collect();
        assert_eq!(subnets.len(), hosts.len(), "{subnets:?}");
        let narrow = pool("10.244.8.0/21", 3).network();
        let is_new = |text: &String| !subnet::contains(narrow, subnet::parse(text).unwrap());
        assert!(subnets.iter().any(is_new), "{subnets:?}");
        assert!(config(&etcd).contains("10.244.0.0/20"));
        for host in &hosts {
            host.until("all hosts", |snapshot| snapshot.hosts.len() == hosts.len());
        }
    });
}

#[test]
fn a_pool_that_would_cover_a_host_is_refused_and_nothing_else_stops() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let first = Host::up(&etcd, "h1");
        let mut second = start(&etcd, "h2");
        second.attributes.addresses.v4 = Some("10.245.0.9".parse().unwrap());
        let second = Host::launch(second);
        second.snapshot();
        let mark = first.mark();
        first.handle().session.set_up(configured(&etcd, &first, "10.244.0.0/15", 9));
        first.reported(mark, "trouble", |update| {
            matches!(update, Update::Trouble(Some(LeaseError::CannotGrow { .. })))
        });
        assert!(config(&etcd).contains("10.244.0.0/16"));
        let _third = Host::up(&etcd, "h3");
        first.until("the third host", |snapshot| snapshot.hosts.contains_key("h3"));
        let mark = first.mark();
        first.handle().session.set_up(configured(&etcd, &first, "10.244.0.0/16", 8));
        first.reported(mark, "no trouble", |update| matches!(update, Update::Trouble(None)));

        let mut fresh = start(&etcd, "h4");
        fresh.network.pools.v4 = Some(pool("10.244.0.0/15", 9));
        let LeaseError::CannotGrow { why, .. } = Host::launch(fresh).fatal() else { panic!() };
        assert!(why.contains("10.245.0.9") && why.contains("h2"), "{why}");
    });
}

/// Whoever made it, and whatever the agent knows of it.
#[test]
fn a_pool_that_would_cover_a_network_of_a_tenant_is_refused_and_nothing_else_stops() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let first = Host::up(&etcd, "h1");
        let object = r#"{"apiVersion": "humanz.io/v1", "kind": "Network",
            "metadata": {"tenant": "blue", "name": "front"}, "spec": {"subnets": ["10.245.0.0/16"]}}"#;
        let key = format!("{HUMANZ}-policies/Network/blue/front");
        etcd.put(&key, object);
        let mark = first.mark();
        first.handle().session.set_up(configured(&etcd, &first, "10.244.0.0/15", 9));
        first.reported(mark, "trouble", |update| {
            matches!(update, Update::Trouble(Some(LeaseError::CannotGrow { why, .. }))
                if why.contains("10.245.0.0/16 of network blue/front"))
        });
        assert!(config(&etcd).contains("10.244.0.0/16"));
        let _second = Host::up(&etcd, "h2");
        first.until("the second host", |snapshot| snapshot.hosts.contains_key("h2"));
        let mut fresh = start(&etcd, "h3");
        fresh.network.pools.v4 = Some(pool("10.244.0.0/15", 9));
        let LeaseError::CannotGrow { why, .. } = Host::launch(fresh).fatal() else { panic!() };
        assert!(why.contains("network blue/front"), "{why}");
        etcd.delete(&key);
        first.handle().session.set_up(configured(&etcd, &first, "10.244.0.0/14", 10));
        first.until("the wide pool", |_| config(&etcd).contains("10.244.0.0/14"));
        assert_eq!(first.leases(), ["10.244.1.0/24".to_owned()].into());
    });
}

#[test]
fn a_changed_etcd_address_moves_every_connection() {
    isolated(|| {
        let old = EtcdServer::start();
        let (first, second) = (Host::up(&old, "h1"), Host::up(&old, "h2"));
        first.until("both", |snapshot| snapshot.hosts.len() == 2);
        let new = EtcdServer::start_other();
        for host in [&first, &second] {
            let network = host.network.clone();
            host.handle().session.set_up(EtcdSetup { etcd: settings(&[new.url()]), network });
        }
        for host in [&first, &second] {
            let is_new = |update: &Update| matches!(update, Update::Connected { endpoint } if *endpoint == new.url());
            host.reported(0, "the new member", is_new);
        }
        for (name, subnet) in [("h1", "10.244.1.0/24"), ("h2", "10.244.2.0/24")] {
            eventually("all is there", SOON, || {
                let found = new.get(&format!("/humanz/hosts/{name}"));
                let alive = new.get(&format!("{HUMANZ}/alive/{name}"));
                if found.as_deref() == Some(subnet) && alive.is_some() {
                    Ok(())
                } else {
                    Err(format!("{found:?} {alive:?}"))
                }
            });
        }
        drop(old);
        let third = Host::up(&new, "h3");
        assert_eq!(third.network.pools, v4_pools());
        first.until("the third host", |snapshot| snapshot.hosts.contains_key("h3"));
        assert_eq!(first.leases(), ["10.244.1.0/24".to_owned()].into());
    });
}
