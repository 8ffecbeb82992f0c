//! Counters of the connection with etcd or the Kubernetes API; reading them wakes no thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use crate::lease::EtcdError;
use crate::os::heartbeat::Heartbeat;

#[derive(Debug)]
pub struct Contact {
    /// Of the event loop.
    pub beat: Arc<Heartbeat>,
    /// Milliseconds from 1970 to the last response; 0: none yet.
    received: AtomicU64,
    errors: [AtomicU64; ERRORS.len()],
    /// Time of the first change since [`Contact::take_changed`].
    changed: Mutex<Option<Instant>>,
}

/// The kinds of errors, as [`Contact::errors`] counts them.
const ERRORS: [&str; 6] =
    ["unreachable", "denied", "compacted", "lease_lost", "too_large", "refused"];

impl Contact {
    pub fn new(beat: Arc<Heartbeat>) -> Contact {
        let (received, changed) = Default::default();
        Contact { beat, received, errors: Default::default(), changed }
    }

    /// Time of the last response.
    pub fn received_at(&self) -> Option<SystemTime> {
        let millis = self.received.load(Ordering::Relaxed);
        let since = std::time::Duration::from_millis(millis);
        (millis > 0).then(|| SystemTime::UNIX_EPOCH + since)
    }

    /// Failed calls by kind of error.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.errors.iter().map(|count| count.load(Ordering::Relaxed));
        ERRORS.into_iter().zip(counts)
    }

    /// Time of the first change since the last call.
    pub fn take_changed(&self) -> Option<Instant> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn received(&self) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.received
            .store(u64::try_from(since.as_millis()).unwrap_or_default(), Ordering::Relaxed);
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
