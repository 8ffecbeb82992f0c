//! `profile`: how packets of the pods of a group or network are marked, and at which rates they send and receive.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::declare::create_and_set;
use crate::command::objects::edit::{Number, TypedOption};
use crate::command::objects::verbs::{ListObjects, ObjectKind, RemoveObject, ShowObject};
use crate::settings::exit::Exit;

const KIND: ObjectKind = ObjectKind {
    kind: "NetProfile",
    columns: &[
        ("DSCP", "dscp"),
        ("EGRESS", "egressRate"),
        ("BURST", "egressBurst"),
        ("INGRESS", "ingressRate"),
    ],
};

/// make, change, remove and show profiles (NetProfile)
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "profile",
    example = "{command_name} create blue/gold --dscp 46 --egress-rate 100M",
    example = "{command_name} set blue/gold --dscp 34",
    example = "{command_name} ls",
    example = "{command_name} show blue/gold",
    example = "{command_name} rm blue/gold",
    note = "A profile says how packets of the pods of a group or network are marked, and at which rates they send \
        and receive. The objects are in etcd, for all hosts.",
    error_code(1, "it is invalid or does not exist: nothing was changed"),
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

create_and_set! {
    /// make a profile. group set --profile and net set --profile give it to pods
    #[example = "{command_name} blue/gold --dscp 46"]
    ProfileCreate,
    /// change the given fields of a profile; the others stay. Running pods have it at once
    #[example = "{command_name} blue/gold --dscp 34"]
    ProfileSet,
    /// tenant/name (the tenant default without one)
    name,
    /// the DSCP of every IP packet that its pods send, 0 to 63; empty: as the pods say
    dscp: Option<Number> => "dscp",
    /// bits a second that a pod sends, such as 100M; empty: no limit
    egress_rate: Option<String> => "egressRate",
    /// bits that pass at once after a silence; empty: 20 ms of the rate
    egress_burst: Option<String> => "egressBurst",
    /// bits a second that a pod receives, such as 100M; empty: no limit
    ingress_rate: Option<String> => "ingressRate",
    /// bits that arrive at once after a silence; empty: 20 ms of the rate
    ingress_burst: Option<String> => "ingressBurst",
}

pub fn run(call: &mut Call<'_>, options: &ProfileCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        ProfileVerb::Create(options) => options.run(call),
        ProfileVerb::Set(options) => options.run(call),
        ProfileVerb::Remove(options) => KIND.remove(call, options),
        ProfileVerb::List(options) => KIND.list(call, options),
        ProfileVerb::Show(options) => KIND.show(call, options),
    }
}
