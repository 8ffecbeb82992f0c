//! etcd restored from an older snapshot that gives the subnet of a host to one that was removed.

use humanz::etcd::Update;
use humanz::lease::{LeaseError, Peers, Saved, peers};

use crate::host::{HOSTS, HUMANZ, Host};
use crate::loss::{eventually_says, started_with};
use crate::support::etcd::{EtcdServer, isolated};

#[test]
fn a_rolled_back_etcd_does_not_give_the_subnet_of_a_living_host_to_a_removed_one() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let backup = tempfile::tempdir().unwrap();
        let dead = Host::up(&etcd, "h1");
        let subnet = dead.subnet();
        // Its alive key is in the backup, too.
        etcd.kill();
        etcd.copy_data(&backup.path().join("data"));
        etcd.restart();
        dead.stop();
        for prefix in [HOSTS.to_owned(), format!("{HUMANZ}/nodes"), format!("{HUMANZ}/subnets")] {
            etcd.delete_all(&format!("{prefix}/"));
        }
        etcd.put(&format!("{HOSTS}/h2"), subnet.clone());
        let hosts = [Host::up(&etcd, "h2"), Host::up(&etcd, "h3")];
        assert_eq!(hosts[0].subnet(), subnet);
        for n in 0..20 {
            etcd.put(&format!("{HOSTS}/later{n}"), format!("10.244.{}.0/24", 100 + n));
        }
        for host in &hosts {
            host.until("all", |found| found.hosts.len() == 22 && found.nodes.len() == 2);
        }
        let (keys, marks) = (etcd.list(HOSTS), hosts.each_ref().map(Host::mark));
        etcd.kill();
        etcd.replace_data(&backup.path().join("data"));
        etcd.restart();
        eventually_says(&etcd, &keys, HOSTS);
        for (host, mark) in hosts.iter().zip(marks) {
            host.reported(mark, "that etcd went back", |update| {
                matches!(update, Update::Trouble(Some(LeaseError::StoreWentBack { .. })))
            });
            assert_eq!(host.leases().len(), 1);
        }
        let claim = format!("{HUMANZ}/subnets/4/{}", subnet.replace('/', "-"));
        assert_eq!(etcd.get(&claim).as_deref(), Some("h2"));
        assert_eq!(etcd.get(&format!("{HUMANZ}/nodes/h1")), None);
    });
}

/// h1, which is removed after a backup with its alive key, and h2, which gets its subnet; h3 knows them.
struct RolledBack {
    etcd: EtcdServer,
    backup: tempfile::TempDir,
    subnet: String,
    removed: Saved,
    owner: Host,
    survivor: Host,
}

impl RolledBack {
    fn new() -> RolledBack {
        let mut etcd = EtcdServer::start();
        let backup = tempfile::tempdir().unwrap();
        let removed = Host::up(&etcd, "h1");
        let subnet = removed.subnet();
        etcd.kill();
        etcd.copy_data(&backup.path().join("data"));
        etcd.restart();
        let removed = removed.stop();
        for prefix in [HOSTS.to_owned(), format!("{HUMANZ}/nodes"), format!("{HUMANZ}/subnets")] {
            etcd.delete_all(&format!("{prefix}/"));
        }
        etcd.put(&format!("{HOSTS}/h2"), subnet.clone());
        let (owner, survivor) = (Host::up(&etcd, "h2"), Host::up(&etcd, "h3"));
        assert_eq!(owner.subnet(), subnet);
        for n in 0..20 {
            etcd.put(&format!("{HOSTS}/later{n}"), format!("10.244.{}.0/24", 100 + n));
        }
        survivor.until("all", |found| found.hosts.len() == 22 && found.nodes.len() == 2);
        RolledBack { etcd, backup, subnet, removed, owner, survivor }
    }

    /// Puts the backup in the place of etcd's data.
    fn restore(etcd: &mut EtcdServer, backup: &tempfile::TempDir) {
        etcd.kill();
        etcd.replace_data(&backup.path().join("data"));
        etcd.restart();
    }
}

/// Snapshots since `mark` in which the survivor had no route to `owner`, or one to `removed`.
fn wrong_routes(survivor: &Host, mark: usize) -> Vec<Peers> {
    let subnets = survivor.lease().subnets;
    let pools = &survivor.network.pools;
    let published = survivor.since(mark).into_iter().filter_map(|update| match update {
        Update::Snapshot(found) => Some(peers(&found, &survivor.identity.name, &subnets, pools)),
        _ => None,
    });
    let is_wrong =
        |peers: &Peers| !peers.by_name.contains_key("h2") || peers.by_name.contains_key("h1");
    published.filter(is_wrong).collect()
}

/// Hosts other than h2 that had `subnet` in a snapshot of the survivor since `mark`.
fn wrong_owners(survivor: &Host, mark: usize, subnet: &str) -> Vec<String> {
    let published = survivor.since(mark).into_iter().filter_map(|update| match update {
        Update::Snapshot(found) => Some(found),
        _ => None,
    });
    let owners = published.flat_map(|found| {
        let had = found.hosts.iter().filter(|(_, stored)| stored.value.to_string() == subnet);
        had.map(|(host, _)| host.to_string()).collect::<Vec<_>>()
    });
    owners.filter(|host| host != "h2").collect()
}

#[test]
fn a_host_that_is_down_keeps_its_routes_when_an_older_snapshot_gives_its_subnet_to_a_removed_one() {
    isolated(|| {
        let RolledBack { mut etcd, backup, subnet, owner, survivor, .. } = RolledBack::new();
        let down = owner.stop();
        let (keys, mark) = (etcd.list(HOSTS), survivor.mark());
        RolledBack::restore(&mut etcd, &backup);
        eventually_says(&etcd, &keys, HOSTS);
        survivor.until("the return", |found| found.alive.contains_key("h3"));
        assert_eq!(wrong_routes(&survivor, mark), []);
        assert_eq!(etcd.get(&format!("{HUMANZ}/nodes/h1")), None);
        let claim = format!("{HUMANZ}/subnets/4/{}", subnet.replace('/', "-"));
        assert_eq!(etcd.get(&claim).as_deref(), Some("h2"));
        let back = started_with(&etcd, down);
        assert_eq!(back.subnet(), subnet);
        survivor.until("its return", |found| found.alive.contains_key("h2"));
        assert_eq!(wrong_routes(&survivor, mark), []);
        assert_eq!(back.leases().len(), 1);
    });
}

#[test]
fn a_removed_host_that_comes_back_beside_the_owner_of_its_former_subnet_gets_another_one() {
    isolated(|| {
        let scene = RolledBack::new();
        let RolledBack { mut etcd, backup, subnet, removed, owner, survivor } = scene;
        let down = owner.stop();
        let (keys, mark) = (etcd.list(HOSTS), survivor.mark());
        RolledBack::restore(&mut etcd, &backup);
        eventually_says(&etcd, &keys, HOSTS);
        let subnets = removed.lease.subnets;
        // Of the snapshot: until it expires, h1 asks whether another agent has its name.
        etcd.delete(&format!("{HUMANZ}/alive/h1"));
        let former = started_with(&etcd, removed);
        former.reported(0, "that its subnet is h2's", |update| {
            matches!(update, Update::Trouble(Some(LeaseError::SubnetLost { .. })))
        });
        former.handle().set_vacated(subnets);
        former.reported(
            0,
            "another subnet",
            |update| matches!(update, Update::Lease(lease) if lease.subnets != subnets),
        );
        survivor.until_peers("both", |peers| {
            peers.by_name.contains_key("h1") && peers.by_name.contains_key("h2")
        });
        let back = started_with(&etcd, down);
        assert_eq!((back.subnet(), back.leases().len()), (subnet, 1));
        assert_eq!(wrong_owners(&survivor, mark, &back.subnet()), [""; 0]);
    });
}
