//! `policy apply`, `rm` and `export`: policies in etcd.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::policy::files;
use crate::etcd;
use crate::inspect::cluster;
use crate::settings::exit::{self, Exit};
use crate::sources::{Change, Effect, Kind, Planned, PoliciesStart, StoredName, read_policies};

/// How often others may change policies meanwhile.
const TRIES: u32 = 10;

/// put policies into etcd, where all hosts with POLICY=on take them from: each object is added, or replaces
/// the one of its kind and name. All of them in one transaction, and only if each is understood and what it
/// refers to exists
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "apply",
    example = "{command_name} -f policies.yaml --dry-run",
    error_code(1, "an object is not understood or misses another: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses"),
    error_code(75, "policies keep changing")
)]
pub struct Apply {
    /// a file with objects (YAML or JSON), again for more; -: standard input
    #[argh(option, short = 'f')]
    file: Vec<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// take an object of policies out of etcd, unless another one refers to it
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rm",
    example = "{command_name} GroupPolicy blue/front",
    example = "{command_name} NetworkPolicy shop/db",
    error_code(1, "it is not there, or another one refers to it: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses"),
    error_code(75, "policies keep changing")
)]
pub struct Remove {
    /// kind of the object: Group, GroupPolicy, NamespaceRule, Network, Namespace, NetworkPolicy …
    #[argh(positional)]
    kind: String,
    /// its name: tenant/name (the tenant default without one), namespace/name or name
    #[argh(positional)]
    name: String,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// print all policies in etcd as one JSON list, which policy apply -f, test -f and diff -f read
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "export",
    example = "{command_name} > policies.json",
    error_code(1, "a value in etcd is not understood: its object is left out"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct Export {}

/// Answers.
///
/// # Errors
/// What keeps the objects from being put.
pub fn apply(call: &mut Call<'_>, options: &Apply) -> Result<Outcome, Exit> {
    if options.file.is_empty() {
        return Err(Exit::new(exit::SETTINGS, "which objects? -f FILE (-f -: standard input)"));
    }
    let change = Change::put(files::read(&options.file)?).map_err(refused)?;
    make(call, &change, options.dry_run, options.json)
}

/// Answers.
///
/// # Errors
/// Not the name of an object, or one that has to stay.
pub fn remove(call: &mut Call<'_>, options: &Remove) -> Result<Outcome, Exit> {
    let unknown = |why: String| Exit::new(exit::SETTINGS, why);
    let kind = Kind::find(&options.kind);
    let kind = kind.ok_or_else(|| unknown(format!("{:?} is no kind of policies", options.kind)))?;
    let name = StoredName::parse(kind, &options.name).map_err(unknown)?;
    let change = Change { remove: vec![name], ..Change::default() };
    make(call, &change, options.dry_run, options.json)
}

/// Answers.
///
/// # Errors
/// etcd does not answer.
pub fn export(call: &mut Call<'_>, _: &Export) -> Result<Outcome, Exit> {
    let start = start(call)?;
    let (stored, _) = read_policies(&start).map_err(unreachable)?;
    let (objects, problems) = stored.understood(&start.roots.policies_range());
    for problem in &problems {
        log::error!("{}: {problem}", problem.subject);
    }
    let list = Value::Array(objects);
    call.answer(false, problems.is_empty(), Value::Null, &format!("{list:#}"))
}

fn start(call: &mut Call<'_>) -> Result<PoliciesStart, Exit> {
    let loaded = call.load()?;
    let (etcd, roots) = cluster::etcd(&loaded.settings)?;
    Ok(PoliciesStart { etcd: etcd.clone(), roots: roots.clone() })
}

fn unreachable(why: String) -> Exit {
    Exit::new(exit::UNAVAILABLE, format!("policies in etcd: {why}"))
}

fn refused(faults: Vec<String>) -> Exit {
    let faults: String = faults.iter().map(|fault| format!("\n! {fault}")).collect();
    Exit::new(exit::FAILURE, format!("nothing was changed:{faults}"))
}

fn make(
    call: &mut Call<'_>,
    change: &Change,
    dry_run: bool,
    as_json: bool,
) -> Result<Outcome, Exit> {
    let start = start(call)?;
    let pools: Vec<_> = call.load()?.settings.pool_networks().iter().copied().collect();
    let range = start.roots.policies_range();
    for _ in 0..TRIES {
        let (stored, revision) = read_policies(&start).map_err(unreachable)?;
        let planned = change.plan(&stored, &range, revision, &pools).map_err(refused)?;
        let commit = || {
            etcd::commit(&start.etcd, &start.roots, "change policies", &planned.transaction)
                .map_err(unreachable)
        };
        if dry_run || commit()? {
            return answer(call, &planned, dry_run, as_json);
        }
    }
    Err(Exit::new(exit::TEMPORARY, "policies keep changing: try again"))
}

fn answer(
    call: &mut Call<'_>,
    planned: &Planned,
    dry_run: bool,
    as_json: bool,
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
    // They were there before, and are no reason to leave.
    text += &files::faults(&planned.problems);
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
    });
    call.answer(as_json, true, value, &text)
}
