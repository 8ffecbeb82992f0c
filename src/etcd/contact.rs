//! How the connection with etcd goes, for whoever asks: nobody is woken by it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use crate::lease::EtcdError;
use crate::os::heartbeat::Heartbeat;

/// How the connection goes.
#[derive(Debug)]
pub struct Contact {
    /// The registry turns.
    pub beat: Arc<Heartbeat>,
    /// Milliseconds from 1970 to the last word of etcd; 0: none yet.
    heard: AtomicU64,
    errors: [AtomicU64; ERRORS.len()],
    /// When the first change came that was not taken yet.
    changed: Mutex<Option<Instant>>,
}

/// The kinds of errors, as [`Contact::errors`] counts them.
const ERRORS: [&str; 6] =
    ["unreachable", "denied", "compacted", "lease_lost", "too_large", "refused"];

impl Contact {
    /// Nothing was heard yet. The registry turns with `beat`.
    pub fn new(beat: Arc<Heartbeat>) -> Contact {
        let (heard, changed) = Default::default();
        Contact { beat, heard, errors: Default::default(), changed }
    }

    /// When etcd said something last.
    pub fn heard_at(&self) -> Option<SystemTime> {
        let millis = self.heard.load(Ordering::Relaxed);
        let since = std::time::Duration::from_millis(millis);
        (millis > 0).then(|| SystemTime::UNIX_EPOCH + since)
    }

    /// How many calls failed, by kind of error.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.errors.iter().map(|count| count.load(Ordering::Relaxed));
        ERRORS.into_iter().zip(counts)
    }

    /// When the first change was heard since the last time that this was asked.
    pub fn take_changed(&self) -> Option<Instant> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn heard(&self) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.heard.store(u64::try_from(since.as_millis()).unwrap_or_default(), Ordering::Relaxed);
    }

    pub(crate) fn changed(&self) {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        changed.get_or_insert_with(Instant::now);
    }

    pub(super) fn failed(&self, error: &EtcdError) {
        let kind = match error {
            EtcdError::Unreachable(_) => 0,
            EtcdError::Denied(_) => 1,
            EtcdError::Compacted(_) => 2,
            EtcdError::NoLease(_) => 3,
            EtcdError::TooLarge(_) => 4,
            EtcdError::Refused(_) => 5,
        };
        self.errors[kind].fetch_add(1, Ordering::Relaxed);
    }
}
