//! Pure. What the watch brought.

use std::sync::Arc;

use crate::lease::claim::{self, Step};
use crate::lease::growth;
use crate::lease::restore::{self, Continuity};
use crate::lease::session::Dialogue;
use crate::lease::snapshot::Snapshot;

impl Dialogue {
    /// Nothing must be written because of `mirror`, which the watch brought, and it may be published.
    pub fn agrees(&self, mirror: &Snapshot) -> bool {
        let Some(known) = &self.known else { return false };
        let own = &self.own.identity.name;
        let sign_lost = known.alive.contains_key(own) && !mirror.alive.contains_key(own);
        let followed = growth::followed(&self.own.network.pools, mirror);
        let settled = followed == self.own.network.pools
            && match claim::next(mirror, &self.own) {
                Step::Held(_) => self.trouble.is_none(),
                Step::Refused(error) => self.trouble.as_ref() == Some(&error),
                _ => false,
            };
        settled && !sign_lost && restore::continuity(known, mirror) == Continuity::Same
    }

    /// `mirror`, to be published, if it says anything new.
    pub fn learn(&mut self, mirror: &Snapshot) -> Option<Arc<Snapshot>> {
        if self.known.as_ref().is_some_and(|known| mirror.says_the_same(known)) {
            return None;
        }
        let snapshot = Arc::new(mirror.clone());
        self.known = Some(Arc::clone(&snapshot));
        Some(snapshot)
    }
}

/// The settings of the network are still those of `mirror`, given that etcd says they were
/// `modified` at that revision: hosts were removed, and not the store. Of keys that are deleted
/// together, the watch of one root may tell before the other.
pub fn is_same_store(mirror: &Snapshot, modified: i64) -> bool {
    mirror.config.as_ref().is_some_and(|config| config.modified == modified)
}
