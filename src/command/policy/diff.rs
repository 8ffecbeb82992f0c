//! `policy diff`: which connections between pods change verdict.

use std::collections::BTreeSet;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::files;
use crate::command::policy::diff_here;
use crate::command::policy::here::HostPolicies;
use crate::command::policy::live::{Affected, Live};
use crate::command::policy::test::group_of_settings;
use crate::net::Family;
use crate::net::gather::Gather;
use crate::policy::read::documents::{self, Documents};
use crate::policy::{
    Endpoint, Endpoints, Judgement, NamedPort, Reason, Rule, Scoped, Transport, Tuple, change,
    evaluate,
};
use crate::settings::exit::{self, Exit};
use crate::settings::values::group;

/// list the pairs of pods between which changed policies allow or deny something. With one file (-f or --new):
/// against what holds on this host, for its pods and whatever their rules tell apart elsewhere, and the connections
/// here that the change would cut. With -f CLUSTER --new CHANGED: for the pods in these files. Pods of one namespace
/// that no policy tells apart are shown as one. Tries every port that a rule has, and one that none has
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "diff",
    example = "{command_name} -f new.yaml",
    example = "{command_name} -f cluster.json --new new.yaml",
    error_code(0, "nothing would change"),
    error_code(1, "something would change, or may, or something in the file is not understood"),
    error_code(
        2,
        "there is nothing to compare: a file is not understood, policies are off, there are no pods"
    ),
    error_code(69, "this user may not use the agent's socket")
)]
pub struct Diff {
    /// a file with changed objects, again for more; -: standard input. With --new the objects of the cluster
    #[argh(option, short = 'f')]
    file: Vec<String>,
    /// a file with changed objects: one of the same kind and name is replaced, another added
    #[argh(option)]
    new: Vec<String>,
    /// with -f and --new: also the connections that run on this host and would be cut
    #[argh(switch)]
    live: bool,
    /// let pods choose their group while no namespace has a rule
    #[argh(switch)]
    free_groups: bool,
    /// with -f and --new: the hosts' POLICY_GROUP
    #[argh(option, from_str_fn(group))]
    group: Option<Scoped>,
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
    /// With the family where the other one has another answer.
    service: String,
    allowed: bool,
    /// The rule that denies, before or after.
    rule: String,
}

/// Answers.
///
/// # Errors
/// A file that is not understood, nothing to compare with, or more pods and ports than can be tried.
pub fn run(call: &mut Call<'_>, options: &Diff) -> Result<Outcome, Exit> {
    match (&*options.file, &*options.new) {
        ([], []) => {
            let why = "no objects are given: -f FILE compares them with what holds on this host; -f FILE with the \
                       objects of the cluster and --new FILE compare files";
            Err(Exit::new(exit::SETTINGS, why))
        }
        (_, []) | ([], _) if options.group.is_some() => Err(group_of_settings()),
        (changed, []) => diff_here::run(call, (changed, "-f"), options.json),
        ([], changed) => diff_here::run(call, (changed, "--new"), options.json),
        _ => of_files(call, options),
    }
}

fn of_files(call: &mut Call<'_>, options: &Diff) -> Result<Outcome, Exit> {
    let old = files::read_policies(&options.file)?;
    let changed = files::read_policies(&options.new)?;
    let new = replaced(old.clone(), changed.clone());
    let read = |objects| {
        let read = documents::read(objects, options.free_groups);
        read.configured(options.group.as_ref()).isolated()
    };
    let (before, after) = (read(&old), read(&new));
    let has_pods = !after.endpoints.pods.is_empty();
    if !has_pods && !options.live {
        let why = "no pods to compare for: give with -f a file that has the pods of the cluster, as kubectl get \
            pods -A -o json prints them, or --live for the connections of this host";
        return Err(Exit::new(exit::SETTINGS, why));
    }
    let changes = changes(&before, &after)?;
    let affected = match options.live {
        true => Some(affected(call, &changed, &after)?),
        false => None,
    };
    let mut text = files::faults(&after.problems, call.style);
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

/// What the changed objects do to connections of this host, where files have pods of other hosts.
fn affected(call: &mut Call<'_>, changed: &[Value], after: &Documents) -> Result<Affected, Exit> {
    let host = HostPolicies::inspect(call)?;
    let rules = host.changed((changed, "--new"))?.rules;
    let (pods, members) = (host.view.endpoints(), host.members_then(&rules, &after.endpoints));
    Ok(Live::list(&host)?.affected(&host.change(&rules, &members, &pods)))
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
    let rules: Vec<&Rule> = before.rules.iter().chain(after.rules.iter()).collect();
    let alike: Vec<(&Endpoint, String)> = change::alike(&after.endpoints.pods, &rules)
        .iter()
        .map(|kind| (kind.first, kind.name()))
        .collect();
    let endpoints = Endpoints {
        pods: alike.iter().map(|(pod, _)| (*pod).clone()).collect(),
        nodes: after.endpoints.nodes.clone(),
    };
    let ports: Vec<&NamedPort> = endpoints.pods.iter().flat_map(|pod| &pod.ports).collect();
    let transports = change::services(&rules, &ports);
    if alike.len() * alike.len() * transports.len() * Family::BOTH.len() > LIMIT {
        let why = format!("{} kinds of pods, {} ports", alike.len(), transports.len());
        return Err(Exit::new(exit::SETTINGS, format!("{why}: too many to try; take fewer pods")));
    }
    let mut changes = Vec::new();
    for (source, from) in &alike {
        for (destination, to) in &alike {
            for (service, transport) in &transports {
                let judge = |tuple: Tuple| {
                    let old = evaluate(&before.rules, &endpoints, &tuple);
                    let new = evaluate(&after.rules, &endpoints, &tuple);
                    let allowed = new.allowed();
                    let denies = if allowed { &old } else { &new };
                    (old.allowed() != allowed).then(|| (allowed, denied_by(denies)))
                };
                let said = tuples(source, destination, *transport)
                    .map(|tuple| (Family::of(tuple.source), judge(tuple)));
                for (service, change) in change::by_family(service, said.collect()) {
                    let Some((allowed, rule)) = change else { continue };
                    let (source, destination) = (from.clone(), to.clone());
                    changes.push(ChangedConnection { source, destination, service, allowed, rule });
                }
            }
        }
    }
    Ok(changes)
}

/// A connection of each family that both have.
fn tuples(
    source: &Endpoint,
    destination: &Endpoint,
    transport: Transport,
) -> impl Iterator<Item = Tuple> {
    Family::BOTH.into_iter().filter_map(move |family| {
        let of = |pod: &Endpoint| {
            pod.addresses.iter().copied().find(|address| Family::of(*address) == family)
        };
        let (source, destination) = (of(source)?, of(destination)?);
        Some(Tuple { source, destination, transport: change::in_family(transport, family)? })
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
