//! `group`: groups of pods.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::{self, SpecFields};
use crate::command::objects::verbs::{ListObjects, ObjectKind, RemoveObject, ShowObject};
use crate::settings::exit::Exit;

const KIND: ObjectKind = ObjectKind {
    kind: "Group",
    columns: &[("POLICIES", "policies"), ("DEFAULT", "default"), ("PROFILE", "profile")],
};

/// make, change, remove and show groups of pods, to which policies are given. In etcd, for all hosts
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "group",
    example = "{command_name} create blue/web --policies front",
    example = "{command_name} set blue/web --default deny --profile gold",
    example = "{command_name} ls",
    example = "{command_name} show blue/web",
    example = "{command_name} rm blue/web",
    error_code(1, "it cannot be, or is not there: nothing was changed"),
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

/// make a group
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "create",
    example = "{command_name} blue/web --policies front --default deny",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct GroupCreate {
    /// tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// a policy (GroupPolicy) of its tenant, again for more; all of them. --policies= for none
    #[argh(option)]
    policies: Vec<String>,
    /// what happens to that which no rule decides: allow or deny
    #[argh(option)]
    default: Option<String>,
    /// the profile (NetProfile) of its pods: name or tenant/name; empty: none
    #[argh(option)]
    profile: Option<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// change what is given of a group; the rest stays
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "set",
    example = "{command_name} blue/web --policies=",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct GroupSet {
    /// tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// a policy (GroupPolicy) of its tenant, again for more; all of them. --policies= for none
    #[argh(option)]
    policies: Vec<String>,
    /// what happens to that which no rule decides: allow or deny
    #[argh(option)]
    default: Option<String>,
    /// the profile (NetProfile) of its pods: name or tenant/name; empty: none
    #[argh(option)]
    profile: Option<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &GroupCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        GroupVerb::Create(options) => {
            let (default, profile) = (options.default.as_ref(), options.profile.as_ref());
            let fields = fields(&options.policies, default, profile);
            KIND.create(call, &options.name, &fields, (options.dry_run, options.json))
        }
        GroupVerb::Set(options) => {
            let (default, profile) = (options.default.as_ref(), options.profile.as_ref());
            let fields = fields(&options.policies, default, profile);
            KIND.set(call, &options.name, &fields, (options.dry_run, options.json))
        }
        GroupVerb::Remove(options) => KIND.remove(call, options),
        GroupVerb::List(options) => KIND.list(call, options),
        GroupVerb::Show(options) => KIND.show(call, options),
    }
}

fn fields(policies: &[String], default: Option<&String>, profile: Option<&String>) -> SpecFields {
    let policies = edit::list("policies", policies);
    [policies, edit::text("default", default), edit::text("profile", profile)].concat()
}
