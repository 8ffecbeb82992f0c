//! `controller`: keeps custom resources of Kubernetes in etcd, once in a cluster.

use std::path::Path;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};

use crate::agent::logger;
use crate::api::controller_probes;
use crate::api::listen::Socket;
use crate::command::call::{Call, Outcome};
use crate::command::connectivity::signals::HeldSignals;
use crate::controller::{self, ControllerStart};
use crate::inspect::cluster;
use crate::policy::ObjectSource;
use crate::settings::exit::{self, Exit};

/// Time between two looks at signals; one wakes it at once.
const WAIT: Duration = Duration::from_secs(600);

/// keep the networks that are custom resources of Kubernetes (Network) in etcd, and write the status of all
/// custom resources of humanz
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "controller",
    example = "{command_name}",
    note = "One in a cluster (packaging/controller.yaml), with POLICY_OBJECTS=kubernetes; two do no harm. Its user of \
        etcd may read and write what the policies command does. It runs until SIGTERM; ready says whether it works.",
    error_code(0, "it was stopped"),
    error_code(2, "a setting is wrong or missing")
)]
pub struct ControllerOptions {}

/// Runs until a signal.
///
/// # Errors
/// A setting is wrong, or it cannot start.
pub fn run(call: &mut Call<'_>, _: &ControllerOptions) -> Result<Outcome, Exit> {
    let signals = HeldSignals::hold()?;
    let loaded = call.load()?;
    logger::set(loaded.log.as_deref().unwrap_or(logger::USUAL));
    let settings = loaded.settings;
    let (etcd, roots) = cluster::etcd(&settings)?;
    let policy = settings.policy.as_ref();
    let api = policy.filter(|it| it.objects == ObjectSource::Kubernetes);
    let Some(api) = api.and_then(|policy| policy.api.clone()) else {
        let why = "custom resources are not in force: set SUBNET_SOURCE=etcd, POLICY=kubernetes and \
                   POLICY_OBJECTS=kubernetes, as the agents have them";
        return Err(Exit::new(exit::SETTINGS, why));
    };
    let start = ControllerStart {
        etcd: etcd.clone(),
        roots: roots.clone(),
        api,
        pools: settings.pool_networks().iter().copied().collect(),
    };
    let failed = |error| Exit::new(exit::FAILURE, format!("start the controller: {error}"));
    let socket = settings.socket.as_deref().map(open).transpose()?;
    let probes = async move |working| controller_probes::serve(socket, working).await;
    let running = controller::spawn(start, probes).map_err(failed)?;
    while !signals.came(WAIT) {}
    log::info!("stopped by a signal");
    running.stop();
    Ok(Outcome::Fine)
}

/// The socket at which probes ask.
fn open(path: &Path) -> Result<Socket, Exit> {
    let why = |error| format!("SOCKET={}: {error}; give this one another place", path.display());
    Socket::open(path).map_err(|error| Exit::new(exit::FAILURE, why(error)))
}
