//! Pure. Changes from the watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lease::claim::{self, Step};
use crate::lease::growth;
use crate::lease::records::NodeName;
use crate::lease::restore::{self, Continuity};
use crate::lease::session::machine::SessionMachine;
use crate::lease::snapshot::Snapshot;

impl SessionMachine {
    /// Whether `mirror`, the state of the watch, can be published with nothing to write first.
    pub fn agrees(&self, mirror: &Snapshot) -> bool {
        let Some(last_known) = &self.last_known else { return false };
        let own = &self.own.identity.name;
        let alive_lost = last_known.alive.contains_key(own) && !mirror.alive.contains_key(own);
        let followed = growth::followed(&self.own.network.pools, &self.own.network.limits, mirror);
        let settled = followed == self.own.network.pools
            && !self.is_contested(mirror)
            && !self.absent.as_ref().is_some_and(|absent| absent.is_stale(mirror))
            && (self.superseded.is_some() || self.is_claimed(mirror));
        settled && !alive_lost && restore::continuity(last_known, mirror) == Continuity::Same
    }

    /// Nothing is to be written for the lease, and what contradicts it was published.
    fn is_claimed(&self, mirror: &Snapshot) -> bool {
        match claim::next(mirror, &self.own) {
            Step::Held(lease) => {
                self.trouble == self.contradiction(mirror, &lease)
                    && self.given_up_for(mirror, &lease).is_none()
            }
            Step::Refused(error) => {
                let takes_back = self.take_back(mirror, &error).is_some();
                let held = self.lease.clone().unwrap_or_default();
                self.trouble == Some(self.worse(mirror, &held, error)) && !takes_back
            }
            _ => false,
        }
    }

    /// `mirror` has no record or no key any more of another host whose agent runs.
    pub fn misses_a_living_host(&self, mirror: &Snapshot) -> bool {
        let Some(known) = &self.last_known else { return false };
        let runs =
            |host: &NodeName| *host != self.own.identity.name && mirror.alive.contains_key(host);
        is_less(&known.nodes, &mirror.nodes, runs)
            || is_less(&known.hosts, &mirror.hosts, runs)
            || is_less(&known.wireguard_keys, &mirror.wireguard_keys, runs)
    }

    /// Takes over `mirror`, which is to be published; `None` if nothing changed.
    pub fn update(&mut self, mirror: &Snapshot) -> Option<Arc<Snapshot>> {
        if self.last_known.as_ref().is_some_and(|known| mirror.says_the_same(known)) {
            return None;
        }
        self.note_lost_records(mirror);
        let without_record = Arc::new(self.own.without_record.clone());
        let snapshot = Arc::new(Snapshot { without_record, ..mirror.clone() });
        self.last_known = Some(Arc::clone(&snapshot));
        Some(snapshot)
    }
}

/// One of these hosts went. Thousands of names are compared only where there are fewer of them: a loss that comes
/// together with a new host is published with it.
fn is_less<T>(
    known: &BTreeMap<NodeName, T>,
    found: &BTreeMap<NodeName, T>,
    of: impl Fn(&NodeName) -> bool,
) -> bool {
    found.len() < known.len() && known.keys().any(|host| !found.contains_key(host) && of(host))
}

/// The network settings, in etcd last written at the revision `modified`, are those of `mirror`:
/// hosts were removed, not the store. Of keys that are deleted together, the watch of one range may
/// report some before the other.
pub fn is_same_store(mirror: &Snapshot, modified: i64) -> bool {
    mirror.config.as_ref().is_some_and(|config| config.modified == modified)
}
