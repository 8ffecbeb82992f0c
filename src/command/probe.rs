//! `probe`: whether every other host's gateway answers, how fast, and to how large packets.

mod matrix;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent::probe::PATIENCE;
use crate::command::call::{Call, Outcome};
use crate::command::table::{Cell, Style, Table, Tone};
use crate::inspect::{Host, HostList};
use crate::net::subnet::gateway;
use crate::netlink::rtnl::Rtnl;
use crate::os::echo;
use crate::os::echoes::Echoes;
use crate::settings::exit::{self, Exit};

/// ask the gateway of every other host's pods for an echo: does it answer, how fast, and to packets
/// as large as the way is known to take. Changes nothing
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "probe",
    example = "{command_name}",
    example = "{command_name} h2 h3 --json",
    example = "{command_name} --matrix",
    error_code(0, "all of them answer"),
    error_code(1, "one does not, or not to large packets; or there is no such host"),
    error_code(69, "other hosts are not known, or no agent answers (--matrix)")
)]
pub struct Probe {
    /// hosts by name; all if none is given
    #[argh(positional)]
    hosts: Vec<String>,
    /// what every host found on its way to every other one, as the agents tell each other (nothing is
    /// sent): who does not reach whom, and who is reached by few. With hosts: what these found
    #[argh(switch)]
    matrix: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// So many answers are waited for at once, and so much time lies between two echoes: 500 a second.
const AT_ONCE: usize = 256;
const PACE: Duration = Duration::from_millis(2);

/// How often an echo that is not answered is sent again.
const TRIES: u32 = 3;

/// One gateway.
struct Asked {
    host: String,
    address: IpAddr,
    small: Option<Duration>,
    /// Bytes, and whether they were answered.
    large: Option<(u32, bool)>,
    error: Option<String>,
}

/// Asks the hosts.
///
/// # Errors
/// No such host; other hosts are not known.
pub fn run(call: &mut Call<'_>, options: &Probe) -> Result<Outcome, Exit> {
    if options.matrix {
        return matrix::run(call, &options.hosts, options.json);
    }
    let told = call.told()?;
    let host = Host::inspect(&told.settings, HostList::Saved)?;
    if let Some(why) = &host.peers_unknown {
        return Err(Exit::new(exit::UNAVAILABLE, why));
    }
    let mut asked = asked(&host, &options.hosts)?;
    ask(&mut asked, &host.kernel.rtnl);
    let fine = asked.iter().all(is_fine);
    let value = json!({ "hosts": asked.iter().map(object).collect::<Vec<Value>>() });
    call.answer(options.json, fine, value, &text(&asked, call.style))
}

fn asked(found: &Host, hosts: &[String]) -> Result<Vec<Asked>, Exit> {
    let is_known = |host: &str| found.others().any(|(name, _)| name.as_str() == host);
    if let Some(host) = hosts.iter().find(|host| !is_known(host)) {
        let why = format!("no other host is called {host:?} (of {})", found.others().count());
        return Err(Exit::new(exit::FAILURE, why));
    }
    let is_meant = |name: &str| hosts.is_empty() || hosts.iter().any(|host| host == name);
    let meant = found.others().filter(|(name, _)| is_meant(name.as_str()));
    let each = meant.flat_map(|(name, peer)| {
        peer.subnets.iter().map(|subnet| Asked {
            host: name.to_string(),
            address: gateway(*subnet),
            small: None,
            large: None,
            error: None,
        })
    });
    Ok(each.collect())
}

/// Small ones to all, then large ones to those that answer.
fn ask(asked: &mut [Asked], rtnl: &Rtnl) {
    let small = asked.iter().map(|asked| (asked.address, echo::SMALLEST)).collect();
    let (times, errors) = send(small);
    for asked in asked.iter_mut() {
        asked.small = times.get(&asked.address).copied();
        asked.error = errors.get(&asked.address).cloned();
    }
    let answered = asked.iter().filter(|asked| asked.small.is_some());
    let size = |asked: &Asked| Some((asked.address, rtnl.path_mtu(asked.address).ok()??));
    let large: Vec<(IpAddr, u32)> = answered.filter_map(size).collect();
    let (times, _) = send(large.clone());
    let sizes: BTreeMap<IpAddr, u32> = large.into_iter().collect();
    for asked in asked {
        let bytes = sizes.get(&asked.address).copied();
        asked.large = bytes.map(|bytes| (bytes, times.contains_key(&asked.address)));
    }
}

/// How long each answer took, and why some could not be asked.
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
        let pause = if waiting.is_empty() { PATIENCE } else { PACE };
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

fn is_fine(asked: &Asked) -> bool {
    asked.small.is_some() && asked.large.is_none_or(|(_, answered)| answered)
}

/// What is wrong, in a few words.
fn fault(asked: &Asked) -> Option<String> {
    match (asked.small, asked.large) {
        (None, _) => Some(asked.error.clone().unwrap_or_else(|| "no answer".to_owned())),
        (Some(_), Some((bytes, false))) => {
            Some(format!("packets of {bytes} bytes are lost, smaller ones are not"))
        }
        _ => None,
    }
}

fn object(asked: &Asked) -> Value {
    let mtu = asked.large.filter(|(_, answered)| *answered).map(|(bytes, _)| bytes);
    json!({
        "host": asked.host,
        "address": asked.address,
        "reachable": asked.small.is_some(),
        "seconds": asked.small.map(|time| time.as_secs_f64()),
        "mtu": mtu,
        "fault": fault(asked),
    })
}

fn text(asked: &[Asked], style: Style) -> String {
    if asked.is_empty() {
        return "there are no other hosts".to_owned();
    }
    let mut table = Table::new(&["HOST", "GATEWAY", "ANSWERS IN", "MTU", "FAULT"]);
    for asked in asked {
        let time = asked.small.map_or_else(String::new, |time| format!("{time:.1?}"));
        let mtu = asked.large.filter(|(_, answered)| *answered);
        let mtu = mtu.map_or_else(String::new, |(bytes, _)| bytes.to_string());
        let fault = fault(asked).unwrap_or_default();
        table.row([
            Cell::new(&asked.host),
            Cell::new(asked.address.to_string()),
            Cell::new(time),
            Cell::new(mtu),
            Cell::new(fault).tone(Tone::Bad),
        ]);
    }
    let lost = asked.iter().filter(|asked| !is_fine(asked)).count();
    let summary = match lost {
        0 => style.paint(Tone::Good, &format!("all {} answer", asked.len())),
        lost => style.paint(Tone::Bad, &format!("{lost} of {} are not well", asked.len())),
    };
    format!("{}\n{summary}", table.render(style))
}
