//! `policy test`: one connection, and the rule that decides at each end.

use std::net::IpAddr;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::files;
use crate::net::{Family, Protocol};
use crate::policy::read::documents;
use crate::policy::{Decision, Endpoints, Judgement, Reason, Scoped, Transport, Tuple, evaluate};
use crate::settings::exit::{self, Exit};
use crate::settings::values::group;

/// say whether a connection is allowed, and which rule decides at each end: by what holds on this host, or
/// by files alone with policies, groups, pods, namespaces and nodes (JSON, policies also as YAML). A service
/// is tested by the pods behind it, a port of this host by the pod that it leads to
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "test",
    example = "{command_name} --from shop/web --to shop/db:5432",
    example = "{command_name} --live -f new.yaml --from shop/web --to shop/db:5432",
    example = "{command_name} -f cluster.json -f new.yaml --from shop/web --to 192.0.2.7",
    error_code(1, "it is denied, or what another host judges is not known here"),
    error_code(2, "a file or an end is not understood, or policies are off")
)]
pub struct Test {
    /// a file of objects, again for more; -: standard input. Without one what holds on this host
    #[argh(option, short = 'f')]
    pub file: Vec<String>,
    /// by what holds on this host, with the policies of the files in place of those of their names
    #[argh(switch)]
    live: bool,
    /// a pod (namespace/name) or an address
    #[argh(option)]
    pub from: String,
    /// the same, with :PORT; without a port an echo request
    #[argh(option)]
    pub to: String,
    /// tcp (default), udp or sctp
    #[argh(option, default = "Protocol::Tcp")]
    pub protocol: Protocol,
    /// let pods choose their group while no namespace has a rule
    #[argh(switch)]
    pub free_groups: bool,
    /// with files alone: the hosts' POLICY_GROUP
    #[argh(option, from_str_fn(group))]
    pub group: Option<Scoped>,
    /// print one JSON object
    #[argh(switch)]
    pub json: bool,
}

impl Test {
    /// It is about this host, and not about files alone.
    pub fn is_live(&self) -> bool {
        self.live || self.file.is_empty()
    }
}

/// Answers by files for each family that both ends have; it is denied if one of them is.
///
/// # Errors
/// A file or an end that is not understood.
pub fn run(call: &mut Call<'_>, options: &Test) -> Result<Outcome, Exit> {
    let documents = documents::read(&files::read_policies(&options.file)?, options.free_groups)
        .configured(options.group.as_ref())
        .isolated();
    let endpoints = &documents.endpoints;
    let (to, port) = destination(&options.to)?;
    let port = port.map(|port| (options.protocol, port));
    let pods = || endpoints.pods.iter().map(|pod| (pod.to_string(), &*pod.addresses));
    let named =
        |what: &str| addresses(what, pods(), "of these files that has an address of its own");
    let tuples = tuples(named, (&options.from, to), port)?;
    let judged: Vec<(Tuple, Judgement<'_>)> = tuples
        .into_iter()
        .map(|tuple| (tuple, evaluate(&documents.rules, endpoints, &tuple)))
        .collect();
    let allowed = judged.iter().all(|(_, judgement)| judgement.allowed());
    let mut text = files::faults(&documents.problems, call.style);
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

/// `--group` was given for what holds on a host, whose settings say it.
pub fn group_of_settings() -> Exit {
    Exit::new(exit::SETTINGS, "--group: on this host POLICY_GROUP says it (humanz-agent config)")
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
///
/// # Errors
/// What follows the colon is no port.
pub fn destination(to: &str) -> Result<(&str, Option<u16>), Exit> {
    let (end, port) = match to.rsplit_once(':') {
        Some((end, port)) if to.parse::<IpAddr>().is_err() && !to.ends_with(']') => {
            (end, Some(port))
        }
        _ => (to, None),
    };
    let number = port.map(str::parse).transpose().unwrap_or(Some(0));
    if number == Some(0) {
        let what =
            "is no port, a number from 1 to 65535 (--protocol gives another protocol than tcp)";
        let port = port.unwrap_or_default();
        return Err(Exit::new(exit::SETTINGS, format!("{to}: {port:?} {what}")));
    }
    let inner = end.strip_prefix('[').and_then(|end| end.strip_suffix(']'));
    Ok((inner.unwrap_or(end), number))
}

/// The connections that are meant from `from` to `to`, one for each family that both have. `addresses`: those
/// of an end.
///
/// # Errors
/// An end that is not known, or no family in common.
pub fn tuples(
    addresses: impl Fn(&str) -> Result<Vec<IpAddr>, Exit>,
    (from, to): (&str, &str),
    port: Option<(Protocol, u16)>,
) -> Result<Vec<Tuple>, Exit> {
    let (sources, destinations) = (addresses(from)?, addresses(to)?);
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

/// The address `what`, or those of the pod of that name among `pods`. `where_pods`: what `pods` are.
///
/// # Errors
/// Neither.
pub fn addresses<'a>(
    what: &str,
    pods: impl IntoIterator<Item = (String, &'a [IpAddr])>,
    where_pods: &str,
) -> Result<Vec<IpAddr>, Exit> {
    if let Ok(address) = what.parse() {
        return Ok(vec![address]);
    }
    let pod = pods.into_iter().find(|(name, _)| name == what);
    let why = format!("{what} is no address, and no pod {where_pods}");
    pod.map(|(_, addresses)| addresses.to_vec()).ok_or_else(|| Exit::new(exit::SETTINGS, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_parted_from_its_port() {
        for (to, end, port) in [
            ("shop/db", "shop/db", None),
            ("shop/db:80", "shop/db", Some(80)),
            ("192.0.2.1:65535", "192.0.2.1", Some(65535)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:80", "::1", Some(80)),
        ] {
            assert_eq!(destination(to).unwrap(), (end, port), "{to}");
        }
        for (to, port) in [
            ("shop/db:0", "0"),
            ("shop/db:99999", "99999"),
            ("shop/db:80/udp", "80/udp"),
            ("a:", ""),
        ] {
            let why = destination(to).unwrap_err().why;
            assert!(why.starts_with(&format!("{to}: {port:?} is no port")), "{why}");
        }
    }
}
