//! `ns`: the tenant, group and network of the pods of a namespace.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::{self, SpecFields};
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
/// themselves (NamespaceRule). In etcd, for all hosts
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ns",
    example = "{command_name} create shop --tenant blue --group web",
    example = "{command_name} set shop --allow db",
    example = "{command_name} ls",
    example = "{command_name} show shop",
    example = "{command_name} rm shop",
    error_code(1, "it cannot be, or is not there: nothing was changed"),
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

/// make the rule of a namespace
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "create",
    example = "{command_name} shop --tenant blue --group web",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct NamespaceCreate {
    /// the namespace
    #[argh(positional)]
    name: String,
    /// the tenant of names without one; empty: default
    #[argh(option)]
    tenant: Option<String>,
    /// the group of its pods: name or tenant/name; empty: none
    #[argh(option)]
    group: Option<String>,
    /// the network of its pods: name or tenant/name; empty: default
    #[argh(option)]
    network: Option<String>,
    /// what its pods may ask for: name, tenant/name, or * for all of the tenant; again for more, all of them. --allow= for nothing
    #[argh(option)]
    allow: Vec<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// change what is given of the rule of a namespace; the rest stays
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "set",
    example = "{command_name} shop --allow db --allow green/web",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct NamespaceSet {
    /// the namespace
    #[argh(positional)]
    name: String,
    /// the tenant of names without one; empty: default
    #[argh(option)]
    tenant: Option<String>,
    /// the group of its pods: name or tenant/name; empty: none
    #[argh(option)]
    group: Option<String>,
    /// the network of its pods: name or tenant/name; empty: default
    #[argh(option)]
    network: Option<String>,
    /// what its pods may ask for: name, tenant/name, or * for all of the tenant; again for more, all of them. --allow= for nothing
    #[argh(option)]
    allow: Vec<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &NamespaceCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        NamespaceVerb::Create(options) => {
            let fields = fields(
                options.tenant.as_ref(),
                options.group.as_ref(),
                options.network.as_ref(),
                &options.allow,
            );
            KIND.create(call, &options.name, &fields, (options.dry_run, options.json))
        }
        NamespaceVerb::Set(options) => {
            let fields = fields(
                options.tenant.as_ref(),
                options.group.as_ref(),
                options.network.as_ref(),
                &options.allow,
            );
            KIND.set(call, &options.name, &fields, (options.dry_run, options.json))
        }
        NamespaceVerb::Remove(options) => KIND.remove(call, options),
        NamespaceVerb::List(options) => KIND.list(call, options),
        NamespaceVerb::Show(options) => KIND.show(call, options),
    }
}

fn fields(
    tenant: Option<&String>,
    group: Option<&String>,
    network: Option<&String>,
    allow: &[String],
) -> SpecFields {
    [
        edit::text("tenant", tenant),
        edit::text("group", group),
        edit::text("network", network),
        edit::list("allow", allow),
    ]
    .concat()
}
