//! `ready`: whether pods can start here, for probes without an HTTP client.

use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::arguments::seconds;
use crate::command::call::{Call, Outcome};
use crate::inspect::agent_socket;
use crate::settings::exit::Exit;

/// Time between two questions of `--wait`.
const PAUSE: Duration = Duration::from_millis(100);

/// ask the agent whether pods can start on this host
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ready",
    example = "{command_name}",
    example = "{command_name} --alive",
    example = "{command_name} --wait 60",
    note = "They can when plugin and CNI configuration are in place and everything else was applied once. The probes \
        of the DaemonSets use it.",
    error_code(0, "ready (--alive: every loop of the agent runs)"),
    error_code(1, "not ready, and why; or no agent answers")
)]
pub struct ReadyOptions {
    /// ask whether every loop of the agent runs, as a liveness probe does
    #[argh(switch)]
    alive: bool,
    /// seconds to wait for that (default 0)
    #[argh(option, default = "0", from_str_fn(seconds))]
    wait: u32,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// A setting is invalid, or the answer cannot be written.
pub fn run(call: &mut Call<'_>, options: &ReadyOptions) -> Result<Outcome, Exit> {
    call.origin.set_default("ETCD_HOST", "localhost");
    let settings = call.load()?.settings;
    let path = if options.alive { "/healthz" } else { "/readyz" };
    let ask = || agent_socket::of(&settings).and_then(|socket| agent_socket::text(socket, path));
    let end = Instant::now() + Duration::from_secs(options.wait.into());
    let (ready, text) = loop {
        match ask() {
            Ok((true, text)) => break (true, text),
            Ok((false, text)) | Err(text) if Instant::now() >= end => break (false, text),
            _ => std::thread::sleep(PAUSE),
        }
    };
    call.answer(options.json, ready, json!({ "ready": ready, "text": text }), &text)
}
