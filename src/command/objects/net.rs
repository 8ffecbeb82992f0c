//! `net`: networks of tenants.

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::objects::declare::create_and_set;
use crate::command::objects::edit::{Number, PrefixLength, TypedOption, YesNo};
use crate::command::objects::verbs::{ListObjects, ObjectKind, RemoveObject, ShowObject};
use crate::settings::exit::Exit;

const KIND: ObjectKind =
    ObjectKind { kind: "Network", columns: &[("SUBNETS", "subnets"), ("SHARED", "shared")] };

/// make, change, remove and show networks of tenants
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "net",
    example = "{command_name} create blue/front --cidr 10.32.0.0/16 --pins 10.32.255.0/24",
    example = "{command_name} set blue/front --shared yes",
    example = "{command_name} ls",
    example = "{command_name} show blue/front",
    example = "{command_name} rm blue/front",
    note = "A network says where its pods have addresses, and which tenants they are kept apart from. The objects \
        are in etcd, for all hosts.",
    error_code(1, "it is invalid or does not exist: nothing was changed"),
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

create_and_set! {
    /// make a network
    #[example = "{command_name} blue/front --cidr 10.32.0.0/16 --cidr fd00:32::/64"]
    NetCreate,
    /// change the given fields of a network; the others stay
    #[example = "{command_name} blue/front --shared yes"]
    NetSet,
    /// tenant/name (the tenant default without one)
    name,
    /// a subnet, IPv4 or IPv6, again for more; all of them
    cidr: Vec<String> => "subnets",
    /// whether all tenants reach it: yes or no
    shared: Option<YesNo> => "shared",
    /// the part of a subnet that pods have addresses of by name alone (pin), again for the other family; all of them. --pins= for none
    pins: Vec<String> => "pins",
    /// prefix length of the IPv4 blocks that hosts take of it; empty: 26
    block_v4: Option<PrefixLength> => "blocks.v4",
    /// prefix length of the IPv6 blocks that hosts take of it; empty: 122
    block_v6: Option<PrefixLength> => "blocks.v6",
    /// bytes of a packet of its pods, from 1280; empty: as the bridge
    pod_mtu: Option<Number> => "mtu",
    /// whether its pods reach what is outside the cluster by the address of the node: yes or no
    nat: Option<YesNo> => "nat",
    /// whether its pods may have host ports: yes or no
    host_ports: Option<YesNo> => "hostPorts",
    /// the profile (NetProfile) of its pods whose group has none: name or tenant/name; empty: none
    profile: Option<String> => "profile",
}

pub fn run(call: &mut Call<'_>, options: &NetCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        NetVerb::Create(options) => options.run(call),
        NetVerb::Set(options) => options.run(call),
        NetVerb::Remove(options) => KIND.remove(call, options),
        NetVerb::List(options) => KIND.list(call, options),
        NetVerb::Show(options) => KIND.show(call, options),
    }
}
