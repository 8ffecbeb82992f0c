//! `profile`: how packets of the pods of a group or network are marked, and at which rate they send.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::{self, SpecFields};
use crate::command::objects::verbs::{ListObjects, ObjectKind, RemoveObject, ShowObject};
use crate::settings::exit::Exit;

const KIND: ObjectKind = ObjectKind {
    kind: "NetProfile",
    columns: &[("DSCP", "dscp"), ("EGRESS", "egressRate"), ("BURST", "egressBurst")],
};

/// make, change, remove and show profiles (NetProfile): how packets of the pods of a group or network are
/// marked, and at which rate they send. In etcd, for all hosts
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "profile",
    example = "{command_name} create blue/gold --dscp 46 --egress-rate 100M",
    example = "{command_name} set blue/gold --dscp 34",
    example = "{command_name} ls",
    example = "{command_name} show blue/gold",
    example = "{command_name} rm blue/gold",
    error_code(1, "it cannot be, or is not there: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct ProfileCommand {
    #[argh(subcommand)]
    verb: ProfileVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum ProfileVerb {
    Create(ProfileCreate),
    Set(ProfileSet),
    Remove(RemoveObject),
    List(ListObjects),
    Show(ShowObject),
}

/// make a profile. group set --profile and net set --profile give it to pods
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "create",
    example = "{command_name} blue/gold --dscp 46",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct ProfileCreate {
    /// tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// the DSCP of every IP packet that its pods send, 0 to 63; empty: as the pods say
    #[argh(option)]
    dscp: Option<String>,
    /// bits a second that a pod sends, such as 100M; empty: no limit
    #[argh(option)]
    egress_rate: Option<String>,
    /// bits that pass at once after a silence; empty: 20 ms of the rate
    #[argh(option)]
    egress_burst: Option<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// change what is given of a profile; the rest stays. Running pods have it at once
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "set",
    example = "{command_name} blue/gold --dscp 34",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct ProfileSet {
    /// tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// the DSCP of every IP packet that its pods send, 0 to 63; empty: as the pods say
    #[argh(option)]
    dscp: Option<String>,
    /// bits a second that a pod sends, such as 100M; empty: no limit
    #[argh(option)]
    egress_rate: Option<String>,
    /// bits that pass at once after a silence; empty: 20 ms of the rate
    #[argh(option)]
    egress_burst: Option<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &ProfileCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        ProfileVerb::Create(options) => {
            let (rate, burst) = (options.egress_rate.as_ref(), options.egress_burst.as_ref());
            let fields = fields(options.dscp.as_ref(), rate, burst);
            KIND.create(call, &options.name, &fields, (options.dry_run, options.json))
        }
        ProfileVerb::Set(options) => {
            let (rate, burst) = (options.egress_rate.as_ref(), options.egress_burst.as_ref());
            let fields = fields(options.dscp.as_ref(), rate, burst);
            KIND.set(call, &options.name, &fields, (options.dry_run, options.json))
        }
        ProfileVerb::Remove(options) => KIND.remove(call, options),
        ProfileVerb::List(options) => KIND.list(call, options),
        ProfileVerb::Show(options) => KIND.show(call, options),
    }
}

fn fields(dscp: Option<&String>, rate: Option<&String>, burst: Option<&String>) -> SpecFields {
    let rate = edit::text("egressRate", rate);
    [edit::text("dscp", dscp), rate, edit::text("egressBurst", burst)].concat()
}
