//! What policies say of a path, as this host knows it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context;

use crate::checks::explain::{EndPlace, PathEnd, PathPolicies, PolicyDecision, PolicyEnd};
use crate::checks::pod_keys::pod_keys;
use crate::command::policy::found::{self, PacketCounts};
use crate::inspect::{Host, listeners};
use crate::net::gather::Gather;
use crate::net::{Family, Protocol};
use crate::netlink::connections::Connection;
use crate::nft::{Data, Nft, Value, Verdict};
use crate::plan::host_ports;
use crate::policy::compile::{MarkBits, POLICY_TABLE, address, counter};
use crate::policy::partial::{Knowledge, PartialDecision};
use crate::policy::view::View;
use crate::policy::{
    Direction, Endpoint, Origin, PolicySnapshot, Reason, Rule, Scoped, Tier, Transport, Tuple,
};
use crate::settings::exit::Exit;

/// The path that is judged.
pub struct Judged<'a> {
    pub from: &'a PathEnd,
    pub to: &'a PathEnd,
    /// Protocol and port.
    pub transport: Option<(u8, u16)>,
    /// Those that the kernel follows between the two.
    pub connections: &'a [Connection],
}

struct Judge<'a> {
    path: &'a Judged<'a>,
    host: &'a Host,
    view: &'a View,
    pods: Vec<Endpoint>,
    counters: PacketCounts,
    tuple: Tuple,
    own: BTreeSet<IpAddr>,
}

/// `None` if policies are off.
///
/// # Errors
/// The kernel's, or what keeps policies from being known.
pub fn judge(path: &Judged<'_>, host: &Host) -> Result<Option<PathPolicies>, Exit> {
    let Some(settings) = &host.settings.policy else { return Ok(None) };
    let (view, note) = found::view(&host.settings)?;
    let nft = &host.kernel.nft;
    let in_force = nft.tables().context("list tables")?.iter().any(|name| name == POLICY_TABLE);
    let judge = Judge {
        path,
        host,
        view: &view,
        pods: view.endpoints(),
        counters: found::counters(true)?.unwrap_or_default(),
        tuple: tuple(path),
        own: host.addresses()?.iter().map(|found| found.address.ip()).gather(),
    };
    let end = |end, direction| judge.end(end, direction, in_force);
    let of_sources = view.known.iter().flat_map(|known| known.refused());
    let ingress = match judge.behind_service() {
        Some(why) => PolicyEnd::Behind(why),
        None => end(path.to, Direction::Ingress)?,
    };
    Ok(Some(PathPolicies {
        egress: end(path.from, Direction::Egress)?,
        ingress,
        note,
        may_be_service: judge.may_be_service(),
        service: path.transport.map(|_| service(&judge.tuple)),
        in_force,
        live: live(path, nft, in_force, settings.mark)?,
        pod_words: pod_keys(&view).into_iter().chain(view.refused()).chain(of_sources).collect(),
    }))
}

/// The connection: behind all translation, where one is followed that shows where that leads.
fn tuple(path: &Judged<'_>) -> Tuple {
    let (source, to) = (path.from.address, path.to.address);
    let Some((protocol, port)) = path.transport else {
        let kind = if source.is_ipv4() { 8 } else { 128 };
        return Tuple { source, destination: to, transport: Transport::Icmp { kind, code: 0 } };
    };
    let (destination, port) = match followed(path) {
        Some(it) => (it.answers, it.answering_port.unwrap_or(port)),
        None => (to, port),
    };
    let transport = match Protocol::of_number(protocol) {
        Some(protocol) => Transport::Port(protocol, port),
        None => Transport::Other(protocol),
    };
    Tuple { source, destination, transport }
}

fn followed<'a>(path: &Judged<'a>) -> Option<&'a Connection> {
    let (protocol, port) = path.transport?;
    path.connections.iter().find(|it| (it.protocol, it.port) == (protocol, Some(port)))
}

fn service(tuple: &Tuple) -> String {
    match tuple.transport {
        Transport::Port(protocol, port) => format!("{protocol}/{port}"),
        _ => format!("protocol {}", tuple.protocol()),
    }
}

impl Judge<'_> {
    /// The other end is nothing that is known, no connection shows what answers there, what is judged counts, and
    /// something here may translate the address.
    fn may_be_service(&self) -> bool {
        let from = self.path.from.address;
        let Some(pod) = self.pods.iter().find(|pod| pod.addresses.contains(&from)) else {
            return false;
        };
        let judges = |rule: &Rule| rule.subject.matches_pod(pod);
        followed(self.path).is_none() && self.is_judged_service(Direction::Egress, &judges)
    }

    /// Why it is not known which pod is judged at the other end: a service's address never is. Of a service with
    /// several pods another connection may reach another one than that which is followed.
    fn behind_service(&self) -> Option<String> {
        let leads = followed(self.path).map(|it| it.answers);
        if leads == Some(self.path.to.address)
            || !self.is_judged_service(Direction::Ingress, &|_| true)
        {
            return None;
        }
        Some(match leads {
            Some(pod) => format!("a connection leads to {pod}, and policies judge what answers there"),
            None => {
                "this is no pod's address: if it is a service's, policies judge the pod behind it, which is not known here"
                    .to_owned()
            }
        })
    }

    /// The other end may be a service, and rules of this direction that `judge` it are in force.
    fn is_judged_service(&self, direction: Direction, judge: &dyn Fn(&Rule) -> bool) -> bool {
        let is_asked = self.path.transport.is_some();
        let mut rules = self.view.known.iter().flat_map(|known| known.rules.enforced());
        let is_judged = rules.any(|rule| rule.direction == direction && judge(rule));
        is_asked && is_judged && self.may_be_translated() && self.may_translate()
    }

    /// The other end is nothing that is known, or a port of this host where nobody listens: it may be a node port.
    fn may_be_translated(&self) -> bool {
        let is_taken = |(protocol, port)| {
            let to = SocketAddr::new(self.path.to.address, port);
            matches!(listeners::is_taken(protocol, to), Ok(Some(true)))
        };
        match self.path.to.place {
            EndPlace::Outside => true,
            EndPlace::ThisHost => !self.path.transport.is_some_and(is_taken),
            _ => false,
        }
    }

    /// Another program may translate addresses of services here, or that is not known.
    fn may_translate(&self) -> bool {
        let chains = &self.host.kernel.forward;
        chains.may_translate(Family::of(self.path.to.address), host_ports::TABLE).unwrap_or(true)
    }

    fn end(&self, end: &PathEnd, direction: Direction, in_force: bool) -> Result<PolicyEnd, Exit> {
        let host = match &end.place {
            EndPlace::Pod(pod) if pod.network == self.host.settings.cni.name => None,
            EndPlace::RemoteHost(remote) if remote.subnet.is_some() => Some(remote.host.clone()),
            _ => return Ok(PolicyEnd::NoPod),
        };
        if direction == Direction::Ingress && matches!(self.path.from.place, EndPlace::ThisHost) {
            let text = format!("allowed: {}", Reason::OwnNode);
            return Ok(PolicyEnd::Decided(PolicyDecision {
                allowed: true,
                text,
                ..PolicyDecision::default()
            }));
        }
        if host.is_none() {
            let quarantined = self.view.quarantined();
            let found = quarantined.iter().find(|it| it.addresses.contains(&end.address));
            if let Some(found) = found {
                return Ok(PolicyEnd::Quarantine(found.reason.to_string()));
            }
        }
        let members = self.view.known.as_deref();
        let Some(known) = members else {
            return Ok(match (host, self.view.without_policies()) {
                (None, Some(holds)) => PolicyEnd::NoPolicies(holds.to_string()),
                (host, _) => PolicyEnd::Unknown(
                    "no policies could be read here yet".to_owned(),
                    host.unwrap_or_else(|| self.view.host.to_string()),
                ),
            });
        };
        self.decided(known, end, (direction, in_force), host)
    }

    /// What `known` decides. `host`: the one that judges, if it is another.
    fn decided(
        &self,
        known: &PolicySnapshot,
        end: &PathEnd,
        (direction, in_force): (Direction, bool),
        host: Option<String>,
    ) -> Result<PolicyEnd, Exit> {
        let knowledge = Knowledge {
            rules: &known.rules,
            pods: &self.pods,
            subnets: &self.view.subnets,
            members: &known.members,
            networks: &known.networks,
            own: &self.own,
        };
        let decision = match (knowledge.end(&self.tuple, direction), host) {
            (PartialDecision::Known(decision), host) => {
                PolicyDecision { host, ..self.text(&decision) }
            }
            (depends @ PartialDecision::DependsOn(_), host) => {
                let host = host.unwrap_or_else(|| self.view.host.to_string());
                return Ok(PolicyEnd::Unknown(depends.to_string(), host));
            }
        };
        match decision.host.is_none() && in_force {
            true => self.as_in_table(end.address, direction, decision),
            false => Ok(PolicyEnd::Decided(decision)),
        }
    }

    fn text(&self, decision: &crate::policy::Decision<'_>) -> PolicyDecision {
        let rule = match decision.reason {
            Reason::Rule(rule) => Some(rule),
            _ => None,
        };
        let counted = rule.map(counter);
        let counted = counted.and_then(|name| self.counters.get_key_value(&name));
        PolicyDecision {
            allowed: decision.allowed,
            text: decision.to_string(),
            policy: rule.map(|rule| rule.origin.to_string()),
            apart: rule.filter(|rule| rule.tier == Tier::Tenant).and_then(|rule| {
                let Origin { namespace, name, .. } = &rule.origin;
                Some(Scoped { tenant: namespace.clone()?, name: name.clone() })
            }),
            counter: counted.map(|(name, packets)| (name.clone(), *packets)),
            audit: decision.audit.map(|rule| format!("{} by {rule}", rule.verdict)),
            host: None,
        }
    }

    /// What the kernel has of a pod may be older than what is known: a pod that started while the agent
    /// was away is in quarantine, or open.
    fn as_in_table(
        &self,
        end: IpAddr,
        direction: Direction,
        decision: PolicyDecision,
    ) -> Result<PolicyEnd, Exit> {
        let wanted = match direction {
            Direction::Ingress => "in",
            Direction::Egress => "out",
        };
        let places = address::places(end);
        let place = places.iter().find(|(set, _)| set.name.starts_with(wanted));
        let Some((set, _)) = place else { return Ok(PolicyEnd::Decided(decision)) };
        let found = self.host.kernel.nft.element(POLICY_TABLE, set, &[Value::address(end)]);
        let open = Data::Verdict(Verdict::Return.into());
        Ok(match found.context("look up a pod in the table of policies")? {
            None => PolicyEnd::Quarantine("the table does not have its address yet".to_owned()),
            Some(found) if found.data == Some(open) && !decision.allowed => {
                let text =
                    "allowed: its policies are not in force until the agent is back".to_owned();
                PolicyEnd::Decided(PolicyDecision {
                    allowed: true,
                    text,
                    counter: None,
                    ..decision
                })
            }
            Some(_) => PolicyEnd::Decided(decision),
        })
    }
}

/// Followed connections that the present rules have judged, and others.
fn live(path: &Judged<'_>, nft: &Nft, in_force: bool, bits: MarkBits) -> Result<[usize; 2], Exit> {
    if !in_force || path.connections.is_empty() {
        return Ok([0, 0]);
    }
    let epoch = nft.elements(POLICY_TABLE, &address::epoch()).context("read the epoch")?;
    let is_judged = |connection: &&Connection| {
        let mark = [Value::Bits(connection.mark & bits.bits())];
        epoch.iter().any(|element| *element.key == mark)
    };
    let of_port = |connection: &&Connection| {
        path.transport.is_none_or(|(protocol, port)| {
            (connection.protocol, connection.port) == (protocol, Some(port))
        })
    };
    let live = path.connections.iter().filter(of_port);
    let (judged, waiting): (Vec<&Connection>, Vec<&Connection>) = live.partition(is_judged);
    Ok([judged.len(), waiting.len()])
}

/// Protocol and port in `5432`, `udp/53` or `53/udp`.
///
/// # Errors
/// There are none.
pub fn port(text: &str) -> Result<(u8, u16), String> {
    let (port, protocol) = match text.split_once('/') {
        Some((a, b)) if a.parse::<u16>().is_err() => (b, a),
        Some((port, protocol)) => (port, protocol),
        None => (text, "tcp"),
    };
    let wrong = || format!("{text:?} is no port: 5432, udp/53");
    let protocol: Protocol = protocol.parse().map_err(|_| wrong())?;
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    Ok((protocol.number(), port))
}
