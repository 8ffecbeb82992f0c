//! `status`: how this host is, on one screen.

mod screen;
mod without_agent;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent::lock;
use crate::command::call::{Call, Outcome};
use crate::command::json;
use crate::inspect::agent_socket;
use crate::inspect::pods::{self, Network};
use crate::inspect::{Host, HostList};
use crate::netlink::rtnl::Rtnl;
use crate::plan::ownership;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// show how this host is: agent, lease, etcd, other hosts, pods, firewall, repairs, and what is wrong
/// and what to do first. Asks the agent; without one looks at the host, etcd and what was known last
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "status",
    example = "{command_name}",
    example = "{command_name} --json | jq .faults",
    error_code(0, "all is well"),
    error_code(1, "something is wrong, and is shown"),
    error_code(69, "this user may not ask the agent")
)]
pub struct Status {
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// A setting is wrong, or the kernel cannot be spoken to.
pub fn run(call: &mut Call<'_>, options: &Status) -> Result<Outcome, Exit> {
    let told = call.told_beside_agent()?;
    let settings = &told.settings;
    let mut value =
        match agent_socket::of(settings).and_then(|path| agent_socket::get(path, "/v1/status")) {
            Ok(mut value) => {
                value["agent"] = json!({ "answers": true, "error": null });
                value["drift"] = Value::Null;
                value
            }
            // What another user sees of the kernel would be compared with what an agent knows.
            Err(why) if agent_socket::is_denied(settings) => {
                return Err(Exit::new(exit::UNAVAILABLE, why));
            }
            Err(why) => without_agent(settings, &why)?,
        };
    add_pods(&mut value, settings);
    let fine = value["faults"].as_array().is_some_and(Vec::is_empty);
    let text = screen::screen(&value, call.style);
    call.answer(options.json, fine, value, &text)
}

/// What can be known without the agent.
fn without_agent(settings: &Settings, why: &str) -> Result<Value, Exit> {
    let host = Host::inspect(settings, HostList::Live)?;
    let (mut value, drift) = without_agent::status(&host);
    value["agent"] = json!({ "answers": false, "error": why });
    first(&mut value, why, cure(settings));
    if host.subnets.is_empty() {
        let what = "it is not known which subnet this host has, so nothing was compared with it";
        fault(&mut value, what, "an agent gets one from etcd when it starts");
    } else if !drift.is_empty() {
        let count = match drift.len() {
            1 => "1 change is".to_owned(),
            many => format!("{many} changes are"),
        };
        let what = format!("{count} waiting for an agent, as listed");
        fault(&mut value, &what, "start the agent; humanz-agent --dry-run shows them, too");
    }
    value["drift"] = drift.into();
    Ok(value)
}

/// What to do about an agent that does not answer: an active unit is not started again.
fn cure(settings: &Settings) -> &'static str {
    match (&settings.socket, lock::is_held(&settings.state_dir)) {
        (None, true) => "set SOCKET, and the agent can be asked",
        (Some(_), true) => "systemctl restart humanz-agent (pods do not notice)",
        (_, false) => "systemctl start humanz-agent (journalctl -u humanz-agent says why it ended)",
    }
}

/// What the stores and the kernel say of pods: the agent does not know it.
fn add_pods(value: &mut Value, settings: &Settings) {
    let subnets: Vec<ipnetwork::IpNetwork> =
        texts(&value["lease"]["subnets"]).filter_map(|text| text.parse().ok()).collect();
    let networks = match pods::networks(settings, None) {
        Ok(networks) => networks,
        Err(exit) => {
            fault(value, &exit.why, "look at IPAM_DIR");
            Vec::new()
        }
    };
    let mut list = Vec::new();
    for network in &networks {
        let own = network.name == settings.cni.name;
        let rooms = json::rooms(network, subnets.iter().copied().filter(|_| own));
        for what in &network.looked.faults {
            fault(value, what, "the next ADD or DEL puts it into quarantine");
        }
        list.push(json!({
            "name": network.name,
            "attachments": network.looked.entries.len(),
            "host_ports": network.looked.entries.iter().map(|of| of.forwards().len()).sum::<usize>(),
            "free": rooms,
        }));
    }
    let (attached, limited) = attached(&networks).unwrap_or_default();
    value["pods"] = json!({ "attached": attached, "limited": limited, "networks": list });
}

/// How many pods are plugged in, and how many of these have a limited rate; `None` if the kernel
/// does not say.
fn attached(networks: &[Network]) -> Option<(usize, usize)> {
    let rtnl = Rtnl::open().ok()?;
    let links = rtnl.links(None).ok()?;
    let attached = ownership::attached(&links).len();
    // No pod, no rate: it would be asked for one by one.
    let any = networks.iter().any(|network| !network.looked.entries.is_empty());
    let ends = links.iter().filter(|link| any && ownership::is_of_pod(link));
    let limited = ends.filter(|end| matches!(rtnl.rate(end.index), Ok(Some(_)))).count();
    Some((attached, limited))
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Adds what is wrong, behind everything else.
fn fault(value: &mut Value, what: &str, cure: &str) {
    if !value["faults"].is_array() {
        value["faults"] = json!([]);
    }
    if let Some(faults) = value["faults"].as_array_mut() {
        faults.push(json!({ "what": what, "cure": cure }));
    }
}

/// Adds what is wrong, before everything else.
fn first(value: &mut Value, what: &str, cure: &str) {
    fault(value, what, cure);
    if let Some(faults) = value["faults"].as_array_mut() {
        faults.rotate_right(1);
    }
}
