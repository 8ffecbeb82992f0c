//! `status`: how this host is, on one screen.

mod all;
mod screen;
mod shown;
mod status_answer;
mod without_agent;

use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};

use crate::api::status::{Problems, Status};
use crate::command::arguments::seconds;
use crate::command::call::{Call, Outcome};
use crate::command::json;
use crate::command::silent_agent::silent_agent;
use crate::command::single_machine;
use crate::command::status::shown::{PodCounts, PodNetwork, Shown, ShownAgent};
use crate::command::status::status_answer::StatusAnswer;
use crate::command::table::Style;
use crate::inspect::agent_socket;
use crate::inspect::pods::{self, StoreNetwork};
use crate::inspect::{Host, HostList};
use crate::ipam::StoreEntry;
use crate::net::{Object, Problem, ProblemKind};
use crate::netlink::rtnl::Rtnl;
use crate::plan::ownership;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// Time between two looks of `--wait`.
const PAUSE: Duration = Duration::from_millis(500);

/// show the state of this host
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "status",
    example = "{command_name}",
    example = "{command_name} --json | jq .problems",
    example = "{command_name} --all",
    example = "{command_name} --wait 60",
    note = "Shows agent, lease, etcd, other hosts, pods, firewall, repairs, and what is wrong and what to fix first. \
        Asks the agent; without one reads the host, etcd and the saved state.",
    error_code(0, "all is well"),
    error_code(1, "something is wrong, and is shown"),
    error_code(69, "this user may not use the agent's socket")
)]
pub struct StatusOptions {
    /// all hosts, a line each: state, version, MTU, route or tunnel, encryption, which hosts it reaches, and
    /// the kinds of its problems, as their agents publish it in etcd
    #[argh(switch)]
    all: bool,
    /// seconds to wait until all is well (default 0)
    #[argh(option, default = "0", from_str_fn(seconds))]
    wait: u32,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// A setting is invalid, or the kernel's sockets cannot be opened.
pub fn run(call: &mut Call<'_>, options: &StatusOptions) -> Result<Outcome, Exit> {
    let loaded = call.load_to_look()?;
    let settings = &loaded.settings;
    let end = Instant::now() + Duration::from_secs(options.wait.into());
    loop {
        let found = match options.all {
            true => all::found(settings, call.style)?,
            false => found(settings, call.style)?,
        };
        if found.fine || Instant::now() >= end {
            return call.answer(options.json, found.fine, found.value, &found.text);
        }
        std::thread::sleep(PAUSE);
    }
}

fn found(settings: &Settings, style: Style) -> Result<StatusAnswer, Exit> {
    let mut shown = match agent_socket::of(settings)
        .and_then(|path| agent_socket::get(path, "/v1/status"))
        .and_then(Status::read)
    {
        Ok(status) => {
            let agent = ShownAgent { answers: true, ..ShownAgent::default() };
            Shown { status, agent, ..Shown::default() }
        }
        // What another user sees of the kernel would be compared with what an agent knows.
        Err(why) if agent_socket::is_denied(settings) => {
            return Err(Exit::new(exit::UNAVAILABLE, why));
        }
        Err(why) => without_agent(settings, why)?,
    };
    let mut problems = shown.status.problems.0.take().unwrap_or_default();
    shown.pods = pods_of(&shown.status, settings, &mut problems);
    let fine = problems.is_empty() && shown.status.ready != Some(false);
    shown.status.problems = Problems(Some(problems));
    let text = screen::screen(&shown, style);
    let value = serde_json::to_value(&shown).map_err(anyhow::Error::from)?;
    Ok(StatusAnswer { fine, value, text })
}

/// What can be known without the agent.
fn without_agent(settings: &Settings, why: String) -> Result<Shown, Exit> {
    let host = Host::inspect(settings, HostList::Live)?;
    let (mut status, pending) = without_agent::status(&host);
    let alone = settings.agentless;
    let mut problems: Vec<Problem> =
        (!alone).then(|| silent_agent(settings, &why)).into_iter().collect();
    problems.extend(status.problems.0.take().unwrap_or_default());
    // Without etcd the problem of the agent says why.
    if host.subnets.is_empty() && !settings.is_etcd_unknown() {
        let what = "this host's subnet is unknown, so nothing was compared with it";
        let problem = Problem::new(ProblemKind::Lease, Object::named("lease"), what);
        problems.push(
            problem.with_fix("humanz-agent nodes ls # an agent gets one from etcd when it starts"),
        );
    } else if !pending.is_empty() {
        let count = match pending.len() {
            1 => "1 change is".to_owned(),
            many => format!("{many} changes are"),
        };
        let what = format!("{count} pending (listed above)");
        let problem = Problem::new(ProblemKind::ChangePending, Object::named("this host"), what);
        let fix = match alone {
            true => single_machine::fix(settings, &pending),
            false => {
                "humanz-agent --dry-run # lists them, too: start the agent to apply them".to_owned()
            }
        };
        problems.push(problem.with_fix(fix));
    }
    status.problems = Problems(Some(problems));
    let agent =
        ShownAgent { answers: false, error: (!alone).then_some(why), single_machine: alone };
    let pending = pending.iter().map(ToString::to_string).collect();
    Ok(Shown { status, agent, pending: Some(pending), ..Shown::default() })
}

/// What the stores and the kernel say of pods: the agent does not know it.
fn pods_of(status: &Status, settings: &Settings, problems: &mut Vec<Problem>) -> PodCounts {
    let subnets = || status.lease.iter().filter_map(|lease| lease.subnets.as_ref()).flatten();
    let store = || Object::File("store", settings.cni.ipam_dir.clone());
    let networks = pods::networks(settings, None).unwrap_or_else(|problem| {
        let is_known = problems.iter().any(|problem| problem.kind == ProblemKind::IpamStore);
        if !is_known {
            problems.push(problem);
        }
        Vec::new()
    });
    let mut list = Vec::new();
    for network in &networks {
        let own = network.name == settings.cni.name;
        problems.extend(network.faults(settings));
        problems.extend(ended(network, store()));
        let entries = &network.contents.entries;
        list.push(PodNetwork {
            name: network.name.clone(),
            attachments: entries.len(),
            host_ports: entries.iter().map(|of| of.forwards().len()).sum(),
            free: json::rooms(network, subnets().copied().filter(|_| own)),
        });
    }
    let (attached, limited) = attached(&networks).unwrap_or_default();
    let is_taken_over = |entry: &&StoreEntry| entry.is_taken_over();
    let taken_over = pods::entries(&networks).map(|(_, entry)| entry).filter(is_taken_over).count();
    PodCounts { attached, taken_over, limited, networks: list }
}

/// Whose addresses could not be freed at their end.
fn ended(network: &StoreNetwork, store: Object) -> Option<Problem> {
    let lock = network.store.dir().join("lock");
    let lock = lock.display();
    let addresses = network.contents.ended.iter().flat_map(|entry| &entry.addresses);
    let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
    let what = format!(
        "pods have ended while another process held {lock} or the lock of host ports; their addresses are free once \
         it lets go: {}",
        addresses.join(", ")
    );
    let problem = Problem::new(ProblemKind::LeakedAddresses, store, what);
    let fix = format!("fuser {lock} # end the process that holds it");
    (!network.contents.ended.is_empty()).then(|| problem.with_fix(fix))
}

/// How many pods are plugged in, and how many of these have a limited rate; `None` if the kernel
/// does not say.
fn attached(networks: &[StoreNetwork]) -> Option<(usize, usize)> {
    let rtnl = Rtnl::open().ok()?;
    let links = rtnl.links(None).ok()?;
    let attached = ownership::attached(&links).len();
    // No pod, no rate: it would be asked for one by one.
    let any = networks.iter().any(|network| !network.contents.entries.is_empty());
    let ends = links.iter().filter(|link| any && ownership::is_of_pod(link));
    let limited = ends.filter(|end| matches!(rtnl.rate(end.index), Ok(Some(_)))).count();
    Some((attached, limited))
}
