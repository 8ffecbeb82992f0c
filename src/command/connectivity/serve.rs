//! `connectivity serve`: two pods that answer tests of other hosts.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::arguments::seconds;
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
    #[argh(option, default = "600", from_str_fn(seconds))]
    seconds: u32,
    /// detach them when standard input ends, too: so the agent runs it for a test of another host
    #[argh(switch)]
    until_eof: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &ServePods) -> Result<Outcome, Exit> {
    let signals = HeldSignals::hold()?;
    let settings = call.load_to_look()?.settings;
    let network = RuntimeNetwork::read(&settings.cni)?;
    remove_stale(&network, &settings)?;
    let stdin = io::stdin();
    let input = options.until_eof.then(|| stdin.as_fd());
    if signals.came_or_ended(input, Duration::ZERO) {
        return Ok(Outcome::Fine);
    }
    let pods = [TestPod::add(&network, 1, None)?, TestPod::add(&network, 2, None)?];
    let addresses: Vec<String> =
        pods.iter().flat_map(|pod| pod.addresses.iter()).map(ToString::to_string).collect();
    let command = addresses.iter().map(|address| format!(" --to {address}")).collect::<String>();
    let text = format!("on another host: humanz-agent connectivity test{command}");
    let of_each: Vec<Vec<_>> =
        pods.iter().map(|pod| pod.addresses.iter().copied().collect()).collect();
    let value = json!({ "addresses": addresses, "pods": of_each });
    let outcome = call.answer(options.json, true, value, &text)?;
    signals.came_or_ended(input, Duration::from_secs(options.seconds.into()));
    Ok(outcome)
}
