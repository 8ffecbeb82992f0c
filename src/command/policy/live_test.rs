//! `policy test --live`: what this host decides of a connection, and what it would with the policies of files.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::explain::find;
use crate::command::objects::files;
use crate::command::policy::here::HostPolicies;
use crate::command::policy::test::{Test, addresses, destination, group_of_settings, tuples};
use crate::net::node_name::NodeName;
use crate::policy::change::Replaced;
use crate::policy::partial::{Knowledge, PartialDecision};
use crate::policy::view::{QuarantineReason, Quarantined, WithoutPolicies};
use crate::policy::{Decision, Direction, Endpoint, Reason, Rule, Transport, Tuple};
use crate::settings::exit::Exit;

/// What runtimes call the first interface of a pod.
const FIRST: &str = "eth0";

/// What this host says of one end.
enum LiveEnd<'a> {
    Judged(PartialDecision<'a>),
    Quarantined(QuarantineReason),
    WithoutPolicies(WithoutPolicies),
    /// It lies in this host's subnets, and no pod has it.
    NoSuchPod,
    /// It may be a pod of another host, of that one where it is known.
    Elsewhere(Option<&'a NodeName>),
    /// No pod: nothing judges it.
    NoPod,
}

/// Answers for each family that both ends have: denied if one end is for certain, allowed if both are.
///
/// # Errors
/// Policies are off; a file or an end that is not understood.
pub fn run(call: &mut Call<'_>, options: &Test) -> Result<Outcome, Exit> {
    if options.group.is_some() {
        return Err(group_of_settings());
    }
    let objects = files::read_policies(&options.file)?;
    let host = HostPolicies::inspect(call)?;
    let Replaced { rules, problems, .. } = host.changed((&objects, "-f"))?;
    let pods = host.view.endpoints();
    let quarantined = host.view.quarantined();
    let knowledge = host.knowledge(&rules, &host.known.members, &pods);
    let judge = LiveJudge { host: &host, knowledge, quarantined: &quarantined };

    let (to, port) = destination(&options.to)?;
    let port = port.map(|port| (options.protocol, port));
    let tuples = tuples(|what| judge.addresses(what), (&options.from, to), port)?;
    let mut judged: Vec<(Tuple, [LiveEnd<'_>; 2])> = Vec::new();
    for tuple in tuples {
        let tuple = judge.led(judge.sent(&options.from, tuple))?;
        judged.push((tuple, judge.ends(&tuple)));
    }
    let all: Vec<Option<bool>> =
        judged.iter().flat_map(|(_, ends)| ends).map(LiveEnd::allowed).collect();
    let allowed = all_allow(&all);

    let mut text = files::faults(&problems, call.style);
    for (tuple, ends) in &judged {
        text += &judge.lines(tuple, ends);
    }
    text += match allowed {
        Some(true) => "allowed",
        Some(false) => "denied",
        None => "not known here",
    };
    let json = json!({
        "allowed": allowed,
        "connections": judged.iter().map(|(tuple, ends)| object(tuple, ends)).collect::<Vec<_>>(),
        "problems": problems,
    });
    call.answer(options.json, allowed == Some(true), json, &text)
}

/// Denied if one is for certain, allowed if all are.
fn all_allow(ends: &[Option<bool>]) -> Option<bool> {
    match ends {
        _ if ends.contains(&Some(false)) => Some(false),
        _ if ends.contains(&None) => None,
        _ => Some(true),
    }
}

/// What is known here.
struct LiveJudge<'a> {
    host: &'a HostPolicies,
    knowledge: Knowledge<'a>,
    quarantined: &'a [Quarantined],
}

impl<'a> LiveJudge<'a> {
    /// Names of other hosts' pods are not known.
    fn addresses(&self, what: &str) -> Result<Vec<IpAddr>, Exit> {
        let is_further = |pod: &&Endpoint| {
            let owner = pod.addresses.first().and_then(|address| self.host.host.owner(*address));
            owner.is_some_and(|owner| owner.entry.ifname != FIRST)
        };
        let mut pods: Vec<&Endpoint> = self.knowledge.pods.iter().collect();
        pods.sort_by_key(is_further);
        let known = pods.into_iter().map(|pod| (pod.to_string(), &*pod.addresses));
        let held = self.quarantined.iter().map(|it| (it.pod.clone(), &*it.addresses));
        // Where no policies are known they have names by the runtime alone.
        let view = &self.host.view;
        let running = view.pods.iter().filter(|_| view.known.is_none()).map(|pod| {
            (pod.pod.clone().unwrap_or_else(|| pod.container_id.clone()), &*pod.addresses)
        });
        addresses(
            what,
            known.chain(held).chain(running),
            "of this host (of a pod elsewhere give the address)",
        )
    }

    /// As the pod `from` sends it, by its routes, if that is one of several interfaces.
    fn sent(&self, from: &str, tuple: Tuple) -> Tuple {
        let host = &self.host.host;
        let named = host.owner(tuple.source).filter(|_| from.parse::<IpAddr>().is_err());
        let source = named.and_then(|known| host.source(known, tuple.destination));
        Tuple { source: source.unwrap_or(tuple.source), ..tuple }
    }

    /// As the pod gets it that a port of this host leads to.
    fn led(&self, tuple: Tuple) -> Result<Tuple, Exit> {
        let Transport::Port(protocol, port) = tuple.transport else { return Ok(tuple) };
        let asked = Some((protocol.number(), port));
        let (destination, port, _) = find::lead(tuple.destination, asked, &self.host.host)?;
        let transport = port.map_or(tuple.transport, |it| Transport::Port(protocol, it.1));
        Ok(Tuple { destination, transport, ..tuple })
    }

    fn ends(&self, tuple: &Tuple) -> [LiveEnd<'a>; 2] {
        let Tuple { source, destination, .. } = *tuple;
        [
            self.end(tuple, Direction::Egress, source),
            self.end(tuple, Direction::Ingress, destination),
        ]
    }

    fn end(&self, tuple: &Tuple, way: Direction, own: IpAddr) -> LiveEnd<'a> {
        let held = self.quarantined.iter().find(|it| it.addresses.contains(&own));
        let is_known = self.knowledge.pods.iter().any(|pod| pod.addresses.contains(&own));
        let is_pod = self.host.view.pods.iter().any(|pod| pod.addresses.contains(&own));
        let without = self.host.view.without_policies().filter(|_| is_pod);
        let exempt = match (held, without) {
            (None, None) => None,
            _ => self.knowledge.exempt(tuple, way),
        };
        let is_in = |subnet: &IpNetwork| subnet.contains(own);
        match (exempt, held, without) {
            (Some(reason), ..) => {
                let decision = Decision { allowed: true, reason, audit: None };
                LiveEnd::Judged(PartialDecision::Known(decision))
            }
            (None, Some(held), _) => LiveEnd::Quarantined(held.reason),
            (None, None, Some(holds)) => LiveEnd::WithoutPolicies(holds),
            _ if is_known => LiveEnd::Judged(self.knowledge.end(tuple, way)),
            _ if self.host.own.contains(&own) => LiveEnd::NoPod,
            _ if self.host.view.subnets.iter().any(is_in) => LiveEnd::NoSuchPod,
            _ => self.elsewhere(own),
        }
    }

    /// Pods of other hosts have addresses of the pools; where those are not known, any.
    fn elsewhere(&self, address: IpAddr) -> LiveEnd<'a> {
        match self.host.pod_host(address) {
            Some(host) => LiveEnd::Elsewhere(host),
            None => LiveEnd::NoPod,
        }
    }

    fn lines(&self, tuple: &Tuple, [egress, ingress]: &[LiveEnd<'_>; 2]) -> String {
        let name = |address| self.host.pod_name(address).map(|pod| format!("{pod} "));
        let name = |address| name(address).unwrap_or_default();
        let (source, destination) = (name(tuple.source), name(tuple.destination));
        let (from, to) = (tuple.source, tuple.target());
        format!("{source}{from} -> {destination}{to}\n  egress   {egress}\n  ingress  {ingress}\n")
    }
}

impl LiveEnd<'_> {
    /// `None`: that is not known here.
    fn allowed(&self) -> Option<bool> {
        match self {
            LiveEnd::Judged(PartialDecision::Known(decision)) => Some(decision.allowed),
            LiveEnd::Judged(PartialDecision::DependsOn(_)) | LiveEnd::Elsewhere(_) => None,
            LiveEnd::Quarantined(_) | LiveEnd::NoSuchPod => Some(false),
            LiveEnd::WithoutPolicies(WithoutPolicies::AsBefore) => None,
            LiveEnd::NoPod | LiveEnd::WithoutPolicies(WithoutPolicies::NotJudged) => Some(true),
        }
    }

    fn decision(&self) -> Option<&Decision<'_>> {
        match self {
            LiveEnd::Judged(PartialDecision::Known(decision)) => Some(decision),
            _ => None,
        }
    }
}

impl fmt::Display for LiveEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiveEnd::Judged(decision) => decision.fmt(f)?,
            LiveEnd::Quarantined(reason) => {
                write!(f, "denied: the pod is in quarantine: {reason}")?
            }
            LiveEnd::WithoutPolicies(holds) => holds.fmt(f)?,
            LiveEnd::NoSuchPod => f.write_str("denied: no pod of this host has that address")?,
            LiveEnd::Elsewhere(Some(host)) => write!(f, "not known here: ask on host {host}")?,
            LiveEnd::Elsewhere(None) => {
                f.write_str("not known here: ask on the host of that pod, if it is one")?;
            }
            LiveEnd::NoPod => write!(f, "allowed: {}", Reason::NoPod)?,
        }
        match self.decision().and_then(|decision| decision.audit) {
            Some(rule) => write!(f, "; audited: {} by {rule}", rule.verdict),
            None => Ok(()),
        }
    }
}

fn object(tuple: &Tuple, ends: &[LiveEnd<'_>; 2]) -> Value {
    let end = |end: &LiveEnd<'_>| {
        let decision = end.decision();
        let rule = decision.and_then(|decision| match decision.reason {
            Reason::Rule(rule) => Some(rule),
            _ => None,
        });
        let audit = decision.and_then(|decision| decision.audit);
        json!({
            "allowed": end.allowed(),
            "reason": decision.map_or_else(|| end.to_string(), |it| it.reason.to_string()),
            "rule": rule.map(Rule::to_string),
            "audit": audit.map(|rule| format!("{} by {rule}", rule.verdict)),
        })
    };
    let both: Vec<Option<bool>> = ends.iter().map(LiveEnd::allowed).collect();
    json!({
        "source": tuple.source,
        "destination": tuple.destination,
        "allowed": all_allow(&both),
        "egress": end(&ends[0]),
        "ingress": end(&ends[1]),
    })
}
