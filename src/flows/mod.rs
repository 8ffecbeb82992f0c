//! Who connects to what: connections by the kernel's events, and what policies deny by its log, counted.
//!
//! ```text
//! conntrack events ──▶ connections ──┐
//!                                    ├──▶ FlowStore ──▶ /v1/flows
//! nflog ─────────────▶ denials ──────┘        └──────▶ /v1/drops
//! ```
//!
//! - `table`: what was counted, in bounded room, pure
//! - `pod_names`: whose an address is, pure
//! - `reply`: what the agent says of it, pure
//! - `store`: what the threads share
//! - `connections`, `denials`: the threads, each with a socket of its own
//!
//! Which policy allows a connection is not asked here: who shows it does, by the rules of that moment.

mod connections;
mod denials;
pub mod pod_names;
pub mod reply;
pub mod store;
pub mod table;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::flows::store::{FlowStore, Views};
use crate::os::threads;

/// The threads that count. Dropped, they end within a second and close their sockets; those of a new one
/// wait for that.
#[derive(Debug)]
pub struct FlowRecorder {
    stop: Arc<AtomicBool>,
    store: Arc<FlowStore>,
}

impl FlowRecorder {
    /// Starts to count in the calling thread's network namespace.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start(store: &Arc<FlowStore>, views: Views) -> io::Result<FlowRecorder> {
        let stop = Arc::new(AtomicBool::new(false));
        let recorder = FlowRecorder { stop: Arc::clone(&stop), store: Arc::clone(store) };
        store.begin();
        let (own, ours, theirs) = (Arc::clone(&stop), Arc::clone(store), Arc::clone(&views));
        threads::spawn("flows", move || connections::record(&ours, &theirs, &own))?;
        let store = Arc::clone(store);
        threads::spawn("denials", move || denials::record(&store, &views, &stop))?;
        Ok(recorder)
    }
}

impl Drop for FlowRecorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.store.end();
    }
}
