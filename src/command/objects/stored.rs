//! Objects in etcd: how a subcommand reads them, and changes them in one transaction.

use std::collections::BTreeSet;

use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::StoredObjects;
use crate::command::objects::files;
use crate::command::objects::notes::{freed, notes};
use crate::command::table::Tone;
use crate::etcd;
use crate::inspect::cluster;
use crate::net::gather::Gather;
use crate::net::{Object, Problem};
use crate::policy::ObjectSource;
use crate::settings::exit::{self, Exit};
use crate::sources::{
    Change, Effect, Kind, Planned, PoliciesStart, StoredHosts, StoredName, StoredPolicies,
    read_policies,
};

/// How often others may change objects meanwhile: of many at once one gets through each time.
const TRIES: u32 = 64;

/// Who makes an object there would else take it for enforced.
const OFF: &str = "this host enforces none of it, because of POLICY=off; humanz-agent doctor --all # has the others that do not";

/// The objects that are understood, and what is wrong with others.
///
/// # Errors
/// etcd does not answer, or those of the Kubernetes API are in force.
pub fn read(call: &mut Call<'_>) -> Result<(StoredObjects, Vec<Problem>), Exit> {
    match ruling(call)? {
        ObjectSource::Etcd => read_all(call),
        ObjectSource::Kubernetes => Err(of_api()),
    }
}

/// The same where those of this kind alone are looked at.
///
/// # Errors
/// As [`read`].
pub fn read_for(call: &mut Call<'_>, kind: &Kind) -> Result<(StoredObjects, Vec<Problem>), Exit> {
    in_force(call, kind)?;
    read_all(call)
}

/// As [`read_for`], with what is wrong with the objects of this kind, too.
///
/// # Errors
/// As [`read`].
pub fn read_judged(
    call: &mut Call<'_>,
    kind: &Kind,
) -> Result<(StoredObjects, Vec<Problem>), Exit> {
    in_force(call, kind)?;
    let (start, ruling) = (start(call)?, ruling(call)?);
    let (stored, _) = read_policies(&start).map_err(unreachable)?;
    let range = start.roots.policies_range();
    let (there, mut problems) = understood(&stored, &range);
    let own = there.keys().filter(|name| name.kind == kind);
    let own: BTreeSet<Object> = own.map(subject).gather();
    let judged = stored.read(&range, ruling).problems.into_iter();
    problems.extend(judged.filter(|it| own.contains(&it.subject)));
    Ok((there, problems))
}

/// What problems of the object have as their subject: its kind and name.
pub fn subject(name: &StoredName) -> Object {
    Object::named(name.to_string())
}

/// What etcd has of this kind is in force.
///
/// # Errors
/// Those of the Kubernetes API are.
pub fn in_force(call: &mut Call<'_>, kind: &Kind) -> Result<(), Exit> {
    if kind.is_in_force(ruling(call)?) { Ok(()) } else { Err(of_api()) }
}

/// The same, whether they are in force or not.
///
/// # Errors
/// etcd does not answer.
pub fn read_all(call: &mut Call<'_>) -> Result<(StoredObjects, Vec<Problem>), Exit> {
    let start = start(call)?;
    let (stored, _) = read_policies(&start).map_err(unreachable)?;
    Ok(understood(&stored, &start.roots.policies_range()))
}

/// Those that are understood, by their names, and what is wrong with the others.
pub fn understood(stored: &StoredPolicies, range: &str) -> (StoredObjects, Vec<Problem>) {
    let (objects, problems) = stored.understood(range);
    let named = objects.into_iter().filter_map(|it| Some((StoredName::of(&it).ok()?, it)));
    (named.gather(), problems)
}

/// Makes the `change` that follows from the objects there are, and says what it did.
///
/// # Errors
/// What keeps it from being made.
pub fn make(
    call: &mut Call<'_>,
    change: impl Fn(&StoredObjects) -> Result<Change, String>,
    (dry_run, as_json): (bool, bool),
) -> Result<Outcome, Exit> {
    let start = start(call)?;
    let settings = &call.load()?.settings;
    let pools: Vec<_> = settings.pool_networks().iter().copied().collect();
    // Others than etcd may have rules for namespaces.
    let policy = settings.policy.as_ref();
    let is_off = policy.is_none() && !settings.agentless;
    let pods_may_choose = policy.is_none_or(|it| it.api.is_none() && it.file.is_none());
    let range = start.roots.policies_range();
    for _ in 0..TRIES {
        let (stored, revision) = read_policies(&start).map_err(unreachable)?;
        let there = understood(&stored, &range).0;
        let change = change(&there).map_err(|why| refused(vec![why]))?;
        let is_custom = change.put.keys().any(|name| name.kind.has_custom_resources());
        if is_custom && ruling(call)? == ObjectSource::Kubernetes {
            return Err(of_api());
        }
        let hosts = stored_hosts(&start, &change)?;
        let pools = hosts.as_ref().map_or(pools.clone(), |hosts| hosts.pools_beside(&pools));
        let mut planned = change.plan(&stored, &range, revision, &pools).map_err(refused)?;
        if let Some(hosts) = &hosts {
            planned.spare_hosts(hosts).map_err(refused)?;
        }
        if !planned.other_uses.is_empty() {
            let found = etcd::held_blocks(&start.etcd, &start.roots).map_err(unreachable)?;
            let (blocks, revision) = found;
            let range = start.roots.blocks_range();
            planned.spare_blocks(&blocks, &range, revision).map_err(refused)?;
        }
        let commit = || {
            etcd::commit(&start.etcd, &start.roots, "change policies", &planned.transaction)
                .map_err(unreachable)
        };
        if dry_run || commit()? {
            let mut notes = notes(&change, &there);
            if pods_may_choose {
                notes.extend(freed(&change, &there, stored.namespace_rules()));
            }
            if is_off && !change.put.is_empty() {
                notes.push(OFF.to_owned());
            }
            return answer(call, &planned, &notes, (dry_run, as_json));
        }
    }
    Err(Exit::new(exit::TEMPORARY, "policies keep changing: try again"))
}

/// What hosts have, if `change` is of networks and these credentials may know.
fn stored_hosts(start: &PoliciesStart, change: &Change) -> Result<Option<StoredHosts>, Exit> {
    if !change.has_networks() {
        return Ok(None);
    }
    let found = etcd::read_if_permitted(&start.etcd, &start.roots).map_err(unreachable)?;
    Ok(found.map(|found| StoredHosts::of(&found, &start.roots)))
}

/// Where groups and so on are.
///
/// # Errors
/// A setting is wrong.
pub fn ruling(call: &mut Call<'_>) -> Result<ObjectSource, Exit> {
    let policy = call.load()?.settings.policy;
    Ok(policy.map(|policy| policy.objects).unwrap_or_default())
}

fn of_api() -> Exit {
    let why = "groups, networks, profiles and rules of namespaces are those of the Kubernetes API here \
               (POLICY_OBJECTS): kubectl get networks.humanz.io,groups.humanz.io,grouppolicies.humanz.io,\
               netprofiles.humanz.io,namespacerules.humanz.io";
    Exit::new(exit::SETTINGS, why)
}

fn start(call: &mut Call<'_>) -> Result<PoliciesStart, Exit> {
    let loaded = call.load()?;
    let (etcd, roots) = cluster::etcd(&loaded.settings)?;
    Ok(PoliciesStart { etcd: etcd.clone(), roots: roots.clone() })
}

fn unreachable(why: String) -> Exit {
    Exit::new(exit::UNAVAILABLE, format!("policies in etcd: {why}"))
}

/// Nothing was changed, because of `faults`.
pub fn refused(faults: Vec<String>) -> Exit {
    let faults: String = faults.iter().map(|fault| format!("\n! {fault}")).collect();
    Exit::new(exit::FAILURE, format!("nothing was changed:{faults}"))
}

fn answer(
    call: &mut Call<'_>,
    planned: &Planned,
    notes: &[String],
    (dry_run, as_json): (bool, bool),
) -> Result<Outcome, Exit> {
    let mut text = String::new();
    for (name, effect) in &planned.effects {
        let sign = match effect {
            Effect::Added => "+",
            Effect::Replaced => "~",
            Effect::Removed => "-",
            Effect::Unchanged => continue,
        };
        text += &format!("{sign} {name}\n");
    }
    if text.is_empty() {
        text += "nothing differs\n";
    } else if dry_run {
        text += "nothing was changed (--dry-run)\n";
    }
    let note = |note| call.style.sentence(Tone::Plain, &format!("note: {note}"));
    text.extend(notes.iter().map(note));
    // They were there before, and are no reason to leave.
    text += &files::faults(&planned.problems, call.style);
    let word = |effect: &Effect| match effect {
        Effect::Added => "added",
        Effect::Replaced => "replaced",
        Effect::Removed => "removed",
        Effect::Unchanged => "unchanged",
    };
    let objects = planned.effects.iter();
    let objects =
        objects.map(|(name, effect)| json!({"object": name.path(), "effect": word(effect)}));
    let value = json!({
        "objects": objects.collect::<Vec<_>>(),
        "applied": !dry_run,
        "problems": planned.problems,
        "notes": notes,
    });
    call.answer(as_json, true, value, &text)
}
