//! `group`: groups of pods.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::declare::create_and_set;
use crate::command::objects::edit::TypedOption;
use crate::command::objects::verbs::{ListObjects, ObjectKind, RemoveObject, ShowObject};
use crate::settings::exit::Exit;

const KIND: ObjectKind = ObjectKind {
    kind: "Group",
    columns: &[("POLICIES", "policies"), ("DEFAULT", "default"), ("PROFILE", "profile")],
};

/// make, change, remove and show groups of pods, to which policies are given
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "group",
    example = "{command_name} create blue/web --policies front",
    example = "{command_name} set blue/web --default deny --profile gold",
    example = "{command_name} ls",
    example = "{command_name} show blue/web",
    example = "{command_name} rm blue/web",
    note = "The objects are in etcd, for all hosts.",
    error_code(1, "it is invalid or does not exist: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct GroupCommand {
    #[argh(subcommand)]
    verb: GroupVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum GroupVerb {
    Create(GroupCreate),
    Set(GroupSet),
    Remove(RemoveObject),
    List(ListObjects),
    Show(ShowObject),
}

create_and_set! {
    /// make a group
    #[example = "{command_name} blue/web --policies front --default deny"]
    GroupCreate,
    /// change the given fields of a group; the others stay
    #[example = "{command_name} blue/web --policies="]
    GroupSet,
    /// tenant/name (the tenant default without one)
    name,
    /// a policy (GroupPolicy) of its tenant, again for more; all of them. --policies= for none
    policies: Vec<String> => "policies",
    /// what happens to that which no rule decides: allow or deny
    default: Option<String> => "default",
    /// the profile (NetProfile) of its pods: name or tenant/name; empty: none
    profile: Option<String> => "profile",
}

pub fn run(call: &mut Call<'_>, options: &GroupCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        GroupVerb::Create(options) => options.run(call),
        GroupVerb::Set(options) => options.run(call),
        GroupVerb::Remove(options) => KIND.remove(call, options),
        GroupVerb::List(options) => KIND.list(call, options),
        GroupVerb::Show(options) => KIND.show(call, options),
    }
}
