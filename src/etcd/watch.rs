//! A watch of both key ranges.

use etcd_client::{Event, KeyValue, WatchResponse, WatchStream};

use crate::etcd::failure::reason;
use crate::lease::EtcdError;
use crate::lease::records::{Key, Roots};
use crate::lease::snapshot::{Raw, Snapshot};

/// A watch of both key ranges. It is never resumed: when it ends, everything is read again.
pub struct KeyWatch {
    stream: WatchStream,
    roots: Roots,
    endpoint: String,
}

/// The content of one response.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Keys were put or deleted.
    pub changed: bool,
    /// A host key was deleted.
    pub host_removed: bool,
}

impl KeyWatch {
    pub fn new(stream: WatchStream, roots: Roots, endpoint: String) -> KeyWatch {
        KeyWatch { stream, roots, endpoint }
    }

    /// Applies the next response to `snapshot`. Cancel-safe.
    ///
    /// # Errors
    /// The watch ended or was refused.
    pub async fn next(&mut self, snapshot: &mut Snapshot) -> Result<Changes, EtcdError> {
        let answer = self.stream.message().await;
        let ended = |why: String| format!("watch: etcd {}: {why}", self.endpoint);
        match answer {
            Ok(Some(answer)) if answer.canceled() => Err(canceled(&answer, ended)),
            Ok(Some(answer)) if is_of_other_cluster(&answer, snapshot) => {
                Err(EtcdError::Unreachable(ended("it is of another cluster".to_owned())))
            }
            Ok(Some(answer)) if has_gone_back(&answer, snapshot) => Err(EtcdError::Unreachable(
                ended(format!("its revision is less than {}", snapshot.revision)),
            )),
            Ok(Some(answer)) => Ok(self.take(&answer, snapshot)),
            Ok(None) => Err(EtcdError::Unreachable(ended("the stream ended".to_owned()))),
            Err(error) => Err(EtcdError::Unreachable(ended(reason(&error)))),
        }
    }

    /// Requests a progress notification: a response without events.
    pub async fn request_progress(&mut self) -> Result<(), EtcdError> {
        let asked = self.stream.request_progress().await;
        asked.map_err(|error| EtcdError::Unreachable(format!("watch: {}", reason(&error))))
    }

    fn take(&self, answer: &WatchResponse, snapshot: &mut Snapshot) -> Changes {
        let mut changes = Changes::default();
        for pair in answer.events().iter().filter_map(Event::kv) {
            changes.changed = true;
            if is_deletion(pair) {
                let key = self.roots.parse(pair.key());
                changes.host_removed |= matches!(key, Ok(Some(Key::Host(_))));
                snapshot.delete(&self.roots, pair.key(), pair.mod_revision());
            } else {
                snapshot.put(&self.roots, raw(pair));
            }
        }
        changes
    }
}

pub fn raw(pair: &KeyValue) -> Raw<'_> {
    Raw {
        key: pair.key(),
        value: pair.value(),
        created: pair.create_revision(),
        modified: pair.mod_revision(),
    }
}

/// The store is at a revision before that of `snapshot`: events would be missed until it has caught up.
fn has_gone_back(answer: &WatchResponse, snapshot: &Snapshot) -> bool {
    let revision = answer.header().map_or(0, |header| header.revision());
    let is_progress = !answer.created() && answer.events().is_empty();
    is_progress && revision > 0 && revision < snapshot.revision
}

fn is_of_other_cluster(answer: &WatchResponse, snapshot: &Snapshot) -> bool {
    let read = snapshot.cluster.map(|cluster| cluster.id);
    answer.header().is_some_and(|header| read.is_some_and(|read| read != header.cluster_id()))
}

/// A deleted key has version 0. (The crate panics on a kind of event that it does not know.)
fn is_deletion(pair: &KeyValue) -> bool {
    pair.version() == 0
}

fn canceled(answer: &WatchResponse, ended: impl Fn(String) -> String) -> EtcdError {
    let why = answer.cancel_reason();
    if answer.compact_revision() > 0 {
        EtcdError::Compacted(ended(format!("compacted at {}", answer.compact_revision())))
    } else if why.contains("permission denied") {
        EtcdError::Denied(ended(why.to_owned()))
    } else {
        EtcdError::Unreachable(ended(format!("canceled: {why}")))
    }
}
