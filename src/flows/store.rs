//! What is counted, between the threads that count and those that show it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::broadcast;

use crate::flows::reply::{FlowsReply, entries};
use crate::flows::table::{FlowKey, FlowTable};
use crate::netlink::nflog::LoggedPacket;
use crate::policy::view::View;

/// Packets that one who follows them may be behind.
const BEHIND: usize = 1024;

/// What the host knows of its pods, now.
pub type Views = Arc<dyn Fn() -> Option<Arc<View>> + Send + Sync>;

/// What a thread learns of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowSource {
    Connections,
    Denials,
}

/// Shared by the threads; each lock is held for a batch, or for a copy.
#[derive(Debug, Default)]
pub struct FlowStore {
    state: Mutex<FlowState>,
    /// Held by the thread that learns of connections, and of denials.
    turns: [Mutex<()>; 2],
}

#[derive(Debug)]
struct FlowState {
    /// For those who follow denied packets; it ends with what is counted.
    drops: broadcast::Sender<LoggedPacket>,
    on: bool,
    table: FlowTable,
    faults: BTreeMap<FlowSource, String>,
    overruns: u64,
    lost_reports: u64,
}

impl Default for FlowState {
    fn default() -> FlowState {
        FlowState {
            drops: broadcast::channel(BEHIND).0,
            on: false,
            table: FlowTable::default(),
            faults: BTreeMap::new(),
            overruns: 0,
            lost_reports: 0,
        }
    }
}

impl FlowStore {
    /// From now on flows are counted.
    pub(super) fn begin(&self) {
        *self.state() = FlowState { on: true, ..FlowState::default() };
    }

    /// What was counted is forgotten.
    pub(super) fn end(&self) {
        *self.state() = FlowState::default();
    }

    /// Waits until the thread before, which was stopped, has ended.
    pub(super) fn turn(&self, of: FlowSource) -> MutexGuard<'_, ()> {
        self.turns[of as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that began, or packets that were reported.
    pub(super) fn count(&self, keys: impl Iterator<Item = FlowKey>) {
        let (mut state, now) = (self.state(), SystemTime::now());
        keys.for_each(|key| state.table.count(key, now));
    }

    /// Connections that are there.
    pub(super) fn see(&self, keys: &[FlowKey]) {
        let (mut state, now) = (self.state(), SystemTime::now());
        keys.iter().for_each(|key| state.table.see(key.clone(), now));
    }

    pub(super) fn expire(&self) {
        self.state().table.expire(SystemTime::now());
    }

    /// Events were lost.
    pub(super) fn overrun(&self) {
        self.state().overruns += 1;
    }

    pub(super) fn lose_reports(&self, count: u64) {
        self.state().lost_reports += count;
    }

    /// Why it is not learned of now, or that it is.
    pub(super) fn set_fault(&self, of: FlowSource, fault: Option<String>) {
        let mut state = self.state();
        if state.faults.get(&of) == fault.as_ref() {
            return;
        }
        match fault {
            Some(fault) => {
                log::warn!("flows: {fault}");
                state.faults.insert(of, fault);
            }
            None => drop(state.faults.remove(&of)),
        }
    }

    pub(super) fn publish(&self, packet: &LoggedPacket) {
        let state = self.state();
        if state.drops.receiver_count() > 0 {
            // Whoever followed them may have gone since.
            let _nobody = state.drops.send(packet.clone());
        }
    }

    /// Hears of each denied packet, from now on; `None` while they are not read here.
    pub fn follow_drops(&self) -> Option<broadcast::Receiver<LoggedPacket>> {
        let state = self.state();
        let is_received = state.on && !state.faults.contains_key(&FlowSource::Denials);
        is_received.then(|| state.drops.subscribe())
    }

    pub fn is_on(&self) -> bool {
        self.state().on
    }

    /// Flows, overruns and lost reports.
    pub fn sizes(&self) -> (usize, u64, u64) {
        let state = self.state();
        (state.table.len(), state.overruns, state.lost_reports)
    }

    pub fn reply(&self) -> FlowsReply {
        let state = self.state();
        let (flows, others) = entries(&state.table);
        FlowsReply {
            schema: 1,
            on: state.on,
            faults: state.faults.values().cloned().collect(),
            overruns: state.overruns,
            lost_reports: state.lost_reports,
            flows,
            others,
        }
    }

    fn state(&self) -> MutexGuard<'_, FlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
