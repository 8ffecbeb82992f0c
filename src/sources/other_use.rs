//! Pure. Addresses that a change of networks gives another use, and the hosts that have blocks of them.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use crate::lease::blocks::held::HeldBlock;
use crate::net::gather::Gather;
use crate::net::subnet;
use crate::policy::network::NetworkPool;
use crate::policy::{Networks, Scoped, pin};

/// How long hosts keep a block without pods.
const WAIT: &str =
    "wait until the hosts have given the blocks back (BLOCK_RELEASE_AFTER, 10 minutes)";

/// Addresses of a network that are used otherwise afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherUse {
    network: Scoped,
    range: IpNetwork,
    becomes: Becomes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// No addresses of the network any more.
    Foreign,
    /// Addresses of the network, which they have not been.
    Own,
    /// Addresses that pods have by name alone.
    Pinned,
}

/// What is used otherwise in `after` than in `before`.
pub fn other_uses(before: &Networks, after: &Networks) -> Vec<OtherUse> {
    let pools = |networks: &Networks| -> BTreeSet<(Scoped, IpNetwork)> {
        let all = networks.iter();
        all.flat_map(|(name, it)| it.networks().map(move |pool| (name.clone(), pool))).gather()
    };
    let pins = |networks: &Networks| -> BTreeSet<(Scoped, IpNetwork)> {
        networks.pin_ranges().map(|(name, range)| (name.clone(), range)).gather()
    };
    let new = |had: BTreeSet<_>, has: BTreeSet<_>, becomes: Becomes| {
        let new = has.difference(&had).cloned().collect::<Vec<(Scoped, IpNetwork)>>();
        new.into_iter().map(move |(network, range)| OtherUse { network, range, becomes })
    };
    new(pools(after), pools(before), Becomes::Foreign)
        .filter(|it| !it.is_widened(before, after))
        .chain(new(pools(before), pools(after), Becomes::Own))
        .chain(new(pins(before), pins(after), Becomes::Pinned))
        .collect()
}

impl OtherUse {
    /// The network has these addresses afterwards, too, and more, in blocks of the same size.
    fn is_widened(&self, before: &Networks, after: &Networks) -> bool {
        let pool = |networks: &Networks| -> Option<NetworkPool> {
            networks.get(&self.network)?.pools.get(subnet::family(self.range)).copied()
        };
        pool(before).zip(pool(after)).is_some_and(|(before, after)| {
            let blocks = [before, after].map(|pool| pool.pool().host_prefix());
            subnet::contains(after.network(), self.range) && blocks[0] == blocks[1]
        })
    }

    /// Why that cannot be while hosts have `blocks`; `None`: it can.
    pub fn refused(&self, blocks: &[HeldBlock]) -> Option<String> {
        let OtherUse { network, range, becomes } = self;
        let in_the_way: Vec<&HeldBlock> = blocks.iter().filter(|it| self.is_hurt(it)).collect();
        let first = in_the_way.first()?;
        let hosts: BTreeSet<&str> = in_the_way.iter().map(|it| it.host.as_str()).gather();
        let hosts = hosts.into_iter().collect::<Vec<_>>().join(", ");
        Some(match becomes {
            Becomes::Foreign => {
                format!(
                    "Network {network}: hosts have blocks of {range} ({hosts}): end its pods, and {WAIT}"
                )
            }
            Becomes::Own => format!(
                "Network {network}: hosts have blocks of {range} ({hosts}), as {} of network {}: end the pods there, \
                 and {WAIT}",
                first.block, first.network
            ),
            Becomes::Pinned => format!(
                "Network {network}: hosts have blocks in {range} for any pods ({hosts}), as {}: keep another part for \
                 pins, or end the pods there, and {WAIT}",
                first.block
            ),
        })
    }

    /// A host has that block, which would be another one afterwards.
    fn is_hurt(&self, held: &HeldBlock) -> bool {
        let is_there = subnet::overlap(self.range, held.block);
        is_there
            && match self.becomes {
                Becomes::Foreign => true,
                // Its object was gone, and comes back.
                Becomes::Own => *held.network != *self.network.to_string(),
                Becomes::Pinned => !pin::is_block_of_one(held.block),
            }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::lease::records::Roots;
    use crate::policy::read::documents;

    /// Networks by name and spec.
    fn networks(all: &[(&str, Value)]) -> Networks {
        let object = |(name, spec): &(&str, Value)| {
            let (tenant, name) = name.split_once('/').unwrap();
            json!({"apiVersion": "humanz.io/v1", "kind": "Network",
                "metadata": {"tenant": tenant, "name": name}, "spec": spec})
        };
        let read = documents::read(&all.iter().map(object).collect::<Vec<_>>(), true);
        assert_eq!(read.problems, []);
        read.networks
    }

    /// Why `blue/front`, whose hosts have these blocks for these networks, does not become as `after`.
    fn refused(blocks: &[(&str, &str)], before: Option<Value>, after: &[(&str, Value)]) -> String {
        let roots = Roots { hosts: "/h".into(), counter: "/c".into(), humanz: "/z".into() };
        let held = |(key, network): &(&str, &str)| {
            let key = format!("/z-blocks/{key}");
            HeldBlock::read(&roots, key.as_bytes(), network.as_bytes()).unwrap()
        };
        let held: Vec<HeldBlock> = blocks.iter().map(held).collect();
        let before: Vec<_> = before.into_iter().map(|spec| ("blue/front", spec)).collect();
        let uses = other_uses(&networks(&before), &networks(after));
        uses.iter().filter_map(|it| it.refused(&held)).collect::<Vec<_>>().join("; ")
    }

    fn both() -> Value {
        json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"]})
    }

    const HELD: (&str, &str) = ("h1/10.32.0.64-26", "blue/front");

    #[test]
    fn a_network_that_hosts_have_blocks_of_keeps_its_addresses() {
        let to = |spec: Value| refused(&[HELD], Some(both()), &[("blue/front", spec)]);
        assert_eq!(to(json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"], "shared": true})), "");
        assert_eq!(to(json!({"subnets": ["10.32.0.0/16"]})), "", "no network has IPv6");
        let wider = |block: u8| json!({"subnets": ["10.32.0.0/15", "fd00:32::/64"], "blocks": {"v4": block}});
        assert_eq!(to(wider(26)), "", "it takes no address");
        assert!(to(wider(25)).contains("hosts have blocks of 10.32.0.0/16 (h1): end"));
        for other in ["10.33.0.0/16", "10.32.0.0/17"] {
            let refused = to(json!({"subnets": [other]}));
            assert!(refused.contains("hosts have blocks of 10.32.0.0/16 (h1): end"), "{refused}");
        }
        assert!(refused(&[HELD], Some(both()), &[]).contains("10.32.0.0/16 (h1)"));
    }

    #[test]
    fn addresses_that_hosts_have_for_any_pods_are_not_kept_for_pins() {
        let pins =
            |pins: &[&str]| json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"], "pins": pins});
        let to = |kept: &[&str]| refused(&[HELD], Some(both()), &[("blue/front", pins(kept))]);
        assert_eq!(to(&["10.32.255.0/24", "fd00:32::ffff:0/112"]), "");
        for over in ["10.32.0.64/26", "10.32.0.0/24", "10.32.0.112/28"] {
            let refused = to(&[over]);
            let wanted = format!("hosts have blocks in {over} for any pods (h1), as 10.32.0.64/26");
            assert!(refused.contains(&wanted), "{refused}");
        }
        // Pods with fixed addresses are there, and stay.
        let pinned = ("h1/10.32.255.4-30", "blue/front");
        let wider = &[("blue/front", pins(&["10.32.254.0/23"]))];
        assert_eq!(refused(&[HELD, pinned], Some(pins(&["10.32.255.0/24"])), wider), "");
        let cut = ("h2/10.32.254.0-26", "blue/front");
        let refused = refused(&[cut, pinned], Some(pins(&["10.32.255.0/24"])), wider);
        assert!(refused.contains("(h2), as 10.32.254.0/26"), "{refused}");
    }

    #[test]
    fn pods_of_a_network_that_is_gone_come_into_no_other_one() {
        let other = [("red/other", json!({"subnets": ["10.32.0.0/17"]}))];
        let refused_with = refused(&[HELD, ("h2/10.32.1.0-26", "-")], None, &other);
        assert!(
            refused_with.contains("(h1, h2), as 10.32.0.64/26 of network blue/front: end the pods"),
            "{refused_with}"
        );
        let wide = json!({"subnets": ["10.0.0.0/8"]});
        assert!(refused(&[HELD], None, &[("red/wide", wide)]).contains("of network blue/front"));
        let within = json!({"subnets": ["10.32.0.64/27"], "blocks": {"v4": 30}});
        assert!(refused(&[HELD], None, &[("red/in", within)]).contains("of network blue/front"));
        assert_eq!(refused(&[HELD], None, &[("blue/front", both())]), "", "it comes back");
        let hostile = refused(&[("h1/10.32.0.64-26", "blue\u{1b}[2J\nfront")], None, &other);
        assert!(!hostile.contains(['\u{1b}', '\n']), "{hostile:?}");
    }
}
