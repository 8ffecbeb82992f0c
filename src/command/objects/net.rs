//! `net`: networks of tenants.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::{self, SpecFields, YesNo};
use crate::command::objects::verbs::{ListObjects, ObjectKind, RemoveObject, ShowObject};
use crate::settings::exit::Exit;

const KIND: ObjectKind =
    ObjectKind { kind: "Network", columns: &[("SUBNETS", "subnets"), ("SHARED", "shared")] };

/// make, change, remove and show networks of tenants: where their pods have addresses, and which tenants they are
/// kept apart from. In etcd, for all hosts
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "net",
    example = "{command_name} create blue/front --cidr 10.32.0.0/16",
    example = "{command_name} set blue/front --shared yes",
    example = "{command_name} ls",
    example = "{command_name} show blue/front",
    example = "{command_name} rm blue/front",
    error_code(1, "it cannot be, or is not there: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct NetCommand {
    #[argh(subcommand)]
    verb: NetVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum NetVerb {
    Create(NetCreate),
    Set(NetSet),
    Remove(RemoveObject),
    List(ListObjects),
    Show(ShowObject),
}

/// make a network
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "create",
    example = "{command_name} blue/front --cidr 10.32.0.0/16 --cidr fd00:32::/64",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct NetCreate {
    /// tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// a subnet, IPv4 or IPv6, again for more; all of them
    #[argh(option)]
    cidr: Vec<String>,
    /// whether all tenants reach it: yes or no
    #[argh(option)]
    shared: Option<YesNo>,
    /// the part of a subnet that pods have addresses of by name alone (pin), again for the other family; all of them. --pins= for none
    #[argh(option)]
    pins: Vec<String>,
    /// prefix length of the IPv4 blocks that hosts take of it; empty: 26
    #[argh(option)]
    block_v4: Option<String>,
    /// prefix length of the IPv6 blocks that hosts take of it; empty: 122
    #[argh(option)]
    block_v6: Option<String>,
    /// bytes of a packet of its pods, from 1280; empty: as the bridge
    #[argh(option)]
    pod_mtu: Option<String>,
    /// whether its pods reach what is outside the cluster by the address of the node: yes or no
    #[argh(option)]
    nat: Option<YesNo>,
    /// whether its pods may have host ports: yes or no
    #[argh(option)]
    host_ports: Option<YesNo>,
    /// the profile (NetProfile) of its pods whose group has none: name or tenant/name; empty: none
    #[argh(option)]
    profile: Option<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// change what is given of a network; the rest stays
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "set",
    example = "{command_name} blue/front --shared yes",
    error_code(1, "it cannot be: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct NetSet {
    /// tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// a subnet, IPv4 or IPv6, again for more; all of them
    #[argh(option)]
    cidr: Vec<String>,
    /// whether all tenants reach it: yes or no
    #[argh(option)]
    shared: Option<YesNo>,
    /// the part of a subnet that pods have addresses of by name alone (pin), again for the other family; all of them. --pins= for none
    #[argh(option)]
    pins: Vec<String>,
    /// prefix length of the IPv4 blocks that hosts take of it; empty: 26
    #[argh(option)]
    block_v4: Option<String>,
    /// prefix length of the IPv6 blocks that hosts take of it; empty: 122
    #[argh(option)]
    block_v6: Option<String>,
    /// bytes of a packet of its pods, from 1280; empty: as the bridge
    #[argh(option)]
    pod_mtu: Option<String>,
    /// whether its pods reach what is outside the cluster by the address of the node: yes or no
    #[argh(option)]
    nat: Option<YesNo>,
    /// whether its pods may have host ports: yes or no
    #[argh(option)]
    host_ports: Option<YesNo>,
    /// the profile (NetProfile) of its pods whose group has none: name or tenant/name; empty: none
    #[argh(option)]
    profile: Option<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &NetCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        NetVerb::Create(options) => {
            let NetCreate { block_v4, block_v6, pod_mtu, profile, .. } = options;
            let texts = [block_v4, block_v6, pod_mtu, profile];
            let flags = [options.nat, options.shared, options.host_ports];
            let fields = fields([&options.cidr, &options.pins], texts, flags);
            KIND.create(call, &options.name, &fields, (options.dry_run, options.json))
        }
        NetVerb::Set(options) => {
            let NetSet { block_v4, block_v6, pod_mtu, profile, .. } = options;
            let texts = [block_v4, block_v6, pod_mtu, profile];
            let flags = [options.nat, options.shared, options.host_ports];
            let fields = fields([&options.cidr, &options.pins], texts, flags);
            KIND.set(call, &options.name, &fields, (options.dry_run, options.json))
        }
        NetVerb::Remove(options) => KIND.remove(call, options),
        NetVerb::List(options) => KIND.list(call, options),
        NetVerb::Show(options) => KIND.show(call, options),
    }
}

const TEXTS: [&str; 4] = ["blocks.v4", "blocks.v6", "mtu", "profile"];
const FLAGS: [&str; 3] = ["nat", "shared", "hostPorts"];

fn fields(
    [cidrs, pins]: [&[String]; 2],
    texts: [&Option<String>; 4],
    flags: [Option<YesNo>; 3],
) -> SpecFields {
    let texts = TEXTS.into_iter().zip(texts);
    let texts = texts.flat_map(|(field, typed)| edit::text(field, typed.as_ref()));
    let flags = FLAGS.into_iter().zip(flags).flat_map(|(field, typed)| edit::flag(field, typed));
    let lists = [edit::list("subnets", cidrs), edit::list("pins", pins)].concat();
    lists.into_iter().chain(texts).chain(flags).collect()
}
