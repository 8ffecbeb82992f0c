//! `pods --all`: every agent answers a request in etcd.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::command::ipam::list::{known_plans, named};
use crate::command::nodes::node::{NodeState, names};
use crate::command::pods::judged::{HostRanges, JudgedPods, judge};
use crate::command::table::{Cell, Style, Table, Tone};
use crate::etcd::{self, FoundPods};
use crate::inspect::cluster::{self, ClusterView};
use crate::inspect::interface_counters::{counters, uptime};
use crate::inspect::pods::attachments;
use crate::lease::Peers;
use crate::lease::blocks::OwnedBlocks;
use crate::lease::records::{HostPods, NodeName};
use crate::net::gather::Gather;
use crate::policy::network_plan::NetworkPlans;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// How long agents may take: longer than they wait after an answer, and than a watch rests while hundreds of hosts
/// join; and more in a large network, where they spread their answers.
const WITHIN: Duration = Duration::from_secs(6);
const EACH_HOST: Duration = Duration::from_millis(1);

/// The hosts, by name.
pub struct AllPods {
    pub hosts: Vec<HostAnswer>,
    pub own: NodeName,
    /// What is missing altogether.
    pub remarks: Vec<String>,
    /// The networks of tenants that this host knows.
    pub plans: Option<NetworkPlans>,
}

pub struct HostAnswer {
    pub host: NodeName,
    /// Its pods, or why they are not known.
    pub answer: Result<JudgedPods, String>,
}

/// Asks etcd and, through it, the agents. The pods of this host are read from its stores.
///
/// # Errors
/// etcd does not answer, or this host has none.
pub fn read(settings: &mut Settings) -> Result<AllPods, Exit> {
    let cluster = cluster::read(settings)?;
    if let Some(stale) = &cluster.stale {
        return Err(Exit::new(exit::UNAVAILABLE, format!("etcd does not answer: {}", stale.why)));
    }
    let peers = cluster.others(settings);
    let all = names(&cluster.snapshot).into_iter().filter(|host| **host != cluster.own);
    let states: Vec<_> = all.map(|host| (host, NodeState::of(&cluster, host))).collect();
    let alive = states.iter().filter(|(_, state)| *state == NodeState::Alive);
    let expected: BTreeSet<NodeName> = alive.map(|(host, _)| (*host).clone()).gather();
    let (server, roots) = cluster::etcd(settings)?;
    let unreachable = |why| Exit::new(exit::UNAVAILABLE, format!("ask other hosts: {why}"));
    let within = WITHIN + EACH_HOST * u32::try_from(expected.len()).unwrap_or(u32::MAX);
    let mut found = match expected.is_empty() {
        true => FoundPods::default(),
        false => etcd::pods(server, roots, &cluster.own, &expected, within).map_err(unreachable)?,
    };
    let (blocks, mut remarks) = owned_blocks(settings)?;
    if found.cut {
        remarks.push("there are more answers than are read".to_owned());
    }
    let pools: Vec<IpNetwork> = settings.pools.iter().map(|pool| pool.network()).collect();
    let other = |(host, state): &(&NodeName, NodeState)| {
        let answer = found.by_host.remove(*host);
        let answer = judged(host, *state, answer, &peers, &blocks, &pools)?;
        Some(HostAnswer { host: (*host).clone(), answer })
    };
    let mut hosts: Vec<HostAnswer> = states.iter().filter_map(other).collect();
    hosts.push(own(settings, &cluster, &mut remarks));
    let (plans, fault) = known_plans(settings);
    remarks.extend(fault.map(|fault| fault.to_string()));
    hosts.sort_unstable_by(|a, b| a.host.cmp(&b.host));
    Ok(AllPods { hosts, own: cluster.own, remarks, plans })
}

/// Blocks of tenants' networks, wherever those are.
fn owned_blocks(settings: &Settings) -> Result<(OwnedBlocks, Vec<String>), Exit> {
    let (server, roots) = cluster::etcd(settings)?;
    Ok(match etcd::blocks(server, roots) {
        Ok((found, _)) => (found.owned(&everywhere()), Vec::new()),
        Err(why) => (
            OwnedBlocks::default(),
            vec![format!("blocks of tenants' networks are unknown: {why}")],
        ),
    })
}

/// Every address.
fn everywhere() -> [IpNetwork; 2] {
    let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    all.map(|address: IpAddr| IpNetwork::new(address, 0).expect("a prefix length of 0"))
}

/// What another host answered; `None`: it is no host yet.
fn judged(
    host: &NodeName,
    state: NodeState,
    answer: Option<Result<HostPods, String>>,
    peers: &Peers,
    blocks: &OwnedBlocks,
    pools: &[IpNetwork],
) -> Option<Result<JudgedPods, String>> {
    let peer = peers.by_name.get(host);
    let subnets = peer.map(|peer| peer.subnets.iter().copied().collect()).unwrap_or_default();
    let ranges = HostRanges { subnets, blocks: blocks.of(host), pools };
    Some(match (answer, state) {
        (Some(Ok(answer)), _) => Ok(judge(answer, &ranges)),
        (Some(Err(why)), _) => Err(format!("its answer is none: {why}")),
        (None, NodeState::Reserved) => return None,
        (None, NodeState::Python) => Err("it runs the Python agent, which does not say".to_owned()),
        (None, NodeState::Silent) => Err("its agent does not run".to_owned()),
        (None, NodeState::Alive | NodeState::Unknown) => Err(
            "no answer: an earlier version, or an earlier role (humanz-agent nodes roles --apply)"
                .to_owned(),
        ),
    })
}

/// This host has its pods whether its agent runs or not.
fn own(settings: &Settings, cluster: &ClusterView, remarks: &mut Vec<String>) -> HostAnswer {
    let (found, unread) = attachments(settings);
    remarks.extend(unread.iter().map(ToString::to_string));
    let everywhere = everywhere();
    let (counters, at) = counters().map_or_else(|_| Default::default(), |it| (it, uptime()));
    let pods = found.iter().filter_map(|pod| pod.reported(&everywhere, &counters));
    let mut pods: Vec<_> = pods.collect();
    pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    let counted_at = at.and_then(|at| u64::try_from(at.as_millis()).ok());
    let answer = JudgedPods { pods, more: 0, foreign: Vec::new(), foreign_count: 0, counted_at };
    HostAnswer { host: cluster.own.clone(), answer: Ok(answer) }
}

impl AllPods {
    /// Every host answered, and what is believed.
    pub fn is_complete(&self) -> bool {
        self.remarks.is_empty() && self.hosts.iter().all(|host| host.remark().is_none())
    }

    pub fn value(&self) -> Value {
        let host = |it: &HostAnswer| match &it.answer {
            Ok(answer) => json!({
                "host": it.host, "answered": true, "why": null, "pods": answer.pods, "more": answer.more,
                "foreign_addresses": answer.foreign_count,
            }),
            Err(why) => json!({ "host": it.host, "answered": false, "why": why, "pods": [] }),
        };
        json!({ "hosts": self.hosts.iter().map(host).collect::<Vec<_>>(), "remarks": self.remarks })
    }

    pub fn text(&self, style: Style) -> String {
        let mut table = Table::new(&["HOST", "POD", "ADDRESSES", "NETWORK"]);
        let mut count = 0;
        for HostAnswer { host, answer } in &self.hosts {
            let own = if *host == self.own { "*" } else { "" };
            let pods = || answer.iter().flat_map(|answer| &answer.pods);
            // Each interface is one of them.
            count += pods().map(|pod| &pod.pod).gather::<BTreeSet<_>>().len();
            for pod in pods() {
                let addresses: Vec<String> =
                    pod.addresses.iter().map(ToString::to_string).collect();
                table.row([
                    Cell::new(format!("{host}{own}")),
                    Cell::new(&pod.pod),
                    Cell::new(addresses.join(",")),
                    Cell::new(named(self.plans.as_ref(), &pod.network, &pod.addresses)),
                ]);
            }
        }
        let mut text = if table.is_empty() { String::new() } else { table.render(style) + "\n" };
        let remarks = self.remarks.iter().cloned();
        for remark in remarks.chain(self.hosts.iter().filter_map(HostAnswer::remark)) {
            text += &style.remark(Tone::Bad, &remark);
        }
        let answered = self.hosts.iter().filter(|host| host.answer.is_ok()).count();
        let tone = if self.is_complete() { Tone::Good } else { Tone::Bad };
        let last = format!("{count} pods on {answered} of {} hosts", self.hosts.len());
        text + &style.sentence(tone, &last)
    }
}

impl HostAnswer {
    /// What is missing, or not believed.
    pub fn remark(&self) -> Option<String> {
        let host = &self.host;
        let answer = match &self.answer {
            Ok(answer) => answer,
            Err(why) => return Some(format!("{host}: {why}")),
        };
        let foreign: Vec<String> = answer.foreign.iter().map(ToString::to_string).collect();
        match (answer.foreign_count, answer.more) {
            (0, 0) => None,
            (0, more) => {
                Some(format!("{host}: {more} more pods, which humanz-agent pods shows there"))
            }
            (count, _) => Some(format!(
                "{host}: {count} addresses that are not in its subnets are left out: {}{}",
                foreign.join(", "),
                if count > foreign.len() { ", …" } else { "" }
            )),
        }
    }
}
