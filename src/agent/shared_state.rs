//! The state that the agent publishes and its API reads.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::checks::probe::ProbeStats;
use crate::etcd::Reports;
use crate::flows::store::FlowStore;
use crate::os::heartbeat::Heartbeat;
use crate::settings::{Settings, Texts};

use crate::agent::active_problems::ActiveProblems;
use crate::agent::counters::Counters;
use crate::agent::history::History;
use crate::agent::journal::Journal;
use crate::agent::snapshot::AgentSnapshot;

/// A loop without a beat for so long hangs. The systemd unit allows the main loop 60 s.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Published by the loops of the agent. No reader waits: each lock is held for the copy of a pointer.
#[derive(Debug)]
pub struct SharedState {
    /// This host's name in etcd.
    pub name: String,
    settings: Mutex<Arc<Texts>>,
    pub machine_id: String,
    pub started: SystemTime,
    /// What is wrong now.
    pub problems: ActiveProblems,
    /// The changes of late.
    pub journal: Journal,
    history: Mutex<History>,
    counters: Mutex<Counters>,
    pub probes: Probes,
    /// Who connects to what.
    pub flows: Arc<FlowStore>,
    /// The reachability reports of all hosts.
    pub reports: Arc<Reports>,
    known: Mutex<Option<Arc<AgentSnapshot>>>,
    heartbeats: Mutex<Vec<Arc<Heartbeat>>>,
}

impl SharedState {
    pub fn new(name: String, machine_id: String, settings: Texts) -> SharedState {
        SharedState {
            name,
            settings: Mutex::new(Arc::new(settings)),
            machine_id,
            started: SystemTime::now(),
            problems: ActiveProblems::default(),
            journal: Journal::default(),
            history: Mutex::default(),
            counters: Mutex::default(),
            probes: Probes::default(),
            flows: Arc::default(),
            reports: Arc::default(),
            known: Mutex::default(),
            heartbeats: Mutex::default(),
        }
    }

    /// The settings that this host is served with.
    pub fn settings(&self) -> Arc<Texts> {
        Arc::clone(&lock(&self.settings))
    }

    pub fn serve_with(&self, settings: Texts) {
        *lock(&self.settings) = Arc::new(settings);
    }

    /// A loop begins: it must beat within each `limit` from now on.
    pub fn expect(&self, name: &'static str, limit: Duration) -> Arc<Heartbeat> {
        let beat = Arc::new(Heartbeat::new(name, limit));
        lock(&self.heartbeats).push(Arc::clone(&beat));
        beat
    }

    /// The loops that should turn.
    pub fn heartbeats(&self) -> Vec<Arc<Heartbeat>> {
        lock(&self.heartbeats).clone()
    }

    /// What the loop counts.
    pub fn counters(&self) -> MutexGuard<'_, Counters> {
        lock(&self.counters)
    }

    /// What this host was like over time.
    pub fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    pub fn publish(&self, known: AgentSnapshot) {
        let known = Arc::new(known);
        // What was known is given up outside the lock: it may be large.
        let _before = lock(&self.known).replace(known);
    }

    /// Published snapshot.
    pub fn snapshot(&self) -> Option<Arc<AgentSnapshot>> {
        lock(&self.known).clone()
    }
}

/// What the probes found, by the address that was asked.
#[derive(Debug, Default)]
pub struct Probes {
    seen: Mutex<BTreeMap<IpAddr, ProbeStats>>,
}

impl Probes {
    /// What is known of an address.
    pub fn of(&self, address: IpAddr) -> Option<ProbeStats> {
        self.lock().get(&address).copied()
    }

    /// What is known of all.
    pub fn all(&self) -> BTreeMap<IpAddr, ProbeStats> {
        self.lock().clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, ProbeStats>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server that answers from [`SharedState`]: the agent starts, moves and stops it without knowing it.
pub trait StatusServer {
    /// Listens where `settings` say from now on.
    fn move_to(&self, settings: &Settings);
    /// Ends it and removes its socket.
    fn stop(self: Box<Self>);
}

pub type StartServer = fn(Arc<SharedState>, &Settings) -> io::Result<Box<dyn StatusServer>>;

/// The lock, also after a panic with panic: values published is complete.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
