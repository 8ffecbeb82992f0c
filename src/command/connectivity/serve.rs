//! `connectivity serve`: two pods that answer tests of other hosts.

use std::time::Duration;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::connectivity::pod::{TestPod, remove_stale};
use crate::command::connectivity::runtime::RuntimeNetwork;
use crate::command::connectivity::signals::HeldSignals;
use crate::settings::exit::Exit;

/// hold two pods that answer the tests of other hosts; prints the command for these
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "serve",
    example = "{command_name}",
    example = "{command_name} --seconds 60",
    error_code(1, "no pod can be attached"),
    error_code(69, "this host has no CNI configuration of humanz")
)]
pub struct ServePods {
    /// until they are detached (default 600); SIGINT and SIGTERM end it earlier
    #[argh(option, default = "600")]
    seconds: u32,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &ServePods) -> Result<Outcome, Exit> {
    let signals = HeldSignals::hold()?;
    let settings = call.load_to_look()?.settings;
    let network = RuntimeNetwork::read(&settings.cni)?;
    remove_stale(&network, &settings)?;
    let pods = [TestPod::add(&network, 1, None)?, TestPod::add(&network, 2, None)?];
    let addresses: Vec<String> =
        pods.iter().flat_map(|pod| pod.addresses.iter()).map(ToString::to_string).collect();
    let command = addresses.iter().map(|address| format!(" --to {address}")).collect::<String>();
    let text = format!("on another host: humanz-agent connectivity test{command}");
    let outcome = call.answer(options.json, true, json!({ "addresses": addresses }), &text)?;
    signals.came(Duration::from_secs(options.seconds.into()));
    Ok(outcome)
}
