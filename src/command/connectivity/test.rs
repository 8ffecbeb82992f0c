//! `connectivity test`: the paths of two pods, one after the other.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::connectivity::ask::{AskedHost, NotAsked, ask};
use crate::command::connectivity::paths::{
    AskedPods, PathResult, TestEnds, TestPacket, TestPath, TestSender, json_of, table,
};
use crate::command::connectivity::pod::{PORT, TestPod, greeted, remove_stale};
use crate::command::connectivity::runtime::RuntimeNetwork;
use crate::command::connectivity::signals::HeldSignals;
use crate::command::table::{Style, Tone};
use crate::inspect::{Host, HostList};
use crate::kube::api_service;
use crate::net::subnet::gateway;
use crate::netlink::rtnl::Rtnl;
use crate::os::echo::{self, round_trip};
use crate::settings::exit::Exit;

/// Wait for one answer, and how often it is asked for: the first packet to a neighbour may be lost.
const PATIENCE: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;

/// Other hosts that are tried; `probe --from-pod` has all of them, at once.
const HOSTS: usize = 16;

/// attach two pods of its own by this host's CNI configuration, have the agent of another host attach two there, and try paths of packets: pod, gateway,
/// host, host port, pods of that host, the gateways of other hosts, in both families, small packets and those of the path MTU; the last line says what
/// was not tried. All pods are detached at the end. What a policy denies is lost here, too
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "test",
    example = "{command_name}",
    example = "{command_name} --host h2",
    example = "{command_name} --to 10.244.2.7 --to 10.244.2.8",
    example = "{command_name} --outside 192.0.2.1 --service 10.96.0.1:443",
    error_code(0, "all packets arrived"),
    error_code(1, "packets are lost, or no pod can be attached"),
    error_code(
        69,
        "this host has no CNI configuration of humanz, or the host of --host gives no pods"
    )
)]
pub struct TestConnectivity {
    /// the other host, whose agent is asked through etcd (default: the next one by name whose agent runs)
    #[argh(option)]
    host: Option<String>,
    /// a pod that connectivity serve holds on another host, instead of asking one; may be repeated
    #[argh(option)]
    to: Vec<IpAddr>,
    /// a service that accepts TCP connections, ADDRESS:PORT; may be repeated (in a pod: that of the Kubernetes API)
    #[argh(option)]
    service: Vec<SocketAddr>,
    /// an address outside that answers echo requests; may be repeated
    #[argh(option)]
    outside: Vec<IpAddr>,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &TestConnectivity) -> Result<Outcome, Exit> {
    let signals = HeldSignals::hold()?;
    let loaded = call.load_to_look()?;
    let host = Host::inspect(&loaded.settings, HostList::Saved)?;
    let network = RuntimeNetwork::read(&host.settings.cni)?;
    remove_stale(&network, &host.settings)?;
    let asked = match (&options.to[..], options.host.as_deref()) {
        ([_, ..], None) => Ok(None),
        (_, chosen) => ask(&host.settings, chosen, &signals)?,
    };
    let port = free_port();
    let pods = [TestPod::add(&network, 1, port)?, TestPod::add(&network, 2, None)?];
    let ends = TestEnds { asked: pods_of(&asked), ..ends(&host, options, &pods, port) };
    let mut results = Vec::new();
    for path in ends.paths() {
        signals.verify()?;
        let result = result_of(&path, &pods);
        results.push((path, result));
    }
    let mut untried = ends.untried();
    let lost = results.iter().filter(|(_, result)| result.is_err()).count();
    if let Ok(Some(host)) = &asked
        && lost > 0
        && host.has_ended()
    {
        untried.push(format!(
            "pods of {0} to the end ({0} took them away during the test: what is lost on the way to them says nothing)",
            host.name
        ));
    }
    drop((pods, asked));
    let mut text =
        format!("{}\n{}", table(&results, call.style), verdict(lost, results.len(), call.style));
    if !untried.is_empty() {
        let last = format!("not tried: {}", untried.join("; "));
        text.push_str(&call.style.sentence(Tone::Plain, &last));
    }
    let paths: Vec<_> = results.iter().map(|(path, result)| json_of(path, result)).collect();
    call.answer(options.json, lost == 0, json!({ "paths": paths, "not_tried": untried }), &text)
}

fn verdict(lost: usize, count: usize, style: Style) -> String {
    match lost {
        0 => style.sentence(Tone::Good, &format!("all {count} paths are open")),
        lost => {
            let text = format!(
                "{lost} of {count} paths are lost; humanz-agent doctor looks for the cause"
            );
            style.sentence(Tone::Bad, &text)
        }
    }
}

fn ends(
    host: &Host,
    options: &TestConnectivity,
    pods: &[TestPod<'_>; 2],
    host_port: Option<u16>,
) -> TestEnds {
    let more_hosts = match &host.peers_unknown {
        Some(why) => Err(why.clone()),
        None => Ok(host.others().count().saturating_sub(HOSTS)),
    };
    let hosts = host.others().take(HOSTS).flat_map(|(name, peer)| {
        peer.subnets.iter().map(move |subnet| (name.to_string(), gateway(*subnet)))
    });
    TestEnds {
        pods: pods.each_ref().map(|pod| pod.addresses),
        gateways: pods[0].gateways,
        node: host.state().map(|state| state.own.addresses).unwrap_or_default(),
        hosts: hosts.collect(),
        more_hosts,
        host_port,
        port: PORT,
        others: options.to.clone(),
        asked: Ok(None),
        services: services(&options.service),
        outside: options.outside.clone(),
    }
}

fn pods_of(asked: &Result<Option<AskedHost>, NotAsked>) -> AskedPods {
    let pods = |host: &AskedHost| (host.name.to_string(), host.pods.clone());
    asked.as_ref().map(|host| host.as_ref().map(pods)).map_err(NotAsked::clone)
}

/// Those of the user; without any the one that every cluster has, where this is a container of one.
fn services(chosen: &[SocketAddr]) -> Vec<SocketAddr> {
    match chosen {
        [] => api_service().into_iter().collect(),
        chosen => chosen.to_vec(),
    }
}

/// A port of this host that is free at this moment.
fn free_port() -> Option<u16> {
    let listener = TcpListener::bind((IpAddr::from([0, 0, 0, 0]), 0)).ok()?;
    listener.local_addr().map(|address| address.port()).ok()
}

fn result_of(path: &TestPath, pods: &[TestPod<'_>; 2]) -> PathResult {
    let mut result = Err("no answer".to_owned());
    for _ in 0..TRIES {
        let sent = match path.from {
            TestSender::Host => send(path.packet),
            TestSender::Pod(index) => {
                let inside = pods[index].netns.run(|| send(path.packet));
                inside.map_err(io::Error::other).and_then(|sent| sent)
            }
        };
        result = match sent {
            Ok(Some(time)) => return Ok(time),
            Ok(None) => Err("no answer".to_owned()),
            Err(error) => Err(error.to_string()),
        };
    }
    result
}

/// Sends it from the network namespace of this thread; `None`: no answer.
fn send(packet: TestPacket) -> io::Result<Option<Duration>> {
    match packet {
        TestPacket::Small(to) => round_trip(to, None, echo::SMALLEST, PATIENCE),
        TestPacket::Large(to) => {
            let rtnl = Rtnl::open().map_err(io::Error::other)?;
            let bytes = rtnl.path_mtu(to).map_err(io::Error::other)?;
            match round_trip(to, None, bytes.unwrap_or(echo::SMALLEST), PATIENCE)? {
                None => Err(io::Error::other(format!("{} bytes are lost", bytes.unwrap_or(0)))),
                some => Ok(some),
            }
        }
        TestPacket::Greeting(to) => greeted(to, PATIENCE).map(Some),
        TestPacket::Connection(to) => {
            let begun = Instant::now();
            TcpStream::connect_timeout(&to, PATIENCE).map(|_| Some(begun.elapsed()))
        }
    }
}
