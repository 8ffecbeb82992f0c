//! `policy diff -f CHANGED`: what changed objects change on this host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::files;
use crate::command::policy::here::HostPolicies;
use crate::command::policy::live::Live;
use crate::policy::change::{ChangedVerdict, Replaced, Surroundings, compare};
use crate::policy::{Endpoints, Scoped};
use crate::settings::exit::{self, Exit};

/// Lines of text for changed verdicts; JSON has all.
const LINES: usize = 200;

/// Answers, with the objects in `paths`, given by `option`, in place of those that hold.
///
/// # Errors
/// Policies are off here; a file that is not understood, or that changes more than policies; no pods.
pub fn run(
    call: &mut Call<'_>,
    (paths, option): (&[String], &str),
    as_json: bool,
) -> Result<Outcome, Exit> {
    let new = files::read_policies(paths)?;
    if new.is_empty() {
        return Err(refused(format!("{option}: no objects in it")));
    }
    let host = HostPolicies::inspect(call).map_err(with_hint)?;
    let Replaced { rules, problems, unlisted } = host.changed((&new, option))?;
    let pods = host.view.endpoints();
    if pods.is_empty() {
        let why =
            "this host has no pods that policies know: ask on a host that has, or compare files";
        return Err(refused(format!("{why}: {FILES}")));
    }
    let members = host.members_then(&rules, &Endpoints::default());
    let change = host.change(&rules, &members, &pods);
    let around = Surroundings {
        members: &members,
        subnets: &host.view.subnets,
        own: &host.own,
        pools: &host.pools(),
    };
    let verdicts = compare(&change, &around).map_err(|why| refused(why.to_string()))?;
    let affected = Live::list(&host)?.affected(&change);
    let mut text = files::faults(&problems, call.style);
    text += &lines(&verdicts);
    text += &unlisted.iter().map(not_listed).collect::<String>();
    text += &affected.text();
    let json = json!({
        "changes": verdicts.iter().map(object).collect::<Vec<_>>(),
        "problems": problems,
        "unlisted": unlisted.iter().map(Scoped::to_string).collect::<Vec<_>>(),
        "live": affected.json(),
    });
    let fine = verdicts.is_empty()
        && problems.is_empty()
        && unlisted.is_empty()
        && affected.cuts_nothing();
    call.answer(as_json, fine, json, &text)
}

const FILES: &str = "-f FILE with the cluster's objects and pods, --new FILE with the changed ones";

fn refused(why: String) -> Exit {
    Exit::new(exit::SETTINGS, why)
}

fn with_hint(exit: Exit) -> Exit {
    Exit::new(exit.code, format!("{}; without this host's policies: {FILES}", exit.why))
}

fn not_listed(policy: &Scoped) -> String {
    format!(
        "? no rule of this host says that a group lists GroupPolicy {policy}: give the Group, too (a policy without \
         rules leaves no trace here)\n"
    )
}

/// One line for all services of a pair with the same answer.
fn lines(verdicts: &BTreeSet<ChangedVerdict>) -> String {
    let mut services: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for one in verdicts {
        let pair = (&one.source, &one.destination, one.allowed, &one.rule);
        services.entry(pair).or_default().push(&one.service);
    }
    let mut text = String::new();
    for ((source, destination, allowed, rule), services) in services.iter().take(LINES) {
        let services = services.join(", ");
        text += &match allowed {
            Some(true) => {
                format!("+ allowed, was denied: {source} -> {destination} {services}: {rule}\n")
            }
            Some(false) => {
                format!("- denied, was allowed: {source} -> {destination} {services}: {rule}\n")
            }
            None => format!(
                "? may change: {source} -> {destination} {services}: it depends on whether {rule} matches, which \
                 this host does not know\n"
            ),
        };
    }
    if let Some(more @ 1..) = services.len().checked_sub(LINES) {
        text += &format!("  and {more} more pairs (--json has all)\n");
    }
    if verdicts.is_empty() {
        text += "no connection from or to the pods of this host changes (other hosts judge those of their own)\n";
    }
    if verdicts.iter().any(|one| one.judged_elsewhere) {
        text += "ends that are pods of other hosts are judged there: ask on those hosts, too\n";
    }
    text
}

fn object(change: &ChangedVerdict) -> Value {
    json!({"source": change.source, "destination": change.destination, "service": change.service,
        "allowed": change.allowed, "rule": change.rule, "judgedElsewhere": change.judged_elsewhere})
}
