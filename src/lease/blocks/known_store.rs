//! Pure. On which state of etcd a host's writes of blocks depend.

use crate::lease::records::NodeName;
use crate::lease::snapshot::Snapshot;

/// The etcd that this host's blocks are written to, as its session has read it. Nothing is written there on
/// conditions that do not hold any more.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownStore {
    /// The revision of this host's record: another machine may have it by now.
    pub record: i64,
    /// That of its creation: another one after etcd lost it.
    pub record_created: i64,
    /// The revision of the network's settings …
    pub settings: i64,
    /// … and their id: another one after etcd was rebuilt.
    pub id: Box<str>,
}

impl KnownStore {
    /// `None` if `found` has no record of `host`, or no settings.
    pub fn of(found: &Snapshot, host: &NodeName) -> Option<KnownStore> {
        let (record, settings) = (found.nodes.get(host)?, found.config.as_ref()?);
        Some(KnownStore {
            record: record.modified,
            record_created: record.created,
            settings: settings.modified,
            id: settings.value.id.clone(),
        })
    }

    /// What is written here may have been lost since.
    pub fn is_rebuilt(&self, before: &KnownStore) -> bool {
        (self.record_created, &self.id) != (before.record_created, &before.id)
    }
}
