//! Pure. Hosts that were lost with the data of etcd and that this host may not put back: it remembers them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lease::identity::Network;
use crate::lease::records::NodeName;
use crate::lease::restore::removed::{Rollback, ownership};
use crate::lease::restore::{Loss, Missing, remains};
use crate::lease::snapshot::{Raw, Snapshot, Stored};
use crate::net::gather::Gather;

/// Hosts that etcd lacks.
#[derive(Clone, Debug)]
pub struct Absent {
    known: Snapshot,
    /// All hosts that were known, and so had not been removed.
    all: BTreeSet<NodeName>,
    /// Keys changed up to this revision are from before etcd went back, if it did.
    old: Option<i64>,
    /// Revisions of the alive keys that decide who is remembered; 0: there is none.
    alive: BTreeMap<NodeName, i64>,
}

impl Absent {
    pub fn new(known: Snapshot, old: Option<i64>) -> Absent {
        let all = known.hosts.keys().chain(known.nodes.keys()).cloned().gather();
        Absent { known, all, old, alive: BTreeMap::new() }
    }

    /// Those that an earlier run of the agent remembered in `saved`; `None` if there are none.
    pub fn of_saved(saved: &Snapshot) -> Option<Absent> {
        let mut known = saved.clone();
        Arc::make_mut(&mut known.hosts).retain(|_, host| is_remembered(host));
        let is_absent = |host: &NodeName| known.hosts.contains_key(host);
        Arc::make_mut(&mut known.nodes).retain(|host, _| is_absent(host));
        Arc::make_mut(&mut known.claims).retain(|_, claim| is_absent(&claim.value));
        let all = || saved.hosts.keys().chain(saved.nodes.keys()).cloned().gather();
        (!known.hosts.is_empty())
            .then(|| Absent { all: all(), ..Absent::new(known, Some(saved.revision)) })
    }

    /// `found`, with the other hosts that it lacks, instead of those that had been removed and are back with an older
    /// snapshot. Keys that are only remembered have revision 0.
    pub fn remembered(
        &mut self,
        mut found: Snapshot,
        own: &NodeName,
        network: &Network,
    ) -> Snapshot {
        self.forget(&found);
        self.alive.clear();
        let read = found.clone();
        for (host, remains) in remains(&self.known).iter().filter(|(host, _)| **host != own) {
            let loss = Loss { known: &self.known, found: &found, network, rollback: None };
            let occupants = loss.occupants(host, remains);
            let knew = occupants.iter().any(|host| self.all.contains(*host));
            let rollback = self.old.filter(|_| !knew && !occupants.is_empty()).map(|old| {
                let watched = occupants.into_iter().chain([*host]);
                let revision =
                    |host: &NodeName| read.alive.get(host).map_or(0, |alive| alive.modified);
                self.alive.extend(watched.map(|host| (host.clone(), revision(host))));
                // Without a sign of life of its own it yields to whoever may live.
                Rollback { old, is_recent: revision(host) > old }
            });
            let missing = Loss { rollback, ..loss }.missing(host, remains);
            if let Some(missing) = missing {
                remember(&mut found, missing, network);
            }
        }
        found.revision = read.revision;
        found
    }

    /// Hosts came to life, or died, and others may be remembered now.
    pub fn is_stale(&self, mirror: &Snapshot) -> bool {
        let revision = |host| mirror.alive.get(host).map_or(0, |alive| alive.modified);
        self.alive.iter().any(|(host, modified)| revision(host) != *modified)
    }

    /// Hosts that are back.
    fn forget(&mut self, found: &Snapshot) {
        let is_absent = |host: &NodeName| !found.hosts.contains_key(host);
        Arc::make_mut(&mut self.known.hosts).retain(|host, _| is_absent(host));
        Arc::make_mut(&mut self.known.nodes).retain(|host, _| is_absent(host));
        Arc::make_mut(&mut self.known.claims).retain(|_, claim| is_absent(&claim.value));
    }
}

fn is_remembered<T>(stored: &Stored<T>) -> bool {
    stored.created == 0
}

fn remember(found: &mut Snapshot, missing: Missing, network: &Network) {
    let roots = &network.roots;
    for host in &missing.instead_of {
        for key in ownership(found, host) {
            found.delete(roots, roots.key(&key).as_bytes(), 0);
        }
    }
    for (key, value) in missing.keys {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        found.put(roots, Raw { key, value, created: 0, modified: 0 });
    }
}
