//! The connection with etcd: holds this host's lease and yields whole snapshots of the others.
//!
//! It runs in a thread of its own, for ever: an etcd that cannot be reached is tried again, and
//! nothing that was published is taken back because of it.
//!
//! - `session`: read, claim, put back, watch
//! - `liveness`: keeps the etcd lease of the sign of life
//! - `rows`: tells what this host sees of the others, and reads what they see
//! - `files`: takes renewed certificates and passwords over
//! - `client`, `members`, `connection`, `failure`, `watch`: the calls that are needed, and who answers
//!   them; the only files that name the etcd crate
//! - `tls`: what the files hold, and what a failed handshake means

mod client;
mod connection;
mod contact;
pub mod failure;
mod files;
mod liveness;
mod members;
pub mod reports;
mod session;
mod settings;
mod tls;
mod update;
mod watch;

pub use client::FoundReports;
pub use contact::Contact;
pub use reports::Reports;
pub use settings::{EtcdSettings, Setup, Start};
pub use tls::files::{FileFault, Untimely};
pub use update::Update;

use std::io;
use std::sync::Arc;

use tokio::sync::watch as latest;

use crate::lease::transaction::Transaction;
use crate::lease::{Attributes, EtcdError, Roots, Snapshot};
use crate::os::event_loop::{self, EventLoop};

/// The running registry. Dropped, it stops like [`Handle::stop`], but nobody waits for it.
#[derive(Debug)]
pub struct Handle {
    setup: latest::Sender<Setup>,
    attributes: latest::Sender<Attributes>,
    event_loop: EventLoop,
}

/// Starts the registry, which tells `contact` how it goes, and serves `rows`. `publish` is called from its thread and must
/// not block for long.
///
/// # Errors
/// If the thread or its event loop cannot be made.
pub fn spawn(
    start: Start,
    contact: Arc<Contact>,
    reports: Arc<Reports>,
    mut publish: impl FnMut(Update) + Send + 'static,
) -> io::Result<Handle> {
    let (setup, set_up) =
        latest::channel(Setup { etcd: start.etcd.clone(), network: start.network.clone() });
    let (attributes, changes) = latest::channel(start.attributes.clone());
    let inputs = session::Inputs { setup: set_up, attributes: changes, contact, reports };
    let event_loop = EventLoop::spawn("etcd", async move |mut stopped| {
        session::run(start, inputs, &mut stopped, &mut publish).await;
    })?;
    Ok(Handle { setup, attributes, event_loop })
}

/// Everything that etcd holds for the network, read once. Writes nothing.
///
/// # Errors
/// No member answers, or reading is not allowed; the text says which.
pub fn read(settings: &EtcdSettings, roots: &Roots) -> Result<Snapshot, String> {
    once(settings, roots, async |etcd| etcd.read().await)
}

/// Carries out one transaction; false if a condition did not hold. `what` is for errors.
///
/// # Errors
/// No member answers (then it may have been carried out), or writing is not allowed.
pub fn commit(
    settings: &EtcdSettings,
    roots: &Roots,
    what: &str,
    transaction: &Transaction,
) -> Result<bool, String> {
    once(settings, roots, async |etcd| Ok(etcd.commit(what, transaction).await?.is_some()))
}

/// What is wrong with the files that `settings` name: unreadable, no certificates, not a pair. What
/// they would be used for is not asked. Behind it the certificates whose time ends soon, has ended or
/// is yet to come.
pub fn look_at_files(settings: &EtcdSettings) -> (Vec<FileFault>, Vec<Untimely>) {
    let (files, faults) = tls::files::Files::read(settings, true, &Default::default());
    (faults, files.untimely())
}

/// Allocates a number that no other host has.
///
/// # Errors
/// No member answers, or writing is not allowed.
pub fn allocate_ticket(settings: &EtcdSettings, roots: &Roots) -> Result<i64, String> {
    once(settings, roots, async |etcd| etcd.allocate_ticket().await)
}

/// Asks etcd something, without a connection that stays.
fn once<T>(
    settings: &EtcdSettings,
    roots: &Roots,
    ask: impl AsyncFnOnce(&client::Etcd) -> Result<T, EtcdError>,
) -> Result<T, String> {
    let etcd = client::Etcd::new(settings.clone(), roots.clone());
    event_loop::once(async || ask(&etcd).await.map_err(|error| error.to_string()))
}

impl Handle {
    /// Reaches etcd in another way, or belongs to a network with wider pools, from now on. Returns at
    /// once.
    pub fn set_up(&self, setup: Setup) {
        event_loop::send_if_changed(&self.setup, setup);
    }

    /// Connects anew: an address of this host went, and with it perhaps the connection, which would
    /// only be noticed after seconds of silence. Returns at once.
    pub fn reconnect(&self) {
        self.setup.send_modify(|_| {});
    }

    /// Tells the others how this host is reached now. Returns at once; etcd is changed as soon as
    /// it can be reached, and only while the record there is still this host's.
    pub fn set_attributes(&self, attributes: Attributes) {
        event_loop::send_if_changed(&self.attributes, attributes);
    }

    /// Withdraws the sign of life and ends the thread: within [`session::STOP_WITHIN`], whatever etcd does.
    /// The lease stays.
    pub fn stop(self) {
        self.event_loop.stop();
    }
}
