//! `explain`: hop by hop from one end to the other, and where packets are lost.

pub mod find;
mod observe;
mod pins;
mod policies;
mod print;

use argh::{ArgsInfo, FromArgs};
use serde_json::Value;

use crate::checks::explain::{EndPlace, Hop, Path, PathEnd, hops, without_agent};
use crate::command::call::{Call, Outcome};
use crate::command::explain::pins::KnownPins;
use crate::inspect::{Host, HostList};
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// look at each hop from FROM to TO as far as this host can see, and say where packets are lost, which rule
/// of a policy decides at each end, and what to do
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "explain",
    example = "{command_name} default/web 10.244.2.7",
    example = "{command_name} shop/web shop/db 5432",
    example = "{command_name} default/web https://example.org/",
    example = "{command_name} 10.244.2.7 default/web --ipv6",
    example = "{command_name} 3f2a9c 192.0.2.7:8080 --json",
    note = "Either end is a pod of this host (namespace/name, or the start of its container id), a pod of any host \
        that has a pin (namespace/name), an address, or for TO a URL or ADDRESS:PORT. Sends two echo requests; \
        changes nothing.",
    error_code(0, "nothing is lost as far as this host can see"),
    error_code(1, "packets are lost at the last hop shown"),
    error_code(2, "an end is not known"),
    error_code(69, "a name does not resolve, or this user may not read the pods")
)]
pub struct Explain {
    /// the sender: a pod or an address
    #[argh(positional)]
    from: String,
    /// the receiver: a pod, an address, ADDRESS:PORT or a URL
    #[argh(positional)]
    to: String,
    /// the port that is connected to, for policies and firewalls: 5432, udp/53
    #[argh(positional)]
    port: Option<String>,
    /// by IPv6, where both ends have it
    #[argh(switch)]
    ipv6: bool,
    /// send no echo requests
    #[argh(switch)]
    quiet: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Says where packets are lost.
///
/// # Errors
/// An end is not known, or the kernel does not answer.
pub fn run(call: &mut Call<'_>, options: &Explain) -> Result<Outcome, Exit> {
    let loaded = call.load_to_look()?;
    let (path, all) = explain(&loaded.settings, options)?;
    let fine = !all.iter().any(Hop::is_lost);
    let text = print::text(&path, &all, call.style);
    call.answer(options.json, fine, print::json(&path, &all), &text)
}

/// What `explain --json` answers to these words: FROM, TO and perhaps a port.
///
/// # Errors
/// As [`run`]; or the words are others.
pub fn value(settings: &Settings, words: &[&str]) -> Result<Value, Exit> {
    let (from, to, port) = match *words {
        [from, to] => (from, to, None),
        [from, to, port] => (from, to, Some(port.to_owned())),
        _ => {
            let why = "two ends are needed: pods (namespace/name) or addresses";
            return Err(Exit::new(exit::SETTINGS, why));
        }
    };
    let (from, to) = (from.to_owned(), to.to_owned());
    let options = Explain { from, to, port, ipv6: false, quiet: false, json: true };
    let (path, hops) = explain(settings, &options)?;
    Ok(print::json(&path, &hops))
}

fn explain(settings: &Settings, options: &Explain) -> Result<(Path, Vec<Hop>), Exit> {
    let host = Host::inspect(settings, HostList::Saved)?;
    let pins = KnownPins::read(&host);
    let from = find::named(&options.from, &host, &pins)?;
    let mut to = find::named(&options.to, &host, &pins)?;
    if let Some(port) = &options.port {
        let port = policies::port(port).map_err(|why| Exit::new(exit::SETTINGS, why))?;
        to = to.at_port(port);
    }
    let mut ends = find::pair(from, to, options.ipv6, &host, &pins)?;
    let is_here = |end: &PathEnd| !matches!(end.place, EndPlace::RemoteHost(_) | EndPlace::Outside);
    if !is_here(&ends.from) && !is_here(&ends.to) {
        let why = format!(
            "neither {} nor {} is on this host: run it on a host of one of them",
            ends.from.name, ends.to.name
        );
        return Err(Exit::new(exit::SETTINGS, why));
    }
    let mut all = std::mem::take(&mut ends.leads);
    let is_lost = all.iter().any(Hop::is_lost);
    let path = observe::path(ends, &host, !options.quiet && !is_lost)?;
    if !is_lost {
        all.extend(hops(&path));
    }
    if settings.agentless {
        without_agent(&mut all);
    }
    Ok((path, all))
}
