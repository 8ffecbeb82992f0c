//! A watch of both key ranges.

use etcd_client::{Error, Event, KeyValue, WatchOptions, WatchResponse, WatchStream};

use crate::etcd::failure::reason;
use crate::etcd::urgent::{self, UrgentKeys};
use crate::lease::EtcdError;
use crate::lease::records::{Key, NodeName, Roots, TestRequest};
use crate::lease::snapshot::{Raw, Snapshot};

/// A watch of both key ranges. When it ends by itself, everything is read again.
pub struct KeyWatch {
    stream: WatchStream,
    phase: Phase,
    seen: WatchPosition,
    urgent: UrgentKeys,
    roots: Roots,
    endpoint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Watching,
    /// There are no watches of the ranges on the stream, or they are about to end.
    Resting,
    /// They were requested again, and the former ones have perhaps not ended yet.
    Resuming,
}

/// The revision of the last change of each range: another watch begins with it, as there may be more of the
/// same revision.
#[derive(Clone, Copy, Debug)]
pub struct WatchPosition {
    hosts: i64,
    humanz: i64,
    /// Everything before it was sent: a range may change once in days, and etcd's history is shorter.
    complete: i64,
    /// Revision of the last answer without changes. Etcd before 3.5.8 gives it too early, the one before it
    /// is certain.
    answered: i64,
}

impl WatchPosition {
    /// Everything up to `revision`.
    pub fn after(revision: i64) -> WatchPosition {
        let next = revision + 1;
        WatchPosition { hosts: next, humanz: next, complete: next, answered: next }
    }

    fn start(&self) -> i64 {
        self.hosts.min(self.humanz).max(self.complete)
    }

    /// Etcd says that it has sent all changes up to `revision`.
    fn answer(&mut self, revision: i64) {
        self.complete = self.answered;
        self.answered = revision.max(self.answered);
    }

    /// Whether a change of the watch `id` at `revision` is new, or may be.
    fn is_new(&mut self, id: i64, revision: i64) -> bool {
        let last = if id == HOSTS { &mut self.hosts } else { &mut self.humanz };
        let is_new = revision >= *last;
        *last = revision.max(*last);
        is_new
    }
}

/// Numbers of the watches of the two ranges on one stream.
pub const HOSTS: i64 = 1;
pub const HUMANZ: i64 = 2;

const _: () = assert!(HOSTS < urgent::FIRST && HUMANZ < urgent::FIRST);

/// The content of one response.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Keys that were put or deleted.
    pub changes: usize,
    /// A host key was deleted.
    pub host_removed: bool,
    /// A host asks for the pods of all.
    pub asks_for_pods: bool,
    /// Hosts that ask others for pods of a test, each with the host that it asks.
    pub tests: Vec<(TestRequest, NodeName)>,
}

impl KeyWatch {
    /// It rests: `stream` has the watches of the urgent keys alone.
    pub fn new(
        stream: WatchStream,
        seen: WatchPosition,
        urgent: UrgentKeys,
        roots: Roots,
        endpoint: String,
    ) -> KeyWatch {
        KeyWatch { stream, phase: Phase::Resting, seen, urgent, roots, endpoint }
    }

    /// Ends the watches of the ranges, and not the stream: if that breaks, etcd may come back with other data.
    pub async fn rest(&mut self) -> Result<(), EtcdError> {
        self.phase = Phase::Resting;
        for id in [HOSTS, HUMANZ] {
            self.stream.cancel(id).await.map_err(watch_failed)?;
        }
        Ok(())
    }

    /// Watches the ranges, from what was seen.
    pub async fn resume(&mut self) -> Result<(), EtcdError> {
        self.phase = Phase::Resuming;
        self.seen.answered = self.seen.complete;
        for (range, options) in requests(&self.roots, self.seen) {
            self.stream.watch(range, Some(options)).await.map_err(watch_failed)?;
        }
        Ok(())
    }

    /// Applies the next response to `snapshot`. Cancel-safe.
    ///
    /// # Errors
    /// The watch ended or was refused.
    pub async fn next(&mut self, snapshot: &mut Snapshot) -> Result<Changes, EtcdError> {
        let answer = self.stream.message().await;
        let ended = |why: String| format!("watch: etcd {}: {why}", self.endpoint);
        match answer {
            Ok(Some(answer)) if self.has_ended(&answer) => Ok(Changes::default()),
            Ok(Some(answer)) if answer.canceled() => Err(canceled(&answer, ended)),
            Ok(Some(answer)) if is_of_other_cluster(&answer, snapshot) => {
                Err(EtcdError::Unreachable(ended("it is of another cluster".to_owned()).into()))
            }
            Ok(Some(answer)) if has_gone_back(&answer, snapshot) => Err(EtcdError::Unreachable(
                ended(format!("its revision is less than {}", snapshot.revision)).into(),
            )),
            Ok(Some(answer)) => Ok(self.take(&answer, snapshot)),
            Ok(None) => Err(EtcdError::Unreachable(ended("the stream ended".to_owned()).into())),
            Err(error) => Err(EtcdError::Unreachable(ended(reason(&error)).into())),
        }
    }

    /// `snapshot` lacks a change of an urgent key.
    pub fn is_urgent(&self, snapshot: &Snapshot) -> bool {
        self.urgent.are_ahead_of(snapshot, &self.roots)
    }

    /// Requests a progress notification: a response without events.
    pub async fn request_progress(&mut self) -> Result<(), EtcdError> {
        self.stream.request_progress().await.map_err(watch_failed)
    }

    /// A watch ended because it was to rest.
    fn has_ended(&self, answer: &WatchResponse) -> bool {
        let by_request = answer.cancel_reason().is_empty() && answer.compact_revision() == 0;
        answer.canceled() && !answer.created() && by_request && self.phase != Phase::Watching
    }

    fn take(&mut self, answer: &WatchResponse, snapshot: &mut Snapshot) -> Changes {
        let mut changes = Changes::default();
        if answer.created() && answer.watch_id() == HUMANZ && self.phase == Phase::Resuming {
            self.phase = Phase::Watching;
        }
        let is_answer = answer.watch_id() < 0 && !answer.created() && answer.events().is_empty();
        // Without watches, or before they have caught up, it says nothing about what was sent.
        if is_answer && self.phase == Phase::Watching {
            self.seen.answer(answer.header().map_or(0, |header| header.revision()));
        }
        for pair in answer.events().iter().filter_map(Event::kv) {
            let (id, revision) = (answer.watch_id(), pair.mod_revision());
            if self.urgent.note(id, revision, is_deletion(pair)) || !self.seen.is_new(id, revision)
            {
                continue;
            }
            if self.roots.is_pods_request(pair.key()) {
                changes.asks_for_pods |= !is_deletion(pair);
                continue;
            }
            if self.roots.is_test_request(pair.key()) {
                let hosts = self.roots.test_hosts(pair.key()).filter(|_| !is_deletion(pair));
                let revision = pair.create_revision();
                let asked = hosts.map(|(from, other)| (TestRequest { from, revision }, other));
                changes.tests.extend(asked);
                continue;
            }
            changes.changes += 1;
            if is_deletion(pair) {
                let key = self.roots.parse(pair.key());
                changes.host_removed |= matches!(key, Ok(Some(Key::Host(_))));
                snapshot.delete(&self.roots, pair.key(), revision);
            } else {
                snapshot.put(&self.roots, raw(pair));
            }
        }
        changes
    }
}

/// The urgent keys to watch from `seen` on, and how.
pub fn urgent_requests(
    urgent: &UrgentKeys,
    roots: &Roots,
    seen: WatchPosition,
) -> [(String, WatchOptions); urgent::COUNT] {
    let mut id = urgent::FIRST..;
    urgent.keys().each_ref().map(|key| {
        let options = WatchOptions::new().with_start_revision(seen.start());
        (roots.key(key), options.with_watch_id(id.next().unwrap_or_default()))
    })
}

/// The ranges to watch, and how.
fn requests(roots: &Roots, seen: WatchPosition) -> [(String, WatchOptions); 2] {
    [(roots.hosts_range(), HOSTS), (roots.humanz_range(), HUMANZ)].map(|(range, id)| {
        let options = WatchOptions::new()
            .with_range(after(&range))
            .with_start_revision(seen.start())
            .with_progress_notify()
            .with_fragment()
            .with_watch_id(id);
        (range, options)
    })
}

/// The end of the range of keys that begin with `prefix`. Its last byte is `/`.
pub fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

pub fn watch_failed(error: Error) -> EtcdError {
    EtcdError::Unreachable(format!("watch: {}", reason(&error)).into())
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
    // A proxy of etcd may leave it out.
    let id = answer.header().map_or(0, |header| header.cluster_id());
    id != 0 && read.is_some_and(|read| read != id)
}

/// A deleted key has version 0. (The crate panics on a kind of event that it does not know.)
fn is_deletion(pair: &KeyValue) -> bool {
    pair.version() == 0
}

pub fn canceled(answer: &WatchResponse, ended: impl Fn(String) -> String) -> EtcdError {
    let why = answer.cancel_reason();
    if answer.compact_revision() > 0 {
        EtcdError::Compacted(ended(format!("compacted at {}", answer.compact_revision())))
    } else if why.contains("permission denied") {
        EtcdError::Denied(ended(why.to_owned()))
    } else {
        EtcdError::Unreachable(ended(format!("canceled: {why}")).into())
    }
}
