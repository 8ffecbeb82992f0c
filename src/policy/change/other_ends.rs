//! Pure. What pods of a host may meet beside each other: one address of each kind that rules tell apart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::{Family, subnet};
use crate::policy::members::Members;
use crate::policy::rule::{PolicyPeer, Rule};
use crate::policy::selector::Selector;

/// Ends of connections that no rule tells apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherEnd {
    pub name: String,
    /// Of one of them.
    pub addresses: Vec<IpAddr>,
    /// A pod of another host may have it.
    pub may_be_pod: bool,
}

/// Where the pods of a host are.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Of pods and nodes of other hosts.
    pub members: &'a Members,
    /// Where only this host's pods have addresses.
    pub subnets: &'a [IpNetwork],
    /// This host's own.
    pub own: &'a BTreeSet<IpAddr>,
    /// Where pods have addresses; empty: anywhere.
    pub pools: &'a [IpNetwork],
}

impl Surroundings<'_> {
    /// What `rules` tell apart.
    pub fn other_ends(&self, rules: &[&Rule]) -> Vec<OtherEnd> {
        let peers: BTreeSet<&PolicyPeer> =
            rules.iter().flat_map(|rule| rule.peers.iter().flatten()).gather();
        let mut ends = self.own_addresses(&peers);
        ends.extend(self.found_members(&peers));
        ends.extend(self.ranges(&peers));
        ends
    }

    fn own_addresses(&self, peers: &BTreeSet<&PolicyPeer>) -> Vec<OtherEnd> {
        let mut kinds: BTreeMap<Vec<bool>, Vec<IpAddr>> = BTreeMap::new();
        for address in self.own {
            kinds.entry(in_networks(peers, *address)).or_default().push(*address);
        }
        let named = |addresses: Vec<IpAddr>| {
            let shown = addresses.first().map(|first| format!("this host ({first})"));
            OtherEnd { name: shown.unwrap_or_default(), addresses, may_be_pod: false }
        };
        kinds.into_values().map(named).collect()
    }

    fn found_members(&self, peers: &BTreeSet<&PolicyPeer>) -> Vec<OtherEnd> {
        let mut found: BTreeMap<&[IpAddr], BTreeSet<&Selector>> = BTreeMap::new();
        for peer in peers {
            let PolicyPeer::Selected(selector) = peer else { continue };
            for member in self.members.get(selector).into_iter().flat_map(|found| &**found) {
                if !member.addresses.iter().any(|address| self.is_here(*address)) {
                    found.entry(&member.addresses).or_default().insert(selector);
                }
            }
        }
        let mut kinds: BTreeMap<_, Vec<&[IpAddr]>> = BTreeMap::new();
        for (addresses, selectors) in found {
            let networks: Vec<_> = addresses.iter().map(|it| in_networks(peers, *it)).collect();
            kinds.entry((selectors, networks)).or_default().push(addresses);
        }
        let named = |((selectors, _), all): ((BTreeSet<&Selector>, _), Vec<&[IpAddr]>)| {
            let what: Vec<String> = selectors.iter().map(|it| it.to_string()).collect();
            let first = all.first().copied().unwrap_or_default();
            let shown = first.first().map(IpAddr::to_string).unwrap_or_default();
            let more = match all.len() {
                ..=1 => String::new(),
                count => format!(" and {} like it", count - 1),
            };
            let is_node = selectors.iter().all(|it| matches!(it, Selector::Nodes(_)));
            OtherEnd {
                name: format!("{shown}{more} of other hosts ({})", what.join(", ")),
                addresses: first.to_vec(),
                may_be_pod: !is_node,
            }
        };
        kinds.into_iter().map(named).collect()
    }

    /// One address of each part of the address spaces that `peers` and pools cut out.
    fn ranges(&self, peers: &BTreeSet<&PolicyPeer>) -> Vec<OtherEnd> {
        let mut networks: BTreeSet<IpNetwork> = self.pools.iter().copied().gather();
        for peer in peers {
            if let PolicyPeer::Network { cidr, except } = peer {
                networks.extend([cidr].into_iter().chain(except).map(|it| subnet::masked(*it)));
            }
        }
        let mut found: BTreeMap<(Family, Option<IpNetwork>), IpAddr> = BTreeMap::new();
        for address in self.borders(&networks) {
            let around = networks.iter().filter(|it| has(**it, address));
            let smallest = around.max_by_key(|it| it.prefix()).copied();
            if !self.is_here(address) {
                found.entry((Family::of(address), smallest)).or_insert(address);
            }
        }
        found
            .into_iter()
            .map(|((family, network), address)| self.range(family, network, address))
            .collect()
    }

    fn range(&self, family: Family, network: Option<IpNetwork>, address: IpAddr) -> OtherEnd {
        let in_pool = self.pools.iter().any(|pool| has(*pool, address));
        let name = match network {
            Some(network) if self.pools.contains(&network) => format!("other pods in {network}"),
            Some(network) => network.to_string(),
            None => format!("other {family} addresses"),
        };
        OtherEnd { name, addresses: vec![address], may_be_pod: in_pool || self.pools.is_empty() }
    }

    /// Where a part may begin.
    fn borders(&self, networks: &BTreeSet<IpNetwork>) -> BTreeSet<IpAddr> {
        let own = self.own.iter().map(|address| subnet::host(*address));
        let all = networks.iter().copied().chain(self.subnets.iter().copied()).chain(own);
        let ends = |it: IpNetwork| [it.network(), subnet::offset(subnet::last(it), 1)];
        let first: [IpAddr; 2] = [[0u8; 4].into(), [0u8; 16].into()];
        first.into_iter().chain(all.flat_map(ends)).gather()
    }

    fn is_here(&self, address: IpAddr) -> bool {
        self.own.contains(&address) || self.subnets.iter().any(|it| has(*it, address))
    }
}

fn has(network: IpNetwork, address: IpAddr) -> bool {
    subnet::family(network) == Family::of(address) && network.contains(address)
}

fn in_networks(peers: &BTreeSet<&PolicyPeer>, address: IpAddr) -> Vec<bool> {
    peers.iter().map(|peer| peer.contains(address)).collect()
}
