//! `ns`: the tenant, group and network of the pods of a namespace.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::declare::create_and_set;
use crate::command::objects::edit::TypedOption;
use crate::command::objects::verbs::{ListObjects, ObjectKind, RemoveObject, ShowObject};
use crate::settings::exit::Exit;

const KIND: ObjectKind = ObjectKind {
    kind: "NamespaceRule",
    columns: &[
        ("TENANT", "tenant"),
        ("GROUP", "group"),
        ("NETWORK", "network"),
        ("ALLOW", "allow"),
    ],
};

/// say which tenant, group and network the pods of a namespace belong to, and which ones they may ask for
/// themselves (NamespaceRule)
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ns",
    example = "{command_name} create shop --tenant blue --group web",
    example = "{command_name} set shop --allow db",
    example = "{command_name} ls",
    example = "{command_name} show shop",
    example = "{command_name} rm shop",
    note = "The objects are in etcd, for all hosts.",
    error_code(1, "it is invalid or does not exist: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct NamespaceCommand {
    #[argh(subcommand)]
    verb: NamespaceVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum NamespaceVerb {
    Create(NamespaceCreate),
    Set(NamespaceSet),
    Remove(RemoveObject),
    List(ListObjects),
    Show(ShowObject),
}

create_and_set! {
    /// make the rule of a namespace
    #[example = "{command_name} shop --tenant blue --group web"]
    NamespaceCreate,
    /// change the given fields of the rule of a namespace; the others stay
    #[example = "{command_name} shop --allow db --allow green/web"]
    NamespaceSet,
    /// the namespace
    name,
    /// the tenant of names without one; empty: default
    tenant: Option<String> => "tenant",
    /// the group of its pods: name or tenant/name; empty: none
    group: Option<String> => "group",
    /// the network of its pods: name or tenant/name; empty: default
    network: Option<String> => "network",
    /// what its pods may ask for: name, tenant/name, or * for all of the tenant; again for more, all of them. --allow= for nothing
    allow: Vec<String> => "allow",
}

pub fn run(call: &mut Call<'_>, options: &NamespaceCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        NamespaceVerb::Create(options) => options.run(call),
        NamespaceVerb::Set(options) => options.run(call),
        NamespaceVerb::Remove(options) => KIND.remove(call, options),
        NamespaceVerb::List(options) => KIND.list(call, options),
        NamespaceVerb::Show(options) => KIND.show(call, options),
    }
}
