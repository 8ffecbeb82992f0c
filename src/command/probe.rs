//! `probe`: echo requests to the gateway of every other host: reachability, latency, MTU.

mod reports;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent::probe::PATIENCE;
use crate::command::call::{Call, Outcome};
use crate::command::connectivity::pod::{TestPod, remove_stale};
use crate::command::connectivity::runtime::RuntimeNetwork;
use crate::command::connectivity::signals::HeldSignals;
use crate::command::table::{Cell, Style, Table, Tone};
use crate::inspect::{Host, HostList};
use crate::net::gather::Gather;
use crate::net::subnet::gateway;
use crate::netlink::rtnl::Rtnl;
use crate::os::echo;
use crate::os::echoes::Echoes;
use crate::settings::exit::{self, Exit};

/// send echo requests to the pod gateway of every other host
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "probe",
    example = "{command_name}",
    example = "{command_name} h2 h3 --json",
    example = "{command_name} --from-pod",
    example = "{command_name} --matrix",
    note = "Shows reachability, latency, and whether packets of the path MTU arrive. Changes nothing.",
    error_code(0, "all hosts answer"),
    error_code(1, "a host does not answer, or not to large packets; or there is no such host"),
    error_code(69, "other hosts are unknown, or no agent answers (--matrix)")
)]
pub struct Probe {
    /// hosts by name (default: all)
    #[argh(positional)]
    hosts: Vec<String>,
    /// the reachability reports of all hosts, or of those given, as the agents publish them (nothing is
    /// sent): which host does not reach which, and which hosts few reach
    #[argh(switch)]
    matrix: bool,
    /// send from a pod of this program, which is attached for the time of the probe: through this host's forward chains, which
    /// what the host itself sends does not pass
    #[argh(switch)]
    from_pod: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Requests under way at once, and the time between two: 500 a second.
const AT_ONCE: usize = 256;
const PAUSE: Duration = Duration::from_millis(2);

/// How often a request is sent without an answer.
const TRIES: u32 = 3;

/// Who sends the requests.
#[derive(Clone, Copy)]
enum ProbeSender {
    /// This host itself: its packets do not pass the forward hook.
    Host,
    Pod,
}

/// The gateway of a host in one family.
struct Target {
    host: String,
    address: IpAddr,
    small: Option<Duration>,
    /// Bytes, and whether they were answered.
    large: Option<(u32, bool)>,
    error: Option<String>,
}

/// # Errors
/// No such host; other hosts are unknown.
pub fn run(call: &mut Call<'_>, options: &Probe) -> Result<Outcome, Exit> {
    if options.matrix {
        return reports::run(call, &options.hosts, options.json);
    }
    let signals = options.from_pod.then(HeldSignals::hold).transpose()?;
    let loaded = call.load()?;
    let host = Host::inspect(&loaded.settings, HostList::Saved)?;
    if let Some(why) = &host.peers_unknown {
        return Err(Exit::new(exit::UNAVAILABLE, why));
    }
    let mut targets = targets(&host, &options.hosts)?;
    match &signals {
        None => probe(&mut targets, &host.kernel.rtnl),
        Some(signals) => {
            probe_from_pod(&mut targets, &host)?;
            signals.verify()?;
        }
    }
    let fine = targets.iter().all(is_fine);
    let from = if options.from_pod { ProbeSender::Pod } else { ProbeSender::Host };
    let hosts: Vec<Value> = targets.iter().map(object).collect();
    let value = json!({ "from": from.word(), "hosts": hosts });
    call.answer(options.json, fine, value, &text(&targets, from, call.style))
}

impl ProbeSender {
    /// For `--json`.
    fn word(self) -> &'static str {
        match self {
            ProbeSender::Host => "host",
            ProbeSender::Pod => "pod",
        }
    }

    /// For people, who may take the one for the other.
    fn asked_by(self) -> &'static str {
        match self {
            ProbeSender::Host => "asked by this host, not by its pods: --from-pod does that",
            ProbeSender::Pod => "asked by a pod of this host",
        }
    }
}

fn targets(found: &Host, hosts: &[String]) -> Result<Vec<Target>, Exit> {
    let is_known = |host: &str| found.others().any(|(name, _)| name.as_str() == host);
    if let Some(host) = hosts.iter().find(|host| !is_known(host)) {
        let why = format!("no other host is called {host:?} (of {})", found.others().count());
        return Err(Exit::new(exit::FAILURE, why));
    }
    let is_selected = |name: &str| hosts.is_empty() || hosts.iter().any(|host| host == name);
    let selected = found.others().filter(|(name, _)| is_selected(name.as_str()));
    let each = selected.flat_map(|(name, peer)| {
        peer.subnets.iter().map(|subnet| Target {
            host: name.to_string(),
            address: gateway(*subnet),
            small: None,
            large: None,
            error: None,
        })
    });
    Ok(each.collect())
}

/// Small requests to all targets, then large ones to those that answer.
fn probe(targets: &mut [Target], rtnl: &Rtnl) {
    let small = targets.iter().map(|target| (target.address, echo::SMALLEST)).collect();
    let (times, errors) = send(small);
    for target in targets.iter_mut() {
        target.small = times.get(&target.address).copied();
        target.error = errors.get(&target.address).cloned();
    }
    let answered = targets.iter().filter(|target| target.small.is_some());
    let size = |target: &Target| Some((target.address, rtnl.path_mtu(target.address).ok()??));
    let large: Vec<(IpAddr, u32)> = answered.filter_map(size).collect();
    let (times, _) = send(large.clone());
    let sizes: BTreeMap<IpAddr, u32> = large.into_iter().gather();
    for target in targets {
        let bytes = sizes.get(&target.address).copied();
        target.large = bytes.map(|bytes| (bytes, times.contains_key(&target.address)));
    }
}

/// The same, sent by a pod: what the forward chains of this host drop is lost.
fn probe_from_pod(targets: &mut [Target], host: &Host) -> Result<(), Exit> {
    let network = RuntimeNetwork::read(&host.settings.cni)?;
    remove_stale(&network, &host.settings)?;
    let pod = TestPod::add(&network, 1, None)?;
    let sent = pod.netns.run(|| Rtnl::open().map(|rtnl| probe(targets, &rtnl)));
    sent.map_err(anyhow::Error::from)?.map_err(anyhow::Error::from)?;
    Ok(())
}

/// The latency of each answer, and the errors of requests that could not be sent.
fn send(wanted: Vec<(IpAddr, u32)>) -> (BTreeMap<IpAddr, Duration>, BTreeMap<IpAddr, String>) {
    let (mut times, mut errors) = (BTreeMap::new(), BTreeMap::new());
    let mut waiting: VecDeque<(IpAddr, u32)> = wanted.into();
    let mut tries: BTreeMap<IpAddr, u32> = BTreeMap::new();
    let mut echoes = Echoes::default();
    while !waiting.is_empty() || !echoes.is_empty() {
        if echoes.len() < AT_ONCE
            && let Some((to, bytes)) = waiting.pop_front()
        {
            *tries.entry(to).or_default() += 1;
            if let Err(error) = echoes.send(to, bytes) {
                errors.insert(to, error.to_string());
            }
        }
        let pause = if waiting.is_empty() { PATIENCE } else { PAUSE };
        let outcomes = match echoes.wait(Instant::now() + pause, PATIENCE) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                errors.extend(waiting.drain(..).map(|(to, _)| (to, error.to_string())));
                break;
            }
        };
        for outcome in outcomes {
            match outcome.time {
                Some(time) => {
                    times.insert(outcome.to, time);
                }
                None if tries.get(&outcome.to).is_some_and(|tries| *tries < TRIES) => {
                    waiting.push_back((outcome.to, outcome.bytes));
                }
                None => {}
            }
        }
    }
    (times, errors)
}

fn is_fine(target: &Target) -> bool {
    target.small.is_some() && target.large.is_none_or(|(_, answered)| answered)
}

fn fault(target: &Target) -> Option<String> {
    match (target.small, target.large) {
        (None, _) => Some(target.error.clone().unwrap_or_else(|| "no answer".to_owned())),
        (Some(_), Some((bytes, false))) => {
            Some(format!("packets of {bytes} bytes are lost, smaller ones are not"))
        }
        _ => None,
    }
}

fn object(target: &Target) -> Value {
    let mtu = target.large.filter(|(_, answered)| *answered).map(|(bytes, _)| bytes);
    json!({
        "host": target.host,
        "address": target.address,
        "reachable": target.small.is_some(),
        "seconds": target.small.map(|time| time.as_secs_f64()),
        "mtu": mtu,
        "fault": fault(target),
    })
}

fn text(targets: &[Target], from: ProbeSender, style: Style) -> String {
    if targets.is_empty() {
        return "there are no other hosts".to_owned();
    }
    let mut table = Table::new(&["HOST", "GATEWAY", "ANSWERS IN", "MTU", "FAULT"]);
    for target in targets {
        let time = target.small.map_or_else(String::new, |time| format!("{time:.1?}"));
        let mtu = target.large.filter(|(_, answered)| *answered);
        let mtu = mtu.map_or_else(String::new, |(bytes, _)| bytes.to_string());
        let fault = fault(target).unwrap_or_default();
        table.row([
            Cell::new(&target.host),
            Cell::new(target.address.to_string()),
            Cell::new(time),
            Cell::new(mtu),
            Cell::new(fault).tone(Tone::Bad),
        ]);
    }
    let lost = targets.iter().filter(|target| !is_fine(target)).count();
    let (tone, summary) = match lost {
        0 => (Tone::Good, format!("all {} answer", targets.len())),
        lost => (Tone::Bad, format!("{lost} of {} have faults", targets.len())),
    };
    let summary = format!("{summary} ({})", from.asked_by());
    format!("{}\n{}", table.render(style), style.sentence(tone, &summary))
}
