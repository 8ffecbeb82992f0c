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
pub(super) mod error;
mod failure;
mod files;
mod liveness;
mod members;
pub mod rows;
mod session;
mod settings;
mod tls;
mod watch;

pub use contact::Contact;
pub use error::EtcdError;
pub use rows::Rows;
pub use settings::EtcdSettings;
pub use tls::files::{FileFault, Untimely};

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch as latest;

use crate::lease::error::LeaseError;
use crate::lease::identity::{Attributes, Identity, Lease, Network};
use crate::lease::records::Roots;
use crate::lease::saved::Saved;
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;
use crate::os::event_loop::{self, EventLoop};

/// What the operator may change while the registry runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// How etcd is reached.
    pub etcd: EtcdSettings,
    /// The network, as this host is configured. Its roots stay.
    pub network: Network,
}

/// What the registry needs to know.
#[derive(Clone, Debug)]
pub struct Start {
    /// How etcd is reached.
    pub etcd: EtcdSettings,
    /// The network, as this host is configured.
    pub network: Network,
    /// Who this host is.
    pub identity: Identity,
    /// How the others reach it.
    pub attributes: Attributes,
    /// What was known when the agent last ran: its subnets are taken again, and if etcd has lost
    /// its data meanwhile, all of it is put back.
    pub known: Option<Saved>,
}

/// What the registry has to say.
#[derive(Clone, Debug)]
pub enum Update {
    /// etcd answers; a snapshot follows.
    Connected {
        /// The member that answers.
        endpoint: String,
    },
    /// etcd does not answer. What was published stays true. Said again for every new reason.
    Disconnected {
        /// Why.
        why: String,
    },
    /// The subnets of this host; before the first snapshot, and again if they change.
    Lease(Lease),
    /// Everything that etcd holds. Never partial, never before this host's lease, and never
    /// without hosts only because etcd lost its data.
    Snapshot(Arc<Snapshot>),
    /// etcd no longer agrees with what this host holds; it goes on with what it has. `None`: it
    /// agrees again.
    Trouble(Option<LeaseError>),
    /// What became of the files of certificates, key and password. Said when it changes.
    Files {
        /// What is wrong with them or soon will be, and what to do; empty: nothing.
        wrong: BTreeSet<String>,
        /// When the first of the certificates in use ends.
        until: Option<SystemTime>,
    },
    /// This host cannot have a lease. The last update.
    Fatal(LeaseError),
}

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
    rows: Arc<Rows>,
    mut publish: impl FnMut(Update) + Send + 'static,
) -> io::Result<Handle> {
    let (setup, set_up) =
        latest::channel(Setup { etcd: start.etcd.clone(), network: start.network.clone() });
    let (attributes, changes) = latest::channel(start.attributes.clone());
    let told = session::Told { setup: set_up, attributes: changes, contact, rows };
    let event_loop = EventLoop::spawn("etcd", async move |mut stopped| {
        session::run(start, told, &mut stopped, &mut publish).await;
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

/// Draws a number that nobody else has.
///
/// # Errors
/// No member answers, or writing is not allowed.
pub fn draw(settings: &EtcdSettings, roots: &Roots) -> Result<i64, String> {
    once(settings, roots, async |etcd| etcd.draw().await)
}

/// Asks etcd something, without a connection that stays.
fn once<T>(
    settings: &EtcdSettings,
    roots: &Roots,
    ask: impl AsyncFnOnce(&client::Etcd) -> Result<T, error::EtcdError>,
) -> Result<T, String> {
    let etcd = client::Etcd::new(settings.clone(), roots.clone());
    event_loop::once(async || ask(&etcd).await.map_err(|error| error.to_string()))
}

impl Handle {
    /// Reaches etcd in another way, or belongs to a network with wider pools, from now on. Returns at
    /// once.
    pub fn set_up(&self, setup: Setup) {
        event_loop::tell(&self.setup, setup);
    }

    /// Connects anew: an address of this host went, and with it perhaps the connection, which would
    /// only be noticed after seconds of silence. Returns at once.
    pub fn reconnect(&self) {
        self.setup.send_modify(|_| {});
    }

    /// Tells the others how this host is reached now. Returns at once; etcd is changed as soon as
    /// it can be reached, and only while the record there is still this host's.
    pub fn set_attributes(&self, attributes: Attributes) {
        event_loop::tell(&self.attributes, attributes);
    }

    /// Withdraws the sign of life and ends the thread: within [`STOP_WITHIN`], whatever etcd does.
    /// The lease stays.
    pub fn stop(self) {
        self.event_loop.stop();
    }
}

/// How long the withdrawal of the sign of life may take.
pub const STOP_WITHIN: Duration = Duration::from_secs(1);
