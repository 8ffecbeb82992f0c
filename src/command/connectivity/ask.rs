//! Asks the agent of another host, through etcd, for two pods, which it holds for as long as they are needed here.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;

use crate::command::connectivity::paths::BY_HAND;
use crate::command::connectivity::signals::HeldSignals;
use crate::command::nodes::node::{self, NodeState, names, unknown};
use crate::etcd::{AskedTest, REQUEST_LOOK, ask_for_test_pods};
use crate::inspect::cluster::{self, ClusterView};
use crate::lease::Peer;
use crate::lease::records::{NodeName, TestPodsState};
use crate::net::{Family, PerFamily};
use crate::os::event_loop::EventLoop;
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source};

/// How often a signal is looked for while the other host attaches its pods.
const LOOK: Duration = Duration::from_millis(100);

/// The pods of another host, until it is dropped.
pub struct AskedHost {
    pub name: NodeName,
    pub pods: Vec<PerFamily<IpAddr>>,
    request: Option<EventLoop>,
    reports: Receiver<AskedTest>,
}

impl AskedHost {
    /// Its pods were taken away before this host had done with them. Waits until that would be known.
    pub fn has_ended(&self) -> bool {
        self.reports.recv_timeout(REQUEST_LOOK * 2) == Ok(AskedTest::Ended)
    }
}

/// Why there are none, in words that name the host.
pub type NotAsked = String;

impl Drop for AskedHost {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.stop();
        }
    }
}

/// Why there are no pods of another host.
enum Unasked {
    /// The test can do without.
    Without(NotAsked),
    Stop(Exit),
}

impl From<Exit> for Unasked {
    fn from(exit: Exit) -> Unasked {
        Unasked::Stop(exit)
    }
}

impl From<NotAsked> for Unasked {
    fn from(why: NotAsked) -> Unasked {
        Unasked::Without(why)
    }
}

/// Asks `chosen`, or the next host with a living agent; `None`: there is no other host.
///
/// # Errors
/// A signal came, there is no such host, or `chosen` gives no pods.
pub fn ask(
    settings: &Settings,
    chosen: Option<&str>,
    signals: &HeldSignals,
) -> Result<Result<Option<AskedHost>, NotAsked>, Exit> {
    match (pods_of_other(settings, chosen, signals), chosen) {
        (Ok(host), _) => Ok(Ok(host)),
        (Err(Unasked::Stop(exit)), _) => Err(exit),
        (Err(Unasked::Without(why)), None) => Ok(Err(why)),
        (Err(Unasked::Without(why)), Some(_)) => {
            Err(Exit::new(exit::UNAVAILABLE, format!("{why}; {BY_HAND}")))
        }
    }
}

fn pods_of_other(
    settings: &Settings,
    chosen: Option<&str>,
    signals: &HeldSignals,
) -> Result<Option<AskedHost>, Unasked> {
    let Some((cluster, name)) = find(settings, chosen)? else { return Ok(None) };
    let (server, roots) = cluster::etcd(settings)?;
    let (report, reports) = channel();
    let hosts = (cluster.own.clone(), name.clone());
    // A receiver that has gone waits for no report.
    let report = move |asked| drop(report.send(asked));
    let request = ask_for_test_pods(server.clone(), roots.clone(), hosts, report);
    let request = request.context("start a thread").map_err(Exit::from)?;
    let mut host = AskedHost { name, pods: Vec::new(), request: Some(request), reports };
    let pods = pods_of(&host.name, wait(&host.reports, signals)?)?;
    let peers = cluster.others(&mut settings.clone());
    let peer = peers.by_name.get(&host.name);
    if !pods.iter().flatten().all(|address| is_of(peer, *address)) {
        let why = format!("{} answers with addresses that are not in its subnets", host.name);
        return Err(Unasked::Without(why));
    }
    host.pods = pods.iter().map(|pod| by_family(pod)).collect();
    Ok(Some(host))
}

/// The host to ask; `None`: there is no other one.
fn find(
    settings: &Settings,
    chosen: Option<&str>,
) -> Result<Option<(ClusterView, NodeName)>, Unasked> {
    match (&settings.source, chosen) {
        (Source::Static(_), None) => return Ok(None),
        (Source::Etcd { .. }, None) if settings.is_etcd_unknown() => return Ok(None),
        (Source::Kubernetes(_), None) => {
            return Err(Unasked::Without("agents are asked through etcd only".to_owned()));
        }
        _ => drop(cluster::etcd(settings)?),
    }
    let cluster = cluster::read(settings).map_err(|exit| exit.why)?;
    if let Some(stale) = &cluster.stale {
        return Err(Unasked::Without(format!("{} does not answer: {}", stale.asked, stale.why)));
    }
    let name = match chosen {
        Some(text) => named(&cluster, text)?,
        None => match next(&cluster) {
            Some(name) => name,
            None if names(&cluster.snapshot).iter().any(|host| **host != cluster.own) => {
                return Err(Unasked::Without("no agent of another host runs".to_owned()));
            }
            None => return Ok(None),
        },
    };
    Ok(Some((cluster, name)))
}

/// The living host that follows this one by name, so that not all ask the first one.
fn next(cluster: &ClusterView) -> Option<NodeName> {
    let all = names(&cluster.snapshot);
    let alive: Vec<_> = all
        .into_iter()
        .filter(|host| **host != cluster.own)
        .filter(|host| NodeState::of(cluster, host) == NodeState::Alive)
        .collect();
    let after = alive.iter().find(|host| ***host > cluster.own);
    after.or(alive.first()).map(|host| (*host).clone())
}

fn named(cluster: &ClusterView, text: &str) -> Result<NodeName, Exit> {
    let name = node::name(text)?;
    if name == cluster.own {
        return Err(Exit::new(exit::SETTINGS, format!("{name} is this host: choose another one")));
    }
    match names(&cluster.snapshot).contains(&name) {
        true => Ok(name),
        false => Err(unknown(&cluster.snapshot, &name)),
    }
}

fn wait(reports: &Receiver<AskedTest>, signals: &HeldSignals) -> Result<AskedTest, Exit> {
    loop {
        signals.verify()?;
        match reports.recv_timeout(LOOK) {
            Ok(asked) => return Ok(asked),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(AskedTest::Failed("the request ended".to_owned()));
            }
        }
    }
}

fn pods_of(host: &NodeName, asked: AskedTest) -> Result<Vec<Vec<IpAddr>>, NotAsked> {
    Err(match asked {
        AskedTest::Answered(TestPodsState::Pods(pods)) => return Ok(pods),
        AskedTest::Answered(TestPodsState::Busy(with)) => {
            format!("{host} refuses: it holds pods for a test of {with}; try again")
        }
        AskedTest::Answered(TestPodsState::Off) => {
            format!("{host} refuses: PROBE_INTERVAL=0 there")
        }
        AskedTest::Answered(TestPodsState::Failed) => {
            format!("{host} cannot attach pods; the log of its agent has the reason")
        }
        AskedTest::Answered(TestPodsState::Preparing) | AskedTest::NoPods => {
            format!("{host} has read the request, and does not finish its pods")
        }
        AskedTest::Unclear(why) => format!("the answer of {host} is none: {why}"),
        AskedTest::NoAnswer => format!(
            "{host} does not answer: an earlier version, an earlier role (humanz-agent nodes roles --apply), or its agent does not run"
        ),
        AskedTest::Already => {
            format!("a test of this host with {host} runs, or was killed within the last 10 s")
        }
        AskedTest::Failed(why) => format!("ask {host}: {why}"),
        AskedTest::Ended => format!("the request to {host} was deleted"),
    })
}

fn is_of(peer: Option<&Peer>, address: IpAddr) -> bool {
    peer.is_some_and(|peer| peer.subnets.iter().any(|subnet| subnet.contains(address)))
}

fn by_family(addresses: &[IpAddr]) -> PerFamily<IpAddr> {
    let mut pod = PerFamily::default();
    addresses.iter().for_each(|address| pod.set(Family::of(*address), Some(*address)));
    pod
}
