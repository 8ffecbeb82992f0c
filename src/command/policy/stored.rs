//! `apply` and `export`, also as verbs of `policy`, and `policy rm`: objects in etcd.

use argh::{ArgsInfo, FromArgs};
use serde_json::Value;

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::StoredObjects;
use crate::command::objects::files;
use crate::command::objects::stored;
use crate::settings::exit::{self, Exit};
use crate::sources::{Change, KINDS, Kind, StoredName};

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
    /// take out of etcd what stands in none of the files; one without objects is refused, except /dev/null: [] stands
    /// for none
    #[argh(switch)]
    prune: bool,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// take an object of policies out of etcd, unless another one refers to it; without a kind a policy of groups
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rm",
    example = "{command_name} blue/front",
    example = "{command_name} NetworkPolicy shop/db",
    error_code(1, "it is not there, or another one refers to it: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses"),
    error_code(75, "policies keep changing")
)]
pub struct Remove {
    /// kind of the object: Group, GroupPolicy, NamespaceRule, Network, Namespace, NetworkPolicy …; or the name of a
    /// GroupPolicy
    #[argh(positional)]
    kind: String,
    /// its name: tenant/name (the tenant default without one), namespace/name or name
    #[argh(positional)]
    name: Option<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// print all policies in etcd as one JSON list, which apply -f, policy test -f and policy diff -f read
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
        return Err(Exit::new(
            exit::SETTINGS,
            "no objects are given: -f FILE (-f -: standard input)",
        ));
    }
    let read: fn(&[String]) -> _ = if options.prune { files::read_all_of } else { files::read };
    let put = Change::put(read(&options.file)?).map_err(stored::refused)?;
    let change = |there: &StoredObjects| {
        let surplus = there.keys().filter(|name| options.prune && !put.put.contains_key(name));
        Ok(Change { remove: surplus.cloned().collect(), ..put.clone() })
    };
    stored::make(call, change, (options.dry_run, options.json))
}

/// Answers.
///
/// # Errors
/// Not the name of an object, or one that has to stay.
pub fn remove(call: &mut Call<'_>, options: &Remove) -> Result<Outcome, Exit> {
    let unknown = |why: String| Exit::new(exit::SETTINGS, why);
    let (kind, text) = match (Kind::find(&options.kind), &options.name) {
        (Some(kind), Some(name)) => (kind, name),
        (None, Some(_)) => {
            return Err(unknown(format!("{:?} is no kind of policies", options.kind)));
        }
        (Some(kind), None) => return Err(unknown(format!("no name of a {} is given", kind.name))),
        (None, None) => (policies().next().ok_or_else(|| unknown(String::new()))?, &options.kind),
    };
    let name = StoredName::parse(kind, text).map_err(unknown)?;
    let change = |there: &StoredObjects| {
        let others = policies().filter(|other| options.name.is_none() && *other != kind);
        let mut others = others.filter_map(|other| StoredName::parse(other, text).ok());
        match others.find(|other| there.contains_key(other)) {
            Some(other) => {
                Err(format!("there is {other}: say its kind: policy rm {} {text}", other.kind.name))
            }
            None => Ok(Change { remove: vec![name.clone()], ..Change::default() }),
        }
    };
    stored::make(call, change, (options.dry_run, options.json))
}

/// The kinds that are policies, that of groups first.
fn policies() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.name.ends_with("Policy"))
}

/// Answers.
///
/// # Errors
/// etcd does not answer.
pub fn export(call: &mut Call<'_>, _: &Export) -> Result<Outcome, Exit> {
    let (objects, problems) = stored::read_all(call)?;
    for problem in &problems {
        log::error!("{problem}");
    }
    let list = Value::Array(objects.into_values().collect());
    call.answer(false, problems.is_empty(), Value::Null, &format!("{list:#}"))
}
