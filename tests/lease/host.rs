//! A host without a network: a lease session and its published updates.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use humanz::etcd::{self, Contact, EtcdHandle, EtcdSettings, EtcdStart, Reports, Update};
use humanz::lease::records::Backend;
use humanz::lease::{
    HostAttributes, Identity, Lease, LeaseError, Network, Peers, Roots, Saved, Snapshot, peers,
};
use humanz::net::subnet::{self, Pool};
use humanz::net::{FailureReason, PerFamily, Problem, ProblemKind};
use humanz::os::heartbeat::Heartbeat;

use crate::support::etcd::EtcdServer;

/// How long anything may take before a test gives up on it.
pub const SOON: Duration = Duration::from_secs(20);

pub const HOSTS: &str = "/humanz/hosts";
pub const HUMANZ: &str = "/humanz/v1";
pub const COUNTER: &str = "/humanz/counter";

pub fn roots() -> Roots {
    Roots { hosts: HOSTS.to_owned(), counter: COUNTER.to_owned(), humanz: HUMANZ.to_owned() }
}

/// `10.244.0.0/16` and 8.
pub fn pool(network: &str, margin: u8) -> Pool {
    Pool::new(subnet::parse(network).unwrap(), margin).unwrap()
}

pub fn v4_pools() -> PerFamily<Pool> {
    PerFamily { v4: Some(pool("10.244.0.0/16", 8)), v6: None }
}

pub fn settings(endpoints: &[String]) -> EtcdSettings {
    EtcdSettings {
        endpoints: endpoints.to_vec(),
        ca: None,
        cert: None,
        key: None,
        user: None,
        password_file: None,
        timeout: Duration::from_secs(5),
    }
}

/// A start of the host `name` in the IPv4 network, with nothing known.
pub fn start(etcd: &EtcdServer, name: &str) -> EtcdStart {
    let number = name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0u32);
    let address = std::net::Ipv4Addr::from(0xc000_0200 + number).into();
    EtcdStart {
        etcd: settings(&[etcd.url()]),
        network: Network {
            roots: roots(),
            pools: v4_pools(),
            limits: PerFamily { v4: subnet::parse("10.240.0.0/12").ok(), v6: None },
            backend: Backend::Direct,
            tenants: Default::default(),
        },
        identity: Identity {
            name: name.parse().unwrap(),
            machine_id: format!("machine-of-{name}"),
            boot_id: "boot-1".to_owned(),
            version: "0.1.0".to_owned(),
        },
        attributes: HostAttributes {
            addresses: PerFamily { v4: Some(address), v6: None },
            mtu: 1500,
            ..HostAttributes::default()
        },
        saved: None,
        read_networks: humanz::sources::tenant_pools,
        follows_networks: false,
    }
}

pub struct Host {
    pub identity: Identity,
    pub attributes: HostAttributes,
    pub network: Network,
    pub reports: Arc<Reports>,
    known: Option<Saved>,
    received: Arc<ReceivedUpdates>,
    handle: Option<EtcdHandle>,
}

#[derive(Default)]
struct ReceivedUpdates {
    updates: Mutex<Vec<(Instant, Update)>>,
    more: Condvar,
}

/// Heartbeat without a reader.
pub fn contact() -> Arc<Contact> {
    Arc::new(Contact::new(Arc::new(Heartbeat::new("etcd", SOON))))
}

impl Host {
    pub fn launch(start: EtcdStart) -> Host {
        let (identity, attributes) = (start.identity.clone(), start.attributes.clone());
        let (network, known) = (start.network.clone(), start.saved.clone());
        let received = Arc::new(ReceivedUpdates::default());
        let to = Arc::clone(&received);
        let publish = move |update| {
            to.updates.lock().unwrap().push((Instant::now(), update));
            to.more.notify_all();
        };
        let reports = Arc::<Reports>::default();
        let handle = Some(etcd::spawn(start, contact(), Arc::clone(&reports), publish).unwrap());
        Host { identity, attributes, network, reports, known, received, handle }
    }

    /// Running, with its lease and its first snapshot.
    pub fn up(etcd: &EtcdServer, name: &str) -> Host {
        let host = Host::launch(start(etcd, name));
        host.snapshot();
        host
    }

    pub fn handle(&self) -> &EtcdHandle {
        self.handle.as_ref().unwrap()
    }

    /// A clean stop; returns the last known state: the learned one, else the initial one.
    pub fn stop(mut self) -> Saved {
        self.handle.take().unwrap().session.stop();
        let updates = self.updates();
        let lease = updates.iter().rev().find_map(|(_, update)| match update {
            Update::Lease(lease) => Some(lease.clone()),
            _ => None,
        });
        let learned = lease.zip(latest(&updates)).map(|(lease, (_, snapshot))| Saved {
            host: self.identity.name.clone(),
            machine_id: self.identity.machine_id.clone(),
            lease,
            snapshot,
            resolved: Default::default(),
        });
        learned.or(self.known.clone()).expect("it had a lease")
    }

    /// Waits until the updates so far satisfy `probe`.
    pub fn wait<T>(
        &self,
        what: &str,
        mut probe: impl FnMut(&[(Instant, Update)]) -> Option<T>,
    ) -> T {
        let until = Instant::now() + SOON;
        let mut updates = self.received.updates.lock().unwrap();
        loop {
            if let Some(value) = probe(&updates) {
                return value;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                panic!("{}: {what}: not within {SOON:?}: {}", self.identity.name, shown(&updates));
            }
            updates = self.received.more.wait_timeout(updates, left).unwrap().0;
        }
    }

    /// The first lease, waited for, or the latest.
    pub fn lease(&self) -> Lease {
        self.wait("a lease", |updates| {
            updates.iter().rev().find_map(|(_, update)| match update {
                Update::Lease(lease) => Some(lease.clone()),
                _ => None,
            })
        })
    }

    pub fn subnet(&self) -> String {
        self.lease().subnets.v4.unwrap().to_string()
    }

    /// Every IPv4 subnet it ever had.
    pub fn leases(&self) -> BTreeSet<String> {
        let updates = self.updates();
        let leases = updates.iter().filter_map(|(_, update)| match update {
            Update::Lease(lease) => lease.subnets.v4.map(|subnet| subnet.to_string()),
            _ => None,
        });
        leases.collect()
    }

    /// The first snapshot, waited for, or the latest.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.wait("a snapshot", |updates| latest(updates).map(|(_, snapshot)| snapshot))
    }

    /// Waits for a latest snapshot like that; when it came.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Snapshot) -> bool) -> Instant {
        self.wait(what, |updates| {
            latest(updates).filter(|(_, snapshot)| holds(snapshot)).map(|(at, _)| at)
        })
    }

    /// Waits until the other hosts are like that; when that was.
    pub fn until_peers(&self, what: &str, mut holds: impl FnMut(&Peers) -> bool) -> Instant {
        let lease = self.lease();
        self.until(what, |snapshot| holds(&self.peers_of(snapshot, &lease)))
    }

    pub fn peers(&self) -> Peers {
        self.peers_of(&self.snapshot(), &self.lease())
    }

    fn peers_of(&self, snapshot: &Snapshot, lease: &Lease) -> Peers {
        peers(snapshot, &self.identity.name, &lease.subnets, &self.network.pools)
    }

    pub fn fatal(&self) -> LeaseError {
        self.wait("a fatal error", |updates| match updates.last() {
            Some((_, Update::Fatal(error))) => Some(error.clone()),
            _ => None,
        })
    }

    /// How many updates there are; for [`Host::since`].
    pub fn mark(&self) -> usize {
        self.updates().len()
    }

    /// The updates after `mark`.
    pub fn since(&self, mark: usize) -> Vec<Update> {
        self.updates()[mark..].iter().map(|(_, update)| update.clone()).collect()
    }

    /// Waits for such an update after `mark`; when it came.
    pub fn reported(
        &self,
        mark: usize,
        what: &str,
        mut like: impl FnMut(&Update) -> bool,
    ) -> Instant {
        self.wait(what, |updates| {
            let mut since = updates[mark..].iter();
            since.find(|(_, update)| like(update)).map(|(at, _)| *at)
        })
    }

    /// The first problem with files or the login after `mark`.
    pub fn files_problem(&self, mark: usize) -> Problem {
        self.wait("a problem with files", |updates| {
            let mut since = updates[mark..].iter();
            since.find_map(|(_, update)| match update {
                Update::Files { problems, .. } => {
                    problems.iter().find(|it| it.kind == ProblemKind::EtcdFiles).cloned()
                }
                _ => None,
            })
        })
    }

    /// Why etcd served this host no longer, or not yet, first after `mark`.
    pub fn disconnected(&self, mark: usize) -> FailureReason {
        self.wait("no connection", |updates| {
            let mut since = updates[mark..].iter();
            since.find_map(|(_, update)| match update {
                Update::Disconnected { why } => Some(why.clone()),
                _ => None,
            })
        })
    }

    /// Hosts that were missing in any snapshot since `mark`.
    pub fn ever_missing(&self, mark: usize, names: &[&str]) -> BTreeSet<String> {
        let mut missing = BTreeSet::new();
        for update in self.since(mark) {
            if let Update::Snapshot(snapshot) = update {
                let absent = names.iter().filter(|name| !snapshot.hosts.contains_key(**name));
                missing.extend(absent.map(|name| (*name).to_owned()));
            }
        }
        missing
    }

    fn updates(&self) -> MutexGuard<'_, Vec<(Instant, Update)>> {
        self.received.updates.lock().unwrap()
    }
}

fn latest(updates: &[(Instant, Update)]) -> Option<(Instant, Arc<Snapshot>)> {
    updates.iter().rev().find_map(|(at, update)| match update {
        Update::Snapshot(snapshot) => Some((*at, Arc::clone(snapshot))),
        _ => None,
    })
}

/// The updates, abbreviated.
fn shown(updates: &[(Instant, Update)]) -> String {
    let line = |(_, update): &(Instant, Update)| match update {
        Update::Snapshot(snapshot) => {
            format!("snapshot {} of {} hosts", snapshot.revision, snapshot.hosts.len())
        }
        other => format!("{other:?}"),
    };
    updates.iter().rev().take(12).map(line).collect::<Vec<_>>().join("\n  after ")
}
