//! `watch`: what changes, as it changes.

use std::io::BufRead;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::api::status::ChangeLine;
use crate::command::call::{Call, Outcome, complain};
use crate::command::drops;
use crate::command::table::printable;
use crate::inspect::agent_socket;
use crate::inspect::service_manager::service_manager;
use crate::net::time::timestamp;
use crate::netlink::NetlinkProtocol;
use crate::netlink::events::{Events, KernelEvent};
use crate::netlink::route;
use crate::os::threads;
use crate::settings::exit::{self, Exit};

/// show what changes, as it changes, until it is interrupted
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "watch",
    example = "{command_name}",
    example = "{command_name} --json | jq -r .what",
    example = "{command_name} --drops",
    note = "Shows what the agent does and why; without an agent, events of the kernel about links, addresses, routes \
        and nftables.",
    error_code(69, "the agent has ended, or another program reads the dropped packets")
)]
pub struct Watch {
    /// show the packets that policies of this host deny instead: between which pods, and by which policy
    #[argh(switch)]
    drops: bool,
    /// print one JSON object a line
    #[argh(switch)]
    json: bool,
}

/// Answers, until the reader has gone.
///
/// # Errors
/// The agent has ended, the kernel's events cannot be read, or another program reads the dropped packets.
pub fn run(call: &mut Call<'_>, options: &Watch) -> Result<Outcome, Exit> {
    call.origin.set_default("ETCD_HOST", "localhost");
    let loaded = call.load()?;
    if options.drops {
        return drops::run(call, &loaded.settings, options.json);
    }
    let agents = agent_socket::of(&loaded.settings)
        .and_then(|path| agent_socket::follow(path, "/v1/changes"));
    match agents {
        Ok(stream) => agent(call, options, stream),
        Err(why) => {
            complain(&format!("{why}; showing events of the kernel"));
            kernel(call, options)
        }
    }
}

fn agent(call: &mut Call<'_>, options: &Watch, stream: impl BufRead) -> Result<Outcome, Exit> {
    for line in stream.lines() {
        let Ok(line) = line else { break };
        let Ok(mut value) = serde_json::from_slice::<Value>(line.as_bytes()) else { continue };
        let text = match serde_json::from_value(value.clone()) {
            Ok(ChangeLine::Lost { lost }) => format!("({lost} changes came too fast to be shown)"),
            Ok(ChangeLine::Change(change)) => {
                let [at, what, why] =
                    [&change.at, &change.what, &change.why].map(|text| printable(text));
                format!("{at}  {what} ({why})")
            }
            Err(_) => continue,
        };
        if show(call, options, &mut value, &text)?.is_break() {
            return Ok(Outcome::Fine);
        }
    }
    let log = service_manager().show_log();
    Err(Exit::new(exit::UNAVAILABLE, format!("the agent has ended ({log} says why)")))
}

fn kernel(call: &mut Call<'_>, options: &Watch) -> Result<Outcome, Exit> {
    let (sender, events) = channel();
    for protocol in [NetlinkProtocol::Route, NetlinkProtocol::Netfilter] {
        let events = Events::open(protocol).context("watch the kernel")?;
        let sender = sender.clone();
        threads::spawn("kernel", move || forward(events, &sender)).context("start a thread")?;
    }
    drop(sender);
    for event in events {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (at, what) = (timestamp(now), text(&event));
        let mut value = json!({ "at": at, "what": what, "why": "kernel event" });
        if show(call, options, &mut value, &format!("{at}  {what}"))?.is_break() {
            return Ok(Outcome::Fine);
        }
    }
    Err(Exit::new(exit::FAILURE, "the kernel's events cannot be read any more"))
}

fn show(
    call: &mut Call<'_>,
    options: &Watch,
    value: &mut Value,
    text: &str,
) -> Result<ControlFlow<()>, Exit> {
    if !options.json {
        return call.line(text);
    }
    value["schema"] = crate::command::call::SCHEMA.into();
    call.line(&value.to_string())
}

/// Forwards events until the receiver is gone or the socket fails.
fn forward(mut events: Events, to: &Sender<KernelEvent>) {
    while let Ok(batch) = events.wait(PATIENCE) {
        // Of every neighbour the kernel reports each change of its state.
        // A change of guards ends with one event.
        let shown = |event: &KernelEvent| {
            !matches!(
                event,
                KernelEvent::Neighbour { .. }
                    | KernelEvent::Destination { .. }
                    | KernelEvent::Frames { .. }
            )
        };
        for event in batch.into_iter().filter(shown) {
            if to.send(event).is_err() {
                return;
            }
        }
    }
}

/// How long one wait takes; it only returns to be called again.
const PATIENCE: Duration = Duration::from_secs(60);

fn text(event: &KernelEvent) -> String {
    match event {
        KernelEvent::Link { name, .. } => format!("link {name} was added, removed or changed"),
        KernelEvent::NeighbourGone { index } => {
            format!("a neighbour on interface {index} was removed")
        }
        KernelEvent::LocalMacGone { index } => {
            format!("the bridge of interface {index} has lost its MAC")
        }
        KernelEvent::Neighbour { index, .. } | KernelEvent::Destination { index, .. } => {
            format!("a neighbour on interface {index} changed")
        }
        KernelEvent::Address { index } => {
            format!("an address on interface {index} was added or removed")
        }
        KernelEvent::Route { protocol, default, gone, .. } => {
            let whose = match *protocol {
                route::PROTOCOL => "of humanz ".to_owned(),
                other => format!("of protocol {other} "),
            };
            let kind = if *default { "default route" } else { "route" };
            format!("a {kind} {whose}{}", if *gone { "was removed" } else { "was added" })
        }
        KernelEvent::ForwardingOff => "forwarding was turned off".to_owned(),
        KernelEvent::Nftables { .. } | KernelEvent::Frames { .. } | KernelEvent::FramesDone => {
            "nftables changed".to_owned()
        }
        KernelEvent::Lost => "changes came too fast to be shown".to_owned(),
    }
}
