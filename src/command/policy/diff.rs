//! `policy diff`: which connections between pods change verdict.

use std::collections::{BTreeMap, BTreeSet};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::files;
use crate::command::policy::live::{Affected, Live};
use crate::net::gather::Gather;
use crate::net::{Family, Protocol};
use crate::policy::read::documents::{self, Documents};
use crate::policy::{
    Endpoint, Endpoints, Judgement, PolicyPeer, Reason, Rules, Selector, Service, Transport, Tuple,
    evaluate,
};
use crate::settings::exit::{self, Exit};

/// list the pairs of pods between which a change of policies allows or denies something; pods of one
/// namespace that no policy tells apart are shown as one. Tries every port that a rule has, and one that
/// none has
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "diff")]
pub struct Diff {
    /// a file with the objects of the cluster, again for more; -: standard input
    #[argh(option, short = 'f')]
    file: Vec<String>,
    /// a file with changed objects: one of the same kind and name is replaced, another added
    #[argh(option)]
    new: Vec<String>,
    /// name the connections that run on this host and would be cut, by what its agent and the kernel know
    #[argh(switch)]
    live: bool,
    /// let pods choose their group where their namespace has no rule
    #[argh(switch)]
    free_groups: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Connections that are judged at most.
const LIMIT: usize = 4_000_000;

/// A connection whose verdict changes.
struct ChangedConnection {
    source: String,
    destination: String,
    service: String,
    allowed: bool,
    /// The rule that denies, before or after.
    rule: String,
}

/// Answers.
///
/// # Errors
/// A file that is not understood, or more pods and ports than can be tried.
pub fn run(call: &mut Call<'_>, options: &Diff) -> Result<Outcome, Exit> {
    if options.new.is_empty() {
        let why = "nothing to compare with: --new FILE has the changed objects, -f FILE those of the cluster";
        return Err(Exit::new(exit::SETTINGS, why));
    }
    let old = files::read(&options.file)?;
    let changed = files::read(&options.new)?;
    let new = replaced(old.clone(), changed.clone());
    let before = documents::read(&old, options.free_groups).isolated();
    let after = documents::read(&new, options.free_groups).isolated();
    let has_pods = !after.endpoints.pods.is_empty();
    if !has_pods && !options.live {
        let why = "no pods to compare for: -f FILE with the pods of the cluster (kubectl get pods -A -o json), or --live \
                   for the connections of this host";
        return Err(Exit::new(exit::SETTINGS, why));
    }
    let changes = changes(&before, &after)?;
    let affected = match options.live {
        true => Some(Live::look(call)?.affected(&changed, &before, &after)?),
        false => None,
    };
    let mut text = files::faults(&after.problems);
    for change in &changes {
        let ChangedConnection { source, destination, service, rule, .. } = change;
        let now = if change.allowed { "+ allowed, was denied" } else { "- denied, was allowed" };
        text += &format!("{now}: {source} -> {destination} {service}: {rule}\n");
    }
    if changes.is_empty() && has_pods {
        text += "no connection between these pods changes\n";
    }
    text.extend(affected.iter().map(Affected::text));
    let object = |change: &ChangedConnection| {
        json!({"source": change.source, "destination": change.destination,
            "service": change.service, "allowed": change.allowed, "rule": change.rule})
    };
    let mut json = json!({
        "changes": changes.iter().map(object).collect::<Vec<_>>(),
        "problems": after.problems,
    });
    if let Some(affected) = &affected {
        json["live"] = affected.json();
    }
    let fine = changes.is_empty() && affected.is_none_or(|affected| affected.cuts_nothing());
    call.answer(options.json, fine, json, &text)
}

/// `objects` with those of `new` in place of the ones with their kind and name.
fn replaced(objects: Vec<Value>, new: Vec<Value>) -> Vec<Value> {
    let key = |object: &Value| {
        let metadata = &object["metadata"];
        let names = ["namespace", "tenant", "name"].map(|name| metadata[name].to_string());
        (object["kind"].to_string(), names)
    };
    let changed: BTreeSet<_> = new.iter().map(key).gather();
    let kept = objects.into_iter().filter(|object| !changed.contains(&key(object)));
    kept.chain(new).collect()
}

fn changes(before: &Documents, after: &Documents) -> Result<Vec<ChangedConnection>, Exit> {
    let alike = alike(&after.endpoints, [&before.rules, &after.rules]);
    let endpoints = Endpoints {
        pods: alike.iter().map(|(pod, _)| (*pod).clone()).collect(),
        nodes: after.endpoints.nodes.clone(),
    };
    let transports = transports(&before.rules, &after.rules, &endpoints);
    if alike.len() * alike.len() * transports.len() > LIMIT {
        let why = format!("{} kinds of pods, {} ports", alike.len(), transports.len());
        return Err(Exit::new(exit::SETTINGS, format!("{why}: too many to try; take fewer pods")));
    }
    let mut changes = Vec::new();
    for (source, from) in &alike {
        for (destination, to) in &alike {
            for (service, transport) in &transports {
                let Some(tuple) = tuple(source, destination, *transport) else { continue };
                let old = evaluate(&before.rules, &endpoints, &tuple);
                let new = evaluate(&after.rules, &endpoints, &tuple);
                if old.allowed() == new.allowed() {
                    continue;
                }
                let denies = if new.allowed() { &old } else { &new };
                changes.push(ChangedConnection {
                    source: from.clone(),
                    destination: to.clone(),
                    service: service.clone(),
                    allowed: new.allowed(),
                    rule: denied_by(denies),
                });
            }
        }
    }
    Ok(changes)
}

/// One pod of each kind, with the name of all of its kind. Pods of one namespace are of one kind if no
/// selector, network or named port of `rules` tells them apart.
fn alike<'a>(endpoints: &'a Endpoints, rules: [&Rules; 2]) -> Vec<(&'a Endpoint, String)> {
    let rules = || rules.into_iter().flat_map(|rules| rules.iter());
    let subjects: BTreeSet<&Selector> = rules().map(|rule| &rule.subject).gather();
    let peers: BTreeSet<&PolicyPeer> =
        rules().flat_map(|rule| rule.peers.iter().flatten()).gather();
    let mut kinds: BTreeMap<_, Vec<&Endpoint>> = BTreeMap::new();
    for pod in &endpoints.pods {
        let is_peer = |peer: &&PolicyPeer| match peer {
            PolicyPeer::Selected(selector) => selector.matches_pod(pod),
            PolicyPeer::Network { .. } => {
                pod.addresses.iter().any(|address| peer.contains(*address))
            }
        };
        let subject = subjects.iter().map(|selector| selector.matches_pod(pod));
        let kind: Vec<bool> = subject.chain(peers.iter().map(is_peer)).collect();
        kinds.entry((pod.namespace.name(), &pod.ports, kind)).or_default().push(pod);
    }
    let named = |pods: Vec<&'a Endpoint>| match pods.as_slice() {
        [] => None,
        [pod] => Some((*pod, pod.to_string())),
        [pod, rest @ ..] => Some((*pod, format!("{pod} (and {} like it)", rest.len()))),
    };
    kinds.into_values().filter_map(named).collect()
}

/// What to try: the ends of each range, named ports of the pods, and what no rule has.
fn transports(before: &Rules, after: &Rules, endpoints: &Endpoints) -> Vec<(String, Transport)> {
    let mut transports = BTreeSet::from([
        Transport::Icmp { kind: 8, code: 0 },
        Transport::Port(Protocol::Tcp, u16::MAX),
        Transport::Port(Protocol::Udp, u16::MAX),
    ]);
    let services =
        before.iter().chain(after.iter()).flat_map(|rule| rule.services.iter().flatten());
    for service in services.gather::<BTreeSet<&Service>>() {
        match service {
            Service::Ports(protocol, range) => {
                transports.insert(Transport::Port(*protocol, range.first()));
                transports.insert(Transport::Port(*protocol, range.last()));
            }
            Service::Named(_, name) => {
                let ports = endpoints.pods.iter().flat_map(|pod| &pod.ports);
                let ports = ports.filter(|port| port.name == *name);
                transports.extend(ports.map(|port| Transport::Port(port.protocol, port.port)));
            }
            Service::Protocol(number) => match Protocol::of_number(*number) {
                Some(protocol) => {
                    transports.insert(Transport::Port(protocol, u16::MAX));
                }
                None => {
                    transports.insert(Transport::Other(*number));
                }
            },
            Service::Icmp { kind, code, .. } => {
                let code = code.unwrap_or_default();
                transports.insert(Transport::Icmp { kind: *kind, code });
            }
        }
    }
    let name = |transport: &Transport| match transport {
        Transport::Port(protocol, u16::MAX) => format!("{protocol} on other ports"),
        Transport::Port(protocol, port) => format!("{protocol}/{port}"),
        Transport::Icmp { kind, .. } => format!("icmp type {kind}"),
        Transport::Other(number) => format!("protocol {number}"),
    };
    transports.into_iter().map(|transport| (name(&transport), transport)).collect()
}

/// A connection of a family that both have, IPv4 if there is a choice.
fn tuple(source: &Endpoint, destination: &Endpoint, transport: Transport) -> Option<Tuple> {
    Family::BOTH.into_iter().find_map(|family| {
        let of = |pod: &Endpoint| {
            pod.addresses.iter().copied().find(|address| Family::of(*address) == family)
        };
        let (source, destination) = (of(source)?, of(destination)?);
        let transport = match (transport, family) {
            (Transport::Icmp { kind: 8, code }, Family::V6) => Transport::Icmp { kind: 128, code },
            _ => transport,
        };
        Some(Tuple { source, destination, transport })
    })
}

/// The end that denies, and its rule.
fn denied_by(judgement: &Judgement<'_>) -> String {
    let ends = [&judgement.egress, &judgement.ingress];
    let rule = ends.iter().find(|end| !end.allowed).map(|end| end.reason);
    match rule {
        Some(Reason::Rule(rule)) => rule.to_string(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}
