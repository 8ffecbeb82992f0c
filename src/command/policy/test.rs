//! `policy test`: one connection, and the rule that decides at each end.

use std::net::IpAddr;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::files;
use crate::net::{Family, Protocol};
use crate::policy::read::documents;
use crate::policy::{Decision, Endpoint, Endpoints, Judgement, Reason, Transport, Tuple, evaluate};
use crate::settings::exit::{self, Exit};

/// say whether a connection is allowed, and which rule decides at each end; policies, groups, pods,
/// namespaces and nodes stand in files (JSON, policies also as YAML). A service is tested by
/// the pods behind it
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "test")]
pub struct Test {
    /// a file of objects, again for more; -: standard input
    #[argh(option, short = 'f')]
    file: Vec<String>,
    /// a pod (namespace/name) or an address
    #[argh(option)]
    from: String,
    /// the same, with :PORT; without a port an echo request
    #[argh(option)]
    to: String,
    /// tcp (default), udp or sctp
    #[argh(option, default = "Protocol::Tcp")]
    protocol: Protocol,
    /// let pods choose their group where their namespace has no rule
    #[argh(switch)]
    free_groups: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers for each family that both ends have; it is denied if one of them is.
///
/// # Errors
/// A file or an end that is not understood.
pub fn run(call: &mut Call<'_>, options: &Test) -> Result<Outcome, Exit> {
    let documents = documents::read(&files::read(&options.file)?, options.free_groups).isolated();
    let endpoints = &documents.endpoints;
    let (to, port) = destination(&options.to);
    let tuples = tuples(endpoints, (&options.from, to), port.map(|port| (options.protocol, port)))?;
    let judged: Vec<(Tuple, Judgement<'_>)> = tuples
        .into_iter()
        .map(|tuple| (tuple, evaluate(&documents.rules, endpoints, &tuple)))
        .collect();
    let allowed = judged.iter().all(|(_, judgement)| judgement.allowed());
    let mut text = files::faults(&documents.problems);
    for (tuple, judgement) in &judged {
        text += &lines(endpoints, tuple, judgement);
    }
    text += if allowed { "allowed" } else { "denied" };
    let json = json!({
        "allowed": allowed,
        "connections": judged.iter().map(|(tuple, judgement)| object(tuple, judgement)).collect::<Vec<_>>(),
        "problems": documents.problems,
    });
    call.answer(options.json, allowed, json, &text)
}

fn lines(endpoints: &Endpoints, tuple: &Tuple, judgement: &Judgement<'_>) -> String {
    let name = |address| endpoints.pod(address).map(|pod| format!("{pod} ")).unwrap_or_default();
    let (source, destination) = (name(tuple.source), name(tuple.destination));
    let end = |decision: &Decision<'_>| {
        let audit = decision.audit.map(|rule| format!("; audited: {} by {rule}", rule.verdict));
        format!("{decision}{}", audit.unwrap_or_default())
    };
    format!(
        "{source}{} -> {destination}{}\n  egress   {}\n  ingress  {}\n",
        tuple.source,
        tuple.target(),
        end(&judgement.egress),
        end(&judgement.ingress)
    )
}

fn object(tuple: &Tuple, judgement: &Judgement<'_>) -> Value {
    let end = |decision: &Decision<'_>| {
        let rule = match decision.reason {
            Reason::Rule(rule) => Some(rule.to_string()),
            _ => None,
        };
        json!({
            "allowed": decision.allowed,
            "reason": decision.reason.to_string(),
            "rule": rule,
            "audit": decision.audit.map(|rule| format!("{} by {rule}", rule.verdict)),
        })
    };
    json!({
        "source": tuple.source,
        "destination": tuple.destination,
        "allowed": judgement.allowed(),
        "egress": end(&judgement.egress),
        "ingress": end(&judgement.ingress),
    })
}

/// An end of `to`, and its port: `shop/db:80`, `192.0.2.1:80`, `[::1]:80`, `::1`.
fn destination(to: &str) -> (&str, Option<u16>) {
    let split = to.rsplit_once(':').and_then(|(end, port)| Some((end, port.parse().ok()?)));
    match split {
        _ if to.parse::<IpAddr>().is_ok() => (to, None),
        Some((end, port)) => {
            let inner = end.strip_prefix('[').and_then(|end| end.strip_suffix(']'));
            (inner.unwrap_or(end), Some(port))
        }
        None => (to, None),
    }
}

fn tuples(
    endpoints: &Endpoints,
    (from, to): (&str, &str),
    port: Option<(Protocol, u16)>,
) -> Result<Vec<Tuple>, Exit> {
    let (sources, destinations) = (addresses(endpoints, from)?, addresses(endpoints, to)?);
    let mut tuples = Vec::new();
    for source in &sources {
        for destination in &destinations {
            let family = Family::of(*source);
            if family != Family::of(*destination) {
                continue;
            }
            let echo = if family == Family::V4 { 8 } else { 128 };
            let transport = match port {
                Some((protocol, port)) => Transport::Port(protocol, port),
                None => Transport::Icmp { kind: echo, code: 0 },
            };
            tuples.push(Tuple { source: *source, destination: *destination, transport });
        }
    }
    match tuples.is_empty() {
        true => Err(Exit::new(exit::SETTINGS, format!("{from} and {to} have no family in common"))),
        false => Ok(tuples),
    }
}

fn addresses(endpoints: &Endpoints, what: &str) -> Result<Vec<IpAddr>, Exit> {
    if let Ok(address) = what.parse() {
        return Ok(vec![address]);
    }
    let is_meant = |pod: &&Endpoint| pod.to_string() == what;
    let pod = endpoints.pods.iter().find(is_meant).map(|pod| pod.addresses.clone());
    let why = "is no address, and no pod of these files that has an address of its own";
    pod.ok_or_else(|| Exit::new(exit::SETTINGS, format!("{what} {why}")))
}
