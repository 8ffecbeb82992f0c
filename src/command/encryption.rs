//! `encryption`: another WireGuard key for this host.

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::agent::encryption_key;
use crate::command::call::{Call, Outcome};
use crate::inspect::agent_socket;
use crate::net::shell::word;
use crate::settings::exit::{self, Exit};

/// this host's WireGuard key (ENCRYPTION=wireguard)
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "encryption",
    example = "{command_name} rotate",
    error_code(0, "the agent was asked"),
    error_code(1, "the request cannot be written"),
    error_code(2, "this host does not encrypt")
)]
pub struct EncryptionCommand {
    #[argh(subcommand)]
    verb: EncryptionVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum EncryptionVerb {
    Rotate(Rotate),
}

/// give this host another key, without the loss of a packet, whatever the age of the present one
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "rotate")]
struct Rotate {
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Asks the agent, which begins at its next regular check.
///
/// # Errors
/// This host does not encrypt, or the request cannot be written.
pub fn run(call: &mut Call<'_>, options: &EncryptionCommand) -> Result<Outcome, Exit> {
    let EncryptionVerb::Rotate(Rotate { json }) = &options.verb;
    call.origin.set_default("ETCD_HOST", "localhost");
    let settings = call.load()?.settings;
    if settings.encryption.is_none() {
        let why = "ENCRYPTION=off: this host has no WireGuard key";
        return Err(Exit::new(exit::SETTINGS, why));
    }
    let path = encryption_key::request(&settings.state_dir)
        .map_err(|error| Exit::new(exit::FAILURE, format!("{error:#}")))?;
    let socket = agent_socket::of(&settings);
    let answers = socket.and_then(|socket| agent_socket::text(socket, "/readyz")).is_ok();
    let when = if answers { "at its next regular check" } else { "when it runs" };
    let text = format!(
        "asked: the agent begins {when}, and humanz-agent status says how far it is; to take it back \
         before: rm {}",
        word(path.display())
    );
    call.answer(*json, true, json!({ "asked": true, "agent_answers": answers }), &text)
}
