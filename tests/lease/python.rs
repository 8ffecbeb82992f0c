//! Hosts of the Python agent in the same network: they draw a number by a put and a later get, and
//! write their key without looking.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use humanz::net::subnet;
use ipnetwork::IpNetwork;

use crate::host::{COUNTER, HOSTS, Host, SOON, pool, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

/// The first start of the Python agent, with `gap` between its steps.
fn python_joins(etcd: &EtcdServer, name: &str, gap: Duration) {
    etcd.put(COUNTER, "");
    thread::sleep(gap);
    let version = etcd.pairs(COUNTER).pop().unwrap().version();
    thread::sleep(gap);
    let slot = u32::try_from(version).unwrap();
    etcd.put(&format!("{HOSTS}/{name}"), pool("10.244.0.0/16", 8).subnet(slot).to_string());
}

#[test]
fn hosts_of_both_agents_that_start_together_do_not_share_a_subnet() {
    isolated(|| {
        let etcd = EtcdServer::start();
        python_joins(&etcd, "py0", Duration::ZERO);
        let humanz: Vec<_> =
            (1..=30).map(|n| Host::launch(start(&etcd, &format!("h{n}")))).collect();
        // Sequentially: two concurrent ones can share a subnet, independent of other hosts.
        for n in 1..=15 {
            python_joins(&etcd, &format!("py{n}"), Duration::from_millis(30));
        }
        let mut owners: BTreeMap<IpNetwork, String> = BTreeMap::new();
        for host in &humanz {
            let subnet = host.lease().subnets.v4.unwrap();
            let other = owners.insert(subnet, host.identity.name.to_string());
            assert_eq!(other, None, "{subnet} of {}", host.identity.name);
        }
        for (key, value) in etcd.list(&format!("{HOSTS}/py")) {
            let subnet = subnet::parse(&value).unwrap();
            assert_eq!(owners.get(&subnet), None, "{subnet} of {key}");
        }
        assert_eq!(etcd.list(HOSTS).len(), 46);
    });
}

#[test]
fn a_python_host_that_takes_a_held_subnet_is_reported_and_gets_no_route() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        etcd.put(&format!("{HOSTS}/py"), one.subnet());
        for host in [&one, &two] {
            host.until_peers("a fault", |peers| {
                let messages = peers.faults.iter().map(ToString::to_string);
                messages.into_iter().any(|fault| fault.starts_with("host py: subnet 10.244.1.0/24"))
                    && !peers.by_name.contains_key("py")
            });
        }
        assert!(two.peers().by_name.contains_key("h1"));
        assert_eq!(one.subnet(), "10.244.1.0/24");
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")).unwrap(), "10.244.1.0/24");
    });
}

#[test]
fn a_subnet_of_a_manual_key_is_not_claimed() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let hosts: Vec<_> =
            (1..=30).map(|n| Host::launch(start(&etcd, &format!("h{n}")))).collect();
        // Always the subnets that the next hosts are about to choose, so that some are put between
        // what a host reads and what it writes.
        etcd.call(async |client| {
            let mut next = 1;
            while next < 40 {
                let drawn =
                    client.get(COUNTER, None).await?.kvs().first().map_or(0, |kv| kv.version());
                if drawn + 2 > next && drawn > 0 {
                    let subnet = format!("10.244.{next}.0/24");
                    client.put(format!("{HOSTS}/by-hand-{next}"), subnet, None).await?;
                    next += 2;
                }
                if hosts.iter().all(|host| host.mark() > 0) && drawn >= 30 {
                    break;
                }
            }
            Ok(())
        });
        for host in &hosts {
            host.lease();
        }
        let (mut by_hand, mut claimed) = (BTreeMap::new(), Vec::new());
        for pair in etcd.pairs(HOSTS) {
            let (key, subnet) =
                (pair.key_str().unwrap().to_owned(), pair.value_str().unwrap().to_owned());
            match key.contains("by-hand") {
                true => drop(by_hand.insert(subnet, pair.create_revision())),
                false => claimed.push((key, subnet, pair.create_revision())),
            }
        }
        assert!(!by_hand.is_empty());
        for (key, subnet, created) in claimed {
            let earlier = by_hand.get(&subnet).is_some_and(|by_hand| *by_hand < created);
            assert!(!earlier, "{key} claimed {subnet}, which was there");
        }
    });
}

#[test]
fn a_host_whose_number_a_python_host_reads_too_takes_another() {
    isolated(|| {
        let etcd = EtcdServer::start();
        python_joins(&etcd, "py0", Duration::ZERO);
        etcd.put(COUNTER, "");
        let host = Host::launch(start(&etcd, "h1"));
        let claimed = eventually("a claim", SOON, || {
            etcd.get(&format!("{HOSTS}/h1")).ok_or_else(|| "none yet".to_owned())
        });
        let version = etcd.pairs(COUNTER).pop().unwrap().version();
        assert_eq!(claimed, format!("10.244.{version}.0/24"), "it would be shared");
        etcd.put(&format!("{HOSTS}/py1"), claimed.clone());
        assert_ne!(host.subnet(), claimed);
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")).unwrap(), host.subnet());
    });
}

#[test]
fn a_python_host_that_comes_later_gets_a_number_whose_subnet_is_free() {
    isolated(|| {
        let etcd = EtcdServer::start();
        etcd.put(&format!("{HOSTS}/by-hand"), "10.244.1.0/24");
        let host = Host::up(&etcd, "h1");
        assert_eq!(host.subnet(), "10.244.2.0/24");
        python_joins(&etcd, "py", Duration::ZERO);
        assert_eq!(etcd.get(&format!("{HOSTS}/py")).unwrap(), "10.244.3.0/24");
    });
}

#[test]
fn of_two_python_hosts_with_one_subnet_the_first_keeps_it_when_it_is_converted() {
    isolated(|| {
        let etcd = EtcdServer::start();
        etcd.put(&format!("{HOSTS}/h2"), "10.244.9.0/24");
        etcd.put(&format!("{HOSTS}/dup"), "10.244.9.0/24");
        let host = Host::up(&etcd, "h2");
        assert_eq!(host.subnet(), "10.244.9.0/24", "its pods have addresses of that");
        host.until_peers("the other is reported", |peers| {
            peers.faults.iter().any(|fault| fault.to_string().starts_with("host dup: subnet"))
        });
        assert_eq!(
            etcd.get(&format!("{HOSTS}/dup")).unwrap(),
            "10.244.9.0/24",
            "not ours to touch"
        );
        let dup = Host::up(&etcd, "dup");
        assert_ne!(dup.subnet(), "10.244.9.0/24", "that is taken when it is converted");
        assert_eq!(host.subnet(), "10.244.9.0/24");
    });
}
