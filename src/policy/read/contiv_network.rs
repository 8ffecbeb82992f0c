//! Pure. A network of Contiv as one of humanz.

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::net::{Family, subnet as subnets};
use crate::policy::name::Scoped;
use crate::policy::network::Networks;
use crate::policy::read::contiv_fields::{Fields, given, text};

/// Prefix lengths of blocks where they are not said, and of the smallest ones.
const BLOCKS: [(Family, &str, u8, u8); 2] =
    [(Family::V4, "v4", 26, 30), (Family::V6, "v6", 122, 126)];

/// Bits of the number of blocks that a small subnet is cut into at least.
const CUT: u8 = 2;

/// Blocks from which on hosts seldom have all of them.
const MANY: u32 = 64;

/// The fields of a network.
pub const FIELDS: [&str; 9] = [
    "networkName",
    "nwType",
    "encap",
    "subnet",
    "ipv6Subnet",
    "gateway",
    "ipv6Gateway",
    "pktTag",
    "cfgdTag",
];

/// What our object of it says; null: it is left out.
pub fn spec(name: &Scoped, fields: &Fields, notes: &mut Vec<String>) -> Result<Value, String> {
    if given(fields, "nwType").is_some_and(|kind| kind != "data") {
        notes.push("left out: it is of the hosts, which have their own addresses".to_owned());
        return Ok(Value::Null);
    }
    if *name == Networks::default_name() {
        return Err("this is the network of the settings (IP_SUBNET): give it another name".into());
    }
    let mut spec = json!({"subnets": []});
    for field in ["subnet", "ipv6Subnet"] {
        let Some(value) = given(fields, field) else { continue };
        let said = value.as_str().unwrap_or_default();
        let network = subnet(said);
        let network = network.ok_or_else(|| format!("{field}: {} is no subnet", text(value)))?;
        if said != network.to_string() {
            notes.push(format!("{field} {} is {network} here, all of it", text(value)));
        }
        add(&mut spec, network, notes)?;
    }
    for (field, why) in [
        ("gateway", "each block has its own"),
        ("ipv6Gateway", "each block has its own"),
        ("pktTag", "networks need no tag between hosts"),
        ("cfgdTag", "pods ask for the network by its name"),
    ] {
        let left_out = |it| format!("{field} {} is left out: {why}", text(it));
        notes.extend(given(fields, field).map(left_out));
    }
    Ok(spec)
}

/// Adds the subnet, in blocks of which it has some.
fn add(spec: &mut Value, network: IpNetwork, notes: &mut Vec<String>) -> Result<(), String> {
    let family = subnets::family(network);
    let known = BLOCKS.iter().find(|(of, ..)| *of == family);
    let &(_, field, default, smallest) = known.ok_or("no family")?;
    let block = default.max(network.prefix() + CUT);
    if block > smallest {
        return Err(format!("{network} is too small to be cut into blocks for hosts"));
    }
    if block != default {
        spec["blocks"][field] = json!(block);
    }
    let count = 1_u32.checked_shl((block - network.prefix()).into()).unwrap_or(u32::MAX);
    if count < MANY {
        notes.push(format!(
            "{network} has {count} blocks (/{block}): no more hosts have pods of it at a time; a wider one, or smaller blocks"
        ));
    }
    if let Some(all) = spec["subnets"].as_array_mut() {
        all.push(json!(network.to_string()));
    }
    Ok(())
}

/// `10.1.1.0/24`, also with host bits, or the subnet of `10.1.1.10-10.1.1.20/24`.
pub fn subnet(said: &str) -> Option<IpNetwork> {
    let (range, prefix) = said.split_once('/')?;
    let first = range.split_once('-').map_or(range, |(first, _)| first);
    let (address, prefix) = (first.parse().ok()?, prefix.parse().ok()?);
    Some(subnets::masked(IpNetwork::new(address, prefix).ok()?))
}
