//! The connection with etcd: keeps this host's lease and publishes snapshots of all hosts.
//!
//! It runs in its own thread: an unreachable etcd is tried again forever, and nothing that was
//! published is revoked.
//!
//! - `session`: executes the session state machine of `lease`, and watches
//! - `survivors`, `uptime`: the wait of a new host on an empty etcd, and how long etcd has been running
//! - `liveness`: keeps the etcd lease of the alive key
//! - `reports`: writes and reads reachability reports
//! - `pod_answers`: asks all hosts for their pods, and answers
//! - `test_answers`, `test_requests`, `test_calls`: asks another host for pods of a connectivity test, and answers
//! - `files`: applies renewed certificates and passwords
//! - `roles`: users and roles, for an administrator
//! - `client`, `members`, `connection`, `failure`, `watch`: calls and members; only these files and
//!   `sources::ranges` use the etcd crate
//! - `tls`: certificates and TLS errors

mod client;
mod connection;
mod contact;
pub mod failure;
mod files;
mod liveness;
mod members;
pub mod pod_answers;
pub mod reports;
mod roles;
mod session;
mod settings;
mod survivors;
pub mod test_answers;
mod test_calls;
mod test_requests;
mod tls;
mod update;
mod uptime;
mod urgent;
mod watch;

pub use client::{Etcd, FoundPods, FoundReports};
pub use connection::MemberConnection;
pub use contact::Contact;
pub use reports::Reports;
pub use roles::{AppliedRole, WantedRole};
pub use settings::{EtcdSettings, EtcdSetup, EtcdStart};
pub use test_answers::HeldTestPods;
pub use test_requests::{AskedTest, LOOK as REQUEST_LOOK};
pub use tls::meaning::tls_error;
pub use update::Update;
pub use watch::{after, canceled, watch_failed};

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnetwork::IpNetwork;
use tokio::sync::watch as latest;

use crate::lease::blocks::FoundBlocks;
use crate::lease::blocks::held::HeldBlock;
use crate::lease::records::NodeName;
use crate::lease::tenant_pools::NetworkReader;
use crate::lease::transaction::Transaction;
use crate::lease::{EtcdError, HostAttributes, Network, Roots, Snapshot, growth};
use crate::net::{PerFamily, Problem};
use crate::os::event_loop::{self, EventLoop, Steered};

/// The running connection.
#[derive(Debug)]
pub struct EtcdHandle {
    /// Its settings may have other members or wider pools; attributes are written as soon as etcd answers, and
    /// only while the record there is this host's; stopping revokes the etcd lease, and with it the alive
    /// key, within [`session::STOP_WITHIN`] in any case. The host keeps its subnets.
    pub session: Steered<EtcdSetup, HostAttributes>,
    vacated: latest::Sender<PerFamily<IpNetwork>>,
}

/// Starts the connection. `contact`: its counters. `publish` is called from its thread and must not
/// block for long.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn spawn(
    start: EtcdStart,
    contact: Arc<Contact>,
    reports: Arc<Reports>,
    mut publish: impl FnMut(Update) + Send + 'static,
) -> io::Result<EtcdHandle> {
    let (setup, set_up) =
        latest::channel(EtcdSetup { etcd: start.etcd.clone(), network: start.network.clone() });
    let (attributes, changes) = latest::channel(start.attributes.clone());
    let (vacated, vacancy) = latest::channel(PerFamily::default());
    let inputs = session::EtcdInputs {
        setup: set_up,
        attributes: changes,
        vacated: vacancy,
        contact,
        reports,
    };
    let event_loop = EventLoop::spawn("etcd", async move |mut stopped| {
        session::run(start, inputs, &mut stopped, &mut publish).await;
    })?;
    let session = Steered { setup, attributes, event_loop };
    Ok(EtcdHandle { session, vacated })
}

/// Both key ranges, read once. Writes nothing.
///
/// # Errors
/// No member answers, or reading is not permitted.
pub fn read(settings: &EtcdSettings, roots: &Roots) -> Result<Snapshot, String> {
    once(settings, roots, async |etcd| etcd.read().await)
}

/// The same; `None`: these credentials may not read it.
///
/// # Errors
/// No member answers.
pub fn read_if_permitted(
    settings: &EtcdSettings,
    roots: &Roots,
) -> Result<Option<Snapshot>, String> {
    once(settings, roots, async |etcd| etcd.read_if_permitted().await)
}

/// The keys of the blocks of `host`, and those by which it publishes members of groups, each with the revision of
/// its last change.
///
/// # Errors
/// No member answers, or reading is not permitted.
pub fn members_of(
    settings: &EtcdSettings,
    roots: &Roots,
    host: &NodeName,
) -> Result<Vec<(String, i64)>, String> {
    once(settings, roots, async |etcd| etcd.members_of(host).await)
}

/// Asks all hosts for their pods, in the name of `host`: the answers, once all of `expected` have answered or after
/// `within`.
///
/// # Errors
/// No member answers, or the request or reading is not permitted.
pub fn pods(
    settings: &EtcdSettings,
    roots: &Roots,
    host: &NodeName,
    expected: &BTreeSet<NodeName>,
    within: Duration,
) -> Result<FoundPods, String> {
    once(settings, roots, async |etcd| pod_answers::ask(etcd, host, expected, within).await)
}

/// Asks `other` in the name of `host` for pods of a test, and keeps the request until the event loop is stopped.
/// `report` gets what becomes of it, and [`AskedTest::Ended`] if it ends before.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn ask_for_test_pods(
    settings: EtcdSettings,
    roots: Roots,
    (host, other): (NodeName, NodeName),
    report: impl Fn(AskedTest) + Send + 'static,
) -> io::Result<EventLoop> {
    EventLoop::spawn("ask", async move |stopped| {
        let etcd = client::Etcd::new(settings, roots);
        test_requests::keep(&etcd, (&host, &other), report, stopped).await;
    })
}

/// The reachability reports of all hosts.
///
/// # Errors
/// No member answers, or reading is not permitted.
pub fn reports(settings: &EtcdSettings, roots: &Roots) -> Result<FoundReports, String> {
    once(settings, roots, async |etcd| etcd.reports().await)
}

/// The blocks of all hosts, and the revision of etcd.
///
/// # Errors
/// No member answers, or reading is not permitted.
pub fn blocks(settings: &EtcdSettings, roots: &Roots) -> Result<(FoundBlocks, i64), String> {
    once(settings, roots, async |etcd| etcd.blocks().await)
}

/// The blocks of all hosts with what they were taken for, and the revision of etcd.
///
/// # Errors
/// As [`blocks`].
pub fn held_blocks(
    settings: &EtcdSettings,
    roots: &Roots,
) -> Result<(Vec<HeldBlock>, i64), String> {
    once(settings, roots, async |etcd| etcd.held_blocks().await)
}

/// The network as `configured`, with the pools of tenants' networks if it is to grow.
///
/// # Errors
/// No member answers, or reading is not permitted.
pub fn beside_tenants(
    settings: &EtcdSettings,
    found: &Snapshot,
    configured: Network,
    read: NetworkReader,
) -> Result<Network, String> {
    if !growth::is_wanted(found, &configured) {
        return Ok(configured);
    }
    let tenants = once(settings, &configured.roots, async |etcd| etcd.tenant_pools(read).await)?;
    Ok(Network { tenants, ..configured })
}

/// Commits one transaction; false if a condition did not hold. `what` is for errors.
///
/// # Errors
/// No member answers (then it may have been committed), or writing is not permitted.
pub fn commit(
    settings: &EtcdSettings,
    roots: &Roots,
    what: &str,
    transaction: &Transaction,
) -> Result<bool, String> {
    once(settings, roots, async |etcd| Ok(etcd.commit(what, transaction).await?.is_some()))
}

/// Whether hosts can show that they are alive: a full etcd grants no lease, and takes deletions. A lease without keys is
/// left, which ends by itself.
///
/// # Errors
/// Why they cannot.
pub fn grants(settings: &EtcdSettings, roots: &Roots) -> Result<(), String> {
    once(settings, roots, async |etcd| etcd.grant(Duration::from_secs(1)).await.map(drop))
}

/// The faults of the files in `settings` (unreadable, no certificates, not a pair), and the certificates
/// that are invalid at this time or will be soon.
pub fn check_files(settings: &EtcdSettings) -> (Vec<Problem>, Vec<Problem>) {
    let (files, faults) = tls::files::Files::read(settings, true, &Default::default());
    (faults, files.untimely(SystemTime::now()))
}

/// Allocates a number that no other host has.
///
/// # Errors
/// No member answers, or writing is not permitted.
pub fn allocate_ticket(settings: &EtcdSettings, roots: &Roots) -> Result<i64, String> {
    once(settings, roots, async |etcd| etcd.allocate_ticket().await)
}

/// The version of the member that answers.
///
/// # Errors
/// No member answers.
pub fn version(settings: &EtcdSettings, roots: &Roots) -> Result<String, String> {
    once(settings, roots, async |etcd| etcd.version().await)
}

/// Makes users and roles as `wanted`.
///
/// # Errors
/// No member answers, or these credentials are no administrator's.
pub fn apply_roles(
    settings: &EtcdSettings,
    roots: &Roots,
    wanted: &[WantedRole],
) -> Result<Vec<AppliedRole>, String> {
    once(settings, roots, async |etcd| etcd.apply_roles(wanted).await)
}

/// One request with its own connection.
fn once<T>(
    settings: &EtcdSettings,
    roots: &Roots,
    ask: impl AsyncFnOnce(&client::Etcd) -> Result<T, EtcdError>,
) -> Result<T, String> {
    let etcd = client::Etcd::new(settings.clone(), roots.clone());
    event_loop::once(async || ask(&etcd).await.map_err(|error| error.to_string()))
}

impl EtcdHandle {
    /// No pod of this host runs in `subnets`, and none will start there: if they are disputed, the host
    /// takes others. Returns at once.
    pub fn set_vacated(&self, subnets: PerFamily<IpNetwork>) {
        event_loop::send_if_changed(&self.vacated, subnets);
    }
}
