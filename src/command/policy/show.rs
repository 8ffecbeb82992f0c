//! `policy show`: the rules of a policy in words, its pods, and what its peers are now.

use std::collections::BTreeSet;
use std::net::IpAddr;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::{files, stored};
use crate::command::policy::found::{self, KnownPolicies, PacketCounts, packets};
use crate::command::policy::list::{object, tier};
use crate::command::table::Tone;
use crate::net::gather::Gather;
use crate::policy::compile::counter;
use crate::policy::list::{PolicyObject, policies, words};
use crate::policy::{PolicyPeer, Rule, Scoped, Selector};
use crate::settings::exit::{self, Exit};
use crate::settings::values::group;
use crate::sources::{Kind, StoredName};

/// show a policy: its rules in words, the pods of this host that it has rules for, and which addresses
/// its peers have now. Asks the agent; without one shows what held last
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "show",
    example = "{command_name} shop/db",
    example = "{command_name} shop/db --counters",
    example = "{command_name} 'NetworkPolicy shop/db' -f policies.yaml",
    error_code(0, "the policy is shown"),
    error_code(1, "no agent answers, or something is wrong with a file"),
    error_code(2, "there is no such policy, policies are off, or a file cannot be read"),
    error_code(69, "no policies are known yet, or this user may not use the agent's socket")
)]
pub struct Show {
    /// its name: db, shop/db, or with its kind
    #[argh(positional)]
    name: String,
    /// a file of objects instead, again for more; -: standard input
    #[argh(option, short = 'f')]
    file: Vec<String>,
    /// only its rules for the pods of this group, tenant/name
    #[argh(option, from_str_fn(group))]
    group: Option<Scoped>,
    /// packets that each rule matched on this host
    #[argh(switch)]
    counters: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Addresses of a peer that are listed; JSON has all.
const ADDRESSES: usize = 8;

/// Answers.
///
/// # Errors
/// There is no such policy, or policies cannot be known.
pub fn run(call: &mut Call<'_>, options: &Show) -> Result<Outcome, Exit> {
    let found = found::find(call, &options.file, true)?;
    let counters = found::counters(options.counters)?;
    let mut all = policies(&found.rules);
    all.retain(|policy| policy.has_name(&options.name));
    if all.is_empty() {
        return Err(missing(call, options, found.unknown));
    }
    if let Some(group) = &options.group {
        all = all.into_iter().filter_map(|it| it.of_group(group, &found.pods)).collect();
        if all.is_empty() {
            let why = format!("policy {} has no rule for group {group} here", options.name);
            return Err(Exit::new(exit::SETTINGS, why));
        }
    }
    let mut text = files::faults(&found.problems, call.style);
    text.extend(found.note.iter().map(|note| call.style.remark(Tone::Plain, note)));
    for policy in &all {
        text += &screen(policy, &found, counters.as_ref());
    }
    let fine = found.problems.is_empty() && found.note.is_none();
    let whole = |policy: &PolicyObject<'_>| whole(policy, &found, counters.as_ref());
    let json = json!({
        "policies": all.iter().map(whole).collect::<Vec<_>>(),
        "note": found.note,
        "problems": found.problems,
    });
    call.answer(options.json, fine, json, &text)
}

/// Why none of the policies in force has the name. `unknown`: none are known.
fn missing(call: &mut Call<'_>, options: &Show, unknown: Option<String>) -> Exit {
    let name = &options.name;
    let text = name.strip_prefix("GroupPolicy ").unwrap_or(name);
    let stored = Kind::find("GroupPolicy").and_then(|kind| StoredName::parse(kind, text).ok());
    let stored = stored.filter(|_| options.file.is_empty());
    let is_stored = |name: &StoredName| {
        stored::read_all(call).is_ok_and(|(objects, _)| objects.contains_key(name))
    };
    match stored.filter(is_stored) {
        Some(stored) => {
            let perhaps = "perhaps it is in no group, has no rule or is not understood";
            let why = match (stored::in_force(call, stored.kind), unknown) {
                (Err(exit), _) => exit.why,
                (Ok(()), unknown) => format!(
                    "{} (humanz-agent status; its rules: humanz-agent policy rule-ls {})",
                    unknown.as_deref().unwrap_or(perhaps),
                    stored.scoped()
                ),
            };
            let why = format!("{stored} is in etcd and not in force here: {why}");
            Exit::new(exit::SETTINGS, why)
        }
        None => match unknown {
            Some(unknown) => Exit::new(exit::UNAVAILABLE, unknown),
            None => {
                let why = format!("there is no policy {name} (humanz-agent policy ls)");
                Exit::new(exit::SETTINGS, why)
            }
        },
    }
}

fn screen(
    policy: &PolicyObject<'_>,
    found: &KnownPolicies,
    counters: Option<&PacketCounts>,
) -> String {
    let source = found.source(&policy.origin).map(|source| format!(", from {source}"));
    let tier = tier(policy.tier);
    let mut text = format!("{} (tier {tier}{})\n", policy.origin, source.unwrap_or_default());
    for rule in &policy.rules {
        let counted = counters.map(|counters| {
            format!(" [{}: {} packets]", counter(rule), packets(counters, [*rule]))
        });
        let counted = counted.unwrap_or_default();
        text += &format!("  {}: {}{counted}\n", place(rule), words(rule));
    }
    let pods: Vec<String> = policy
        .applies_to(&found.pods)
        .iter()
        .map(|pod| format!("{pod} ({})", addresses(&pod.addresses)))
        .collect();
    let pods = if pods.is_empty() { "none".to_owned() } else { pods.join(", ") };
    text += &format!("  pods that it has rules for: {pods}\n");
    for selector in selectors(policy) {
        let members = members(found, selector);
        text += &format!("  {selector} now: {}\n", addresses(&members));
    }
    text
}

fn place(rule: &Rule) -> String {
    match rule.origin.index {
        Some(index) => format!("{} rule {index}", rule.direction),
        None => format!("{} default", rule.direction),
    }
}

fn selectors<'a>(policy: &PolicyObject<'a>) -> BTreeSet<&'a Selector> {
    let peers = policy.rules.iter().flat_map(|rule| rule.peers.iter().flatten());
    let selected = |peer: &'a PolicyPeer| match peer {
        PolicyPeer::Selected(selector) => Some(selector),
        PolicyPeer::Network { .. } => None,
    };
    peers.filter_map(selected).gather()
}

fn members(found: &KnownPolicies, selector: &Selector) -> Vec<IpAddr> {
    let members = found.members.get(selector).into_iter().flat_map(|found| &**found);
    members.flat_map(|member| &member.addresses).copied().collect()
}

fn addresses(all: &[IpAddr]) -> String {
    let shown: Vec<String> = all.iter().take(ADDRESSES).map(ToString::to_string).collect();
    match all.len() {
        0 => "nothing".to_owned(),
        count if count > ADDRESSES => {
            format!("{} and {} more", shown.join(", "), count - ADDRESSES)
        }
        _ => shown.join(", "),
    }
}

fn whole(
    policy: &PolicyObject<'_>,
    found: &KnownPolicies,
    counters: Option<&PacketCounts>,
) -> Value {
    let rule = |rule: &&Rule| {
        json!({
            "direction": rule.direction.to_string(),
            "rule": place(rule),
            "verdict": rule.verdict.to_string(),
            "audit": rule.audit,
            "words": words(rule),
            "counter": counter(rule),
            "packets": counters.map(|counters| packets(counters, [*rule])),
        })
    };
    let peer = |selector: &Selector| json!({"peer": selector.to_string(), "addresses": members(found, selector)});
    let mut value = object(policy, found, counters);
    value["rules"] = policy.rules.iter().map(rule).collect();
    value["peers"] = selectors(policy).into_iter().map(peer).collect();
    value
}
