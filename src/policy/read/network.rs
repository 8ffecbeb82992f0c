//! Pure. A network of a tenant as its object says it.

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::net::{Family, PerFamily, subnet};
use crate::policy::name::Scoped;
use crate::policy::network::{NetworkPool, Networks, TenantNetwork};
use crate::policy::pin;
use crate::policy::read::fields::{Fault, ObjectField};

/// IPv6 needs no less (RFC 8200), and pods of both families have one MTU.
const SMALLEST_MTU: u16 = 1280;

/// Where the object says nothing: 62 pods for each block.
const BLOCKS: [(Family, u8); 2] = [(Family::V4, 26), (Family::V6, 122)];

/// The network `name`.
///
/// ```json
/// {"subnets": ["10.32.0.0/16", "fd00:32::/64"], "blocks": {"v4": 26, "v6": 122}, "mtu": 1400,
///  "pins": ["10.32.255.0/24"], "nat": true, "shared": false, "hostPorts": true, "profile": "gold"}
/// ```
///
/// `subnets`: one for each family that its pods have; `blocks`: prefix lengths of what a host has of them; `pins`: the part
/// of a subnet that pods have addresses of by name alone;
/// `profile` is read by [`crate::policy::read::documents`]. The network of the settings has `shared` and
/// `profile` alone. Numbers behind `subnets` are the defaults, but for `mtu`: that of
/// the bridge.
///
/// # Errors
/// A field that is not understood, or addresses that no pod can have.
pub fn read(name: &Scoped, spec: &Value) -> Result<TenantNetwork, Fault> {
    let spec = ObjectField::root(spec);
    if *name == Networks::default_name() {
        spec.only(&["shared", "profile", "schema"])?;
    } else {
        spec.only(&[
            "subnets",
            "blocks",
            "pins",
            "mtu",
            "nat",
            "shared",
            "hostPorts",
            "profile",
            "schema",
        ])?;
    }
    let flag = |name, default| spec.get(name).map_or(Ok(default), |field| field.flag());
    let mtu = spec.get("mtu").map(|field| field.number(SMALLEST_MTU..=u16::MAX)).transpose()?;
    let pools = match *name == Networks::default_name() {
        true => PerFamily::default(),
        false => pools(&spec)?,
    };
    Ok(TenantNetwork {
        pins: pins(&spec, &pools)?,
        pools,
        mtu,
        nat: flag("nat", true)?,
        shared: flag("shared", false)?,
        host_ports: flag("hostPorts", true)?,
    })
}

fn pools(spec: &ObjectField<'_>) -> Result<PerFamily<NetworkPool>, Fault> {
    let blocks = spec.get("blocks");
    blocks.as_ref().map_or(Ok(()), |blocks| blocks.only(&["v4", "v6"]))?;
    let prefix = |of: Family| {
        let field = blocks.as_ref().and_then(|blocks| match of {
            Family::V4 => blocks.get("v4"),
            Family::V6 => blocks.get("v6"),
        });
        let default =
            BLOCKS.iter().find(|(family, _)| *family == of).map_or(0, |(_, prefix)| *prefix);
        let number = field.map(|field| field.number(1..=of.bits().into())).transpose()?;
        Ok(number.map_or(default, |number| u8::try_from(number).unwrap_or(u8::MAX)))
    };
    let mut pools = PerFamily::default();
    let subnets = spec.list("subnets")?;
    for field in &subnets {
        let network =
            subnet::parse(field.text()?).map_err(|error| field.fault(error.to_string()))?;
        if let Some(why) = subnet::unfit(network) {
            return Err(field.fault(why));
        }
        let family = subnet::family(network);
        let block = prefix(family)?;
        let pool = NetworkPool::new(network, block).map_err(|error| match network.prefix() < block {
            true => field.fault(error.to_string()),
            false => field.fault(format!(
                "{network} is not wider than a block of it (/{block}): give a wider one, or smaller blocks (blocks; \
                 --block-v4, --block-v6 of net create)"
            )),
        })?;
        if pools.get(family).is_some() {
            return Err(
                field.fault(format!("is a second {family} subnet: give another network to it"))
            );
        }
        pools.set(family, Some(pool));
    }
    if pools.is_empty() {
        return Err(spec.fault("subnets is missing"));
    }
    Ok(pools)
}

fn pins(
    spec: &ObjectField<'_>,
    pools: &PerFamily<NetworkPool>,
) -> Result<PerFamily<IpNetwork>, Fault> {
    let mut pins = PerFamily::default();
    for field in &spec.list("pins")? {
        let range = subnet::parse(field.text()?).map_err(|error| field.fault(error.to_string()))?;
        let family = subnet::family(range);
        let pool = pools.get(family).map(NetworkPool::network);
        if !pool.is_some_and(|pool| pin::fits(pool, range)) {
            return Err(field.fault("must be a part of a subnet, with four addresses or more"));
        }
        if pins.get(family).is_some() {
            return Err(field.fault(format!("is a second {family} part for pins")));
        }
        pins.set(family, Some(range));
    }
    Ok(pins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_as(name: &str, spec: &Value) -> Result<TenantNetwork, String> {
        let name = Scoped { tenant: "default".parse().unwrap(), name: name.parse().unwrap() };
        read(&name, spec).map_err(|fault| fault.to_string())
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let read = read_as("front", &json!({"subnets": ["10.1.0.0/16", "fd00:1::/64"]})).unwrap();
        let blocks: Vec<u8> = read.pools.iter().map(|pool| pool.pool().host_prefix()).collect();
        assert_eq!(blocks, [26, 122]);
        assert!(read.nat && read.host_ports && !read.shared && read.mtu.is_none());
        let own = read_as("default", &json!({"shared": true})).unwrap();
        assert!(own.shared && own.pools.is_empty());
    }

    #[test]
    fn what_no_pod_could_use_is_refused_with_its_field() {
        for (spec, why) in [
            (json!({}), "subnets is missing"),
            (json!("text"), "must be an object"),
            (json!({"subnets": ["10.1.0.0"]}), "subnets[0]: \"10.1.0.0\" is not a subnet"),
            (json!({"subnets": ["10.1.2.0/16"]}), "the subnet is 10.1.0.0/16"),
            (json!({"subnets": ["127.0.0.0/16"]}), "is every host's own"),
            (json!({"subnets": ["10.1.0.0/16", "10.2.0.0/16"]}), "is a second IPv4 subnet"),
            (json!({"subnets": ["10.1.0.0/16"], "blocks": {"v4": 31}}), "/30 or wider"),
            (
                json!({"subnets": ["10.1.0.0/28"]}),
                "10.1.0.0/28 is not wider than a block of it (/26)",
            ),
            (json!({"subnets": ["10.1.0.0/26"]}), "give a wider one, or smaller blocks"),
            (json!({"subnets": ["10.1.0.0/16"], "blocks": {"v5": 31}}), "\"v5\" is not known"),
            (
                json!({"subnets": ["10.1.0.0/16"], "pins": ["10.1.0.0/16"]}),
                "must be a part of a subnet",
            ),
            (
                json!({"subnets": ["10.1.0.0/16"], "pins": ["10.2.0.0/24"]}),
                "must be a part of a subnet",
            ),
            (json!({"subnets": ["10.1.0.0/16"], "pins": ["10.1.0.0/31"]}), "with four addresses"),
            (
                json!({"subnets": ["10.1.0.0/16"], "pins": ["fd00::/64"]}),
                "must be a part of a subnet",
            ),
            (
                json!({"subnets": ["10.1.0.0/16"], "pins": ["10.1.0.0/24", "10.1.1.0/24"]}),
                "is a second IPv4 part",
            ),
            (json!({"subnets": ["10.1.0.0/16"], "mtu": 500}), "mtu: must be a number from 1280"),
            (json!({"subnets": ["10.1.0.0/16"], "shared": "yes"}), "shared: must be true or false"),
        ] {
            let refused = read_as("front", &spec).unwrap_err();
            assert!(refused.contains(why), "{spec}: {refused}");
        }
        let own = read_as("default", &json!({"subnets": ["10.1.0.0/16"]})).unwrap_err();
        assert!(own.contains("\"subnets\" is not known"), "{own}");
    }
}
