//! A subnet that another host has, too.

use humanz::etcd::Update;
use humanz::lease::LeaseError;
use humanz::net::PerFamily;

use crate::host::{HOSTS, HUMANZ, Host, SOON, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

/// Waits until the host reports such a contradiction.
fn trouble(host: &Host, mark: usize, like: impl Fn(&LeaseError) -> bool) -> LeaseError {
    host.wait("trouble", |updates| {
        updates[mark..].iter().find_map(|(_, update)| match update {
            Update::Trouble(Some(error)) if like(error) => Some(error.clone()),
            _ => None,
        })
    })
}

fn shared(error: &LeaseError) -> bool {
    matches!(error, LeaseError::SubnetShared { .. })
}

fn lost(error: &LeaseError) -> bool {
    matches!(error, LeaseError::SubnetLost { .. })
}

/// The agent found no pod in the subnets of `host`.
fn vacate(host: &Host) {
    host.handle().set_vacated(host.lease().subnets);
}

fn until_it_has_another(host: &Host, before: &str) -> String {
    eventually("another subnet", SOON, || {
        let now = host.subnet();
        if now == before { Err(now) } else { Ok(now) }
    })
}

#[test]
fn a_subnet_that_a_slow_python_host_takes_is_given_up_once_it_has_no_pods() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let (before, mark) = (host.subnet(), host.mark());
        etcd.put(&format!("{HOSTS}/py"), before.clone());
        let error = trouble(&host, mark, shared).with_fix();
        for word in [&*before, "host h1", "host py", "drain host h1"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert_eq!(host.leases().len(), 1, "it has pods");
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")), Some(before.clone()));
        vacate(&host);
        let now = until_it_has_another(&host, &before);
        host.reported(mark, "no trouble", |update| matches!(update, Update::Trouble(None)));
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")), Some(now));
        assert_eq!(etcd.get(&format!("{HOSTS}/py")), Some(before.clone()));
        let claim = before.replace('/', "-");
        assert_eq!(etcd.get(&format!("{HUMANZ}/subnets/4/{claim}")), None, "its claim is gone");
    });
}

#[test]
fn a_host_with_pods_keeps_a_shared_subnet_until_the_other_host_gives_it_up() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let (before, mark) = (host.subnet(), host.mark());
        etcd.put(&format!("{HOSTS}/py"), before.clone());
        trouble(&host, mark, shared);
        let mark = host.mark();
        etcd.put(&format!("{HOSTS}/h7"), "10.244.77.0/24");
        host.until_peers("others all the same", |peers| peers.by_name.contains_key("h7"));
        etcd.delete(&format!("{HOSTS}/py"));
        host.reported(mark, "no trouble", |update| matches!(update, Update::Trouble(None)));
        assert_eq!(host.leases(), [before].into());
    });
}

#[test]
fn a_host_whose_subnet_was_given_away_keeps_it_for_its_pods_and_then_gets_another() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let saved = Host::up(&etcd, "h1").stop();
        let before = saved.lease.subnets.v4.unwrap().to_string();
        etcd.delete_all(&format!("{HOSTS}/h1"));
        etcd.delete_all(&format!("{HUMANZ}/nodes/h1"));
        etcd.delete_all(&format!("{HUMANZ}/subnets/"));
        etcd.put(&format!("{HOSTS}/h2"), before.clone());
        let heir = Host::up(&etcd, "h2");
        assert_eq!(heir.subnet(), before);
        let mut again = start(&etcd, "h1");
        again.saved = Some(saved);
        let host = Host::launch(again);
        let error = trouble(&host, 0, lost).with_fix();
        for word in [&*before, "host h2", "drain this host"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert_eq!(host.subnet(), before, "it is for running pods");
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")), None, "nothing is written");
        host.handle().set_vacated(PerFamily { v4: "10.244.99.0/24".parse().ok(), v6: None });
        etcd.put(&format!("{HOSTS}/h7"), "10.244.77.0/24");
        host.until("the next host", |found| found.hosts.contains_key("h7"));
        assert_eq!(host.subnet(), before, "another subnet is vacant");
        vacate(&host);
        let now = until_it_has_another(&host, &before);
        eventually("its keys", SOON, || {
            let key = etcd.get(&format!("{HOSTS}/h1"));
            if key.as_deref() == Some(&*now) { Ok(()) } else { Err(format!("{key:?}")) }
        });
        assert_eq!(
            (heir.subnet(), etcd.get(&format!("{HOSTS}/h2"))),
            (before.clone(), Some(before))
        );
    });
}

#[test]
fn a_claim_overwritten_with_the_name_of_a_new_host_does_not_give_it_the_subnet() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let saved = Host::up(&etcd, "h1").stop();
        let before = saved.lease.subnets.v4.unwrap().to_string();
        let claim = format!("{HUMANZ}/subnets/4/{}", before.replace('/', "-"));
        etcd.put(&claim, "h2");
        let other = Host::up(&etcd, "h2");
        assert_ne!(other.subnet(), before, "h1 has it by its host key and record");
        assert_eq!(etcd.get(&claim).as_deref(), Some("h2"), "only its owner puts it back");

        let mut again = start(&etcd, "h1");
        again.saved = Some(saved);
        let host = Host::launch(again);
        assert_eq!(host.subnet(), before);
        eventually("the claim is put back", SOON, || {
            let claimed = etcd.get(&claim);
            if claimed.as_deref() == Some("h1") { Ok(()) } else { Err(format!("{claimed:?}")) }
        });
        let knows = |host: &Host, name: &str, subnet: &str| {
            host.until_peers(name, |peers| {
                let theirs = peers.by_name.get(name).and_then(|peer| peer.subnets.v4);
                theirs.is_some_and(|theirs| theirs.to_string() == subnet)
            });
        };
        knows(&host, "h2", &other.subnet());
        knows(&other, "h1", &before);
        host.stop();

        // Without a proof of h1, the same claim is a reservation.
        etcd.delete(&format!("{HOSTS}/h1"));
        etcd.delete(&format!("{HUMANZ}/nodes/h1"));
        etcd.put(&claim, "h3");
        assert_eq!(Host::up(&etcd, "h3").subnet(), before);
    });
}
