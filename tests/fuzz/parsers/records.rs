//! Values in etcd: every client with write access may write anything.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use humanz::lease::claim::{self, Step, leave};
use humanz::lease::records::{Backend, HostPods, Key, ReachabilityReport, Roots, TestAnswer};
use humanz::lease::restore::absent::Absent;
use humanz::lease::restore::removed::Rollback;
use humanz::lease::restore::{self, Continuity, Loss};
use humanz::lease::session::dry_run_claim;
use humanz::lease::snapshot::Raw;
use humanz::lease::{
    Claimant, HostAttributes, Identity, Network, PeerFault, Snapshot, growth, peers, tunnels,
};
use humanz::net::subnet::{self, Pool};
use humanz::net::{Family, PerFamily};

/// Lines `key=value`; a value `-` deletes the key. Keys without a leading `/` are below
/// humanz's own root.
pub fn records(data: &[u8]) {
    let own = own();
    let roots = &own.network.roots;
    let (mut before, mut found) = (Snapshot::default(), Snapshot::default());
    for (line, revision) in data.split(|byte| *byte == b'\n').zip(1..=64) {
        if line.is_empty() {
            before = found.clone();
            continue;
        }
        let mut halves = line.splitn(2, |byte| *byte == b'=');
        let (key, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        let key = match key {
            [b'/', ..] => key.to_vec(),
            _ => [b"/humanz/v1/", key].concat(),
        };
        match value {
            b"-" => found.delete(roots, &key, revision),
            _ => found.put(roots, Raw { key: &key, value, created: revision, modified: revision }),
        }
        round_trip(roots, &key);
        report(roots, &key, value);
        pods(roots, &key, value);
        tests(roots, &key, value);
    }
    believed(&found, &own);
    claimed(&found, &own);
    put_back(&before, &found, &own.network);
    let _keys = leave::keys(&found, &own.identity);
    let _narrow: Vec<String> = growth::outside(&found, &own.network.pools).collect();
}

fn own() -> Claimant {
    let pool = |text: &str, margin| Pool::new(subnet::parse(text).expect("a pool"), margin).ok();
    let roots = Roots {
        hosts: "/humanz/hosts".to_owned(),
        counter: "/humanz/counter".to_owned(),
        humanz: "/humanz/v1".to_owned(),
    };
    let pools = PerFamily { v4: pool("10.244.0.0/16", 8), v6: pool("fd10::/48", 16) };
    let limits = PerFamily { v4: "10.0.0.0/8".parse().ok(), v6: "fd00::/8".parse().ok() };
    let identity = Identity {
        name: "h1".parse().expect("a name"),
        machine_id: "m1".to_owned(),
        boot_id: "b".to_owned(),
        version: "0.1.0".to_owned(),
    };
    Claimant {
        identity,
        attributes: HostAttributes { mtu: 1500, ..HostAttributes::default() },
        network: Network {
            roots,
            pools,
            limits,
            backend: Backend::Direct,
            tenants: Default::default(),
        },
        keep: PerFamily::default(),
        remembered: PerFamily::default(),
        vacated: PerFamily::default(),
        without_record: BTreeSet::new(),
        leaves_claims: false,
        leaves_key_unclaimed: false,
        ticket: Some(1),
        has_raced: false,
        instance: "i1".to_owned(),
        alive: true,
    }
}

/// A key that was understood is written as it stood there.
fn round_trip(roots: &Roots, key: &[u8]) {
    if let Ok(Some(parsed)) = roots.parse(key) {
        assert_eq!(roots.key(&parsed).as_bytes(), key, "{parsed:?}");
    }
}

/// A valid report is read back as written.
fn report(roots: &Roots, key: &[u8], value: &[u8]) {
    if let Some(host) = roots.host_of_report(key) {
        assert_eq!(roots.report(&host).as_bytes(), key, "{host}");
        if let Ok(report) = ReachabilityReport::parse(value) {
            let text = report.to_json();
            assert_eq!(ReachabilityReport::parse(text.as_bytes()), Ok(report), "{text}");
        }
    }
}

/// Valid pods of a host are read back as written.
fn pods(roots: &Roots, key: &[u8], value: &[u8]) {
    if let Some(host) = roots.host_of_pods(key) {
        assert_eq!(roots.pods(&host).as_bytes(), key, "{host}");
    }
    if let Ok(pods) = HostPods::parse(value) {
        let text = pods.to_json();
        assert_eq!(HostPods::parse(text.as_bytes()), Ok(pods), "{text}");
    }
}

/// Keys of tests and valid answers are read back as written.
fn tests(roots: &Roots, key: &[u8], value: &[u8]) {
    if let Some((host, other)) = roots.test_hosts(key) {
        assert!(roots.is_test_request(key));
        assert_eq!(roots.test_request(&host, &other).as_bytes(), key, "{host} {other}");
    }
    if let Ok(answer) = TestAnswer::parse(value) {
        let text = answer.to_json();
        assert_eq!(TestAnswer::parse(text.as_bytes()), Ok(answer), "{text}");
    }
}

/// The parsed peers.
fn believed(found: &Snapshot, own: &Claimant) {
    let subnets = PerFamily {
        v4: subnet::parse("10.244.1.0/24").ok(),
        v6: subnet::parse("fd10:0:0:1::/64").ok(),
    };
    let pools = &own.network.pools;
    let peers = peers(found, &own.identity.name, &subnets, pools);
    let mut taken: Vec<_> = subnets.iter().copied().collect();
    for (host, peer) in &peers.by_name {
        assert_ne!(*host, own.identity.name);
        assert!(peer.subnets.iter().next().is_some(), "{host} has no subnet");
        for theirs in peer.subnets.iter() {
            let inside = |pool: &Pool| subnet::contains(pool.network(), *theirs);
            assert!(pools.iter().any(inside), "{host}: {theirs} is outside");
            assert!(!taken.iter().any(|t| subnet::overlap(*t, *theirs)), "{host}: {theirs}");
            taken.push(*theirs);
        }
        for address in peer.addresses.iter() {
            assert!(!address.is_loopback() && !address.is_unspecified(), "{host}: {address}");
        }
    }
    for fault in &peers.faults {
        let line = fault.to_string();
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(!matches!(fault, PeerFault::Overlap { host, .. } if *host == own.identity.name));
    }
    let vxlan = found.nodes.values().find_map(|node| node.value.tunnel);
    if let Some(tunnel) = vxlan {
        let _tunnels = tunnels(&peers.by_name, tunnel);
    }
}

/// What this host does next: nothing without a condition, never slot 0, never a foreign key.
fn claimed(found: &Snapshot, own: &Claimant) {
    for alive in [true, false] {
        for ticket in [None, Some(1), Some(i64::MAX)] {
            let own = Claimant { alive, ticket, ..own.clone() };
            let step = claim::next(found, &own);
            if let Step::Write { transaction, lease, fresh } = &step {
                assert!(!transaction.conditions.is_empty() && !transaction.writes.is_empty());
                for (family, pool) in own.network.pools.entries() {
                    let chosen = lease.subnets.get(family).copied().expect("one of each family");
                    assert!(subnet::contains(pool.network(), chosen), "{chosen}");
                    let recorded = found.claims.contains_key(&chosen)
                        || found.hosts.contains_key(&own.identity.name)
                        || found.nodes.contains_key(&own.identity.name);
                    assert!(!fresh || recorded || chosen != pool.subnet(0), "slot 0: {step:?}");
                }
            }
            let _release = match &step {
                Step::Held(lease) | Step::Write { lease, .. } => claim::release(found, &own, lease),
                _ => continue,
            };
        }
    }
    let _alive = claim::put_alive(found, own, UNIX_EPOCH, 7, None);
    // A pool of 65,536 slots of which the numbers pass over one at a time is slow, not wrong.
    if found.hosts.len() < 3 {
        let _preview = dry_run_claim(found, own.clone());
    }
}

/// Keys that a host restores after a loss of data: no other host's slot is taken.
fn put_back(known: &Snapshot, found: &Snapshot, network: &Network) {
    if restore::continuity(known, found) != Continuity::Lost {
        return;
    }
    let mut after = found.clone();
    let rollback = Some(Rollback { old: found.revision, is_recent: true });
    let loss = Loss { known, found, network, rollback };
    for (transaction, revision) in restore::batches(loss).transactions.iter().zip(100..) {
        assert!(!transaction.writes.is_empty());
        after.written(&network.roots, transaction, revision);
    }
    let mark = restore::mark(known, found, &network.config(""), "new", &network.roots);
    after.written(&network.roots, &mark, 200);
    let own = "h1".parse().expect("a name");
    let mut absent = Absent::new(known.clone(), Some(found.revision));
    let remembered = absent.remembered(found.clone(), &own, network);
    let _again = Absent::of_saved(&remembered);
    let followed = growth::followed(&network.pools, &network.limits, found);
    for family in Family::BOTH {
        let (ours, wide) = (network.pools.get(family), followed.get(family));
        assert!(ours == wide || ours.zip(wide).is_some_and(|(ours, wide)| wide.widens(ours)));
    }
    assert!(after.modified(&network.roots, &Key::Config) != 0, "the mark was not written");
}
