//! Pure. Fixed addresses of pods.
//!
//! A pinned pod has a block of its own, of four addresses: the second is its gateway, the third its own. Such a
//! block lies in a part of the network that is kept for pins, where no host cuts other blocks. It is leased as every
//! block is, and moves with the pod.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::net::subnet::{self, contains, masked, offset, with_prefix};
use crate::net::{Family, Object, Problem, ProblemKind};
use crate::policy::name::{PodName, Scoped};
use crate::policy::network::Networks;

/// Prefix bits of a host's address that a pinned pod's block lacks.
const HOST_BITS: u8 = 2;

/// Its place among the four.
const PLACE: u128 = 2;

/// Pods of a full range that are listed.
const NAMED: usize = 4;

/// An address that a pod has wherever it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedAddress {
    pub network: Scoped,
    pub address: IpAddr,
}

/// Why a pod has not the addresses that are said of it: it does not start with others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinFault {
    #[error("its value in etcd is not understood")]
    Unread,
    #[error("{0} lies in no part of a network that is kept for pins")]
    Outside(IpAddr),
    #[error("{0} is not the third of four addresses, which a pinned pod has for itself: {1} is")]
    Place(IpAddr, IpAddr),
    #[error("{0} is a second {1} address in network {2}")]
    Second(IpAddr, Family, Scoped),
    #[error("{0} is pinned to pod {1}, too")]
    Taken(IpAddr, PodName),
}

impl PinnedAddress {
    /// What a host has to have, so that the pod can start there.
    pub fn block(&self) -> IpNetwork {
        block(self.address)
    }
}

/// The block of the pod that has this fixed address.
pub fn block(address: IpAddr) -> IpNetwork {
    masked(with_prefix(address, Family::of(address).bits() - HOST_BITS))
}

/// A block of the size that pinned pods have.
pub fn is_block_of_one(block: IpNetwork) -> bool {
    block.prefix() == subnet::family(block).bits() - HOST_BITS
}

/// `range` has room for a pin, and is a part of `pool`.
pub fn fits(pool: IpNetwork, range: IpNetwork) -> bool {
    let longest = subnet::family(range).bits() - HOST_BITS;
    range != pool && contains(pool, range) && range.prefix() <= longest
}

impl Networks {
    /// All pinned pods and their addresses, or why they have none.
    pub fn placed_pins(&self) -> BTreeMap<&PodName, Result<Vec<PinnedAddress>, PinFault>> {
        let mut pods: BTreeMap<IpAddr, Vec<&PodName>> = BTreeMap::new();
        for (pod, addresses) in self.pins() {
            addresses.iter().for_each(|address| pods.entry(*address).or_default().push(pod));
        }
        let place = |(pod, addresses): (_, &Vec<IpAddr>)| {
            let mut placed: Vec<PinnedAddress> = Vec::new();
            if addresses.is_empty() {
                return Err(PinFault::Unread);
            }
            for address in addresses {
                let pinned = self.placed_pin(*address)?;
                let family = Family::of(*address);
                let is_second = |it: &PinnedAddress| {
                    it.network == pinned.network && Family::of(it.address) == family
                };
                if placed.iter().any(is_second) {
                    return Err(PinFault::Second(*address, family, pinned.network));
                }
                let other = pods.get(address).into_iter().flatten().find(|other| **other != pod);
                if let Some(other) = other {
                    return Err(PinFault::Taken(*address, PodName::clone(other)));
                }
                placed.push(pinned);
            }
            Ok(placed)
        };
        self.pins().map(|(pod, addresses)| (pod, place((pod, addresses)))).gather()
    }

    fn placed_pin(&self, address: IpAddr) -> Result<PinnedAddress, PinFault> {
        let found = self.pin_ranges().find(|(_, range)| range.contains(address));
        let (network, _) = found.ok_or(PinFault::Outside(address))?;
        let right = offset(block(address).network(), PLACE);
        if address != right {
            return Err(PinFault::Place(address, right));
        }
        Ok(PinnedAddress { network: network.clone(), address })
    }

    /// The part of each network that is kept for pins.
    pub fn pin_ranges(&self) -> impl Iterator<Item = (&Scoped, IpNetwork)> {
        self.iter().flat_map(|(name, network)| network.pins.iter().map(move |it| (name, *it)))
    }

    /// An address of each family that `network` keeps for pins, the first that no pod has.
    ///
    /// # Errors
    /// Why there is none.
    pub fn free_pins(&self, network: &Scoped) -> Result<Vec<IpAddr>, String> {
        let taken: Vec<IpAddr> = self.pins().flat_map(|(_, all)| all.iter().copied()).collect();
        let free = |range: IpNetwork| {
            let all = (0..=taken.len() as u128)
                .map(|place| offset(range.network(), (place << HOST_BITS) + PLACE));
            let mut free = all.filter(|it| range.contains(*it) && !taken.contains(it));
            free.next().ok_or_else(|| {
                let has = |(_, all): &(_, &Vec<IpAddr>)| all.iter().any(|it| range.contains(*it));
                let pods: Vec<String> =
                    self.pins().filter(has).map(|(pod, _)| pod.to_string()).collect();
                let more = pods.len().checked_sub(NAMED).filter(|more| *more > 0);
                let more = more.map(|more| format!(" and {more} more")).unwrap_or_default();
                format!(
                    "all addresses of {range} (network {network}) are pinned, to {}{more}: remove one by pin rm, or \
                     keep a wider part for pins by --pins of net set",
                    pods[..pods.len().min(NAMED)].join(", ")
                )
            })
        };
        let ranges = self.pin_ranges().filter(|(name, _)| *name == network);
        let found = ranges.map(|(_, range)| free(range)).collect::<Result<Vec<_>, String>>()?;
        if found.is_empty() {
            return Err(format!(
                "network {network} keeps no addresses for pins: give it a part of its addresses for them, by \
                 --pins of net set"
            ));
        }
        Ok(found)
    }

    /// What is wrong with pins.
    pub fn pin_problems(&self) -> impl Iterator<Item = Problem> {
        self.placed_pins().into_iter().filter_map(|(pod, placed)| {
            let subject = Object::named(format!("Pin {pod}"));
            // Its reader says why.
            let fault = placed.err().filter(|fault| *fault != PinFault::Unread)?;
            let problem = Problem::in_object(ProblemKind::Policy, subject, fault);
            Some(problem.with_fix(format!(
                "humanz-agent pin ls # give it other addresses, by --address of pin set, or remove it: \
                 humanz-agent pin rm {pod}"
            )))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::read::documents;

    fn networks(pins: &[(&str, &[&str])]) -> Networks {
        let own = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
        let mut objects = vec![own(
            "Network",
            json!({"tenant": "blue", "name": "front"}),
            json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"],
                "pins": ["10.32.255.0/28", "fd00:32::ffff:0/112"]}),
        )];
        for (pod, addresses) in pins {
            let spec = json!({"addresses": addresses});
            objects.push(own("Pin", json!({"namespace": "shop", "name": pod}), spec));
        }
        documents::read(&objects, true).networks
    }

    fn check(pins: &[(&str, &[&str])], pod: &str, wanted: &str) {
        let networks = networks(pins);
        let placed = networks.placed_pins();
        let found = placed.iter().find(|(name, _)| name.name.as_str() == pod).unwrap().1;
        let text = match found {
            Ok(placed) => {
                let all =
                    placed.iter().map(|it| format!("{} {} {}", it.network, it.address, it.block()));
                all.collect::<Vec<_>>().join(", ")
            }
            Err(fault) => fault.to_string(),
        };
        assert!(text.starts_with(wanted), "{text}");
    }

    #[test]
    fn a_pinned_pod_has_four_addresses_for_itself_in_each_family() {
        let both: &[&str] = &["10.32.255.6", "fd00:32::ffff:2"];
        let wanted =
            "blue/front 10.32.255.6 10.32.255.4/30, blue/front fd00:32::ffff:2 fd00:32::ffff:0/126";
        check(&[("db-0", both)], "db-0", wanted);
    }

    #[test]
    fn what_no_pod_can_have_is_refused_with_its_reason() {
        let alone = |addresses: &[&str], why: &str| check(&[("db-0", addresses)], "db-0", why);
        alone(&["10.32.254.6"], "10.32.254.6 lies in no part of a network that is kept for pins");
        alone(&["10.244.0.6"], "10.244.0.6 lies in no part");
        alone(&["10.32.255.5"], "10.32.255.5 is not the third of four addresses");
        alone(&["10.32.255.0"], "10.32.255.0 is not the third of four addresses");
        alone(&["10.32.255.2", "10.32.255.6"], "10.32.255.6 is a second IPv4 address");
        alone(&["text"], "its value in etcd is not understood");
        alone(&[], "its value in etcd is not understood");
        let two: &[(&str, &[&str])] = &[("a", &["10.32.255.2"]), ("b", &["10.32.255.2"])];
        check(two, "a", "10.32.255.2 is pinned to pod shop/b, too");
        check(two, "b", "10.32.255.2 is pinned to pod shop/a, too");
    }

    #[test]
    fn the_first_unused_address_is_free_until_none_is() {
        let network = Networks::default_name();
        let front = Scoped { tenant: "blue".parse().unwrap(), name: "front".parse().unwrap() };
        let text = |found: Result<Vec<IpAddr>, String>| {
            found.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(text(networks(&[]).free_pins(&front)).unwrap(), "10.32.255.2 fd00:32::ffff:2");
        let some = networks(&[("a", &["10.32.255.2"]), ("b", &["10.32.255.10"])]);
        assert_eq!(text(some.free_pins(&front)).unwrap(), "10.32.255.6 fd00:32::ffff:2");
        let all: Vec<(String, String)> =
            (0..4).map(|it| (format!("p{it}"), format!("10.32.255.{}", it * 4 + 2))).collect();
        let all: Vec<(&str, [&str; 1])> = all.iter().map(|(pod, it)| (&**pod, [&**it])).collect();
        let all: Vec<(&str, &[&str])> = all.iter().map(|(pod, it)| (*pod, &it[..])).collect();
        let full = text(networks(&all).free_pins(&front)).unwrap_err();
        let why = "all addresses of 10.32.255.0/28 (network blue/front) are pinned, to shop/p0, shop/p1, shop/p2, shop/p3: \
                   remove one";
        assert!(full.starts_with(why), "{full}");
        assert!(
            text(networks(&[]).free_pins(&network)).unwrap_err().contains("keeps no addresses")
        );
    }

    #[test]
    fn pins_are_read_back_as_they_were_written() {
        let all = networks(&[("db-0", &["10.32.255.6"]), ("db-1", &["not an address"])]);
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Networks>(&text).unwrap(), all);
    }
}
