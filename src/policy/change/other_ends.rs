//! Pure. What pods of a host may meet beside each other: one address of each kind that rules tell apart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::{Family, subnet};
use crate::policy::change::costs::{LOOKS, TooMany, addresses};
use crate::policy::members::Members;
use crate::policy::rule::{PolicyPeer, Rule};
use crate::policy::selector::Selector;

/// Networks in rules, and ends, at most: a verdict for each is more than anybody reads.
const ENDS: usize = 10_000;

/// Members that the selectors in rules find together, at most: some 100 MB.
const MEMBERS: usize = 2_000_000;

/// Selectors in the name of an end, and characters of each: anybody can write longer ones.
const SELECTORS: usize = 3;
const CHARACTERS: usize = 80;

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

/// Members of other hosts that the same selectors find, and networks of rules have: one of them, and how many.
type MemberKinds<'a> = BTreeMap<(Vec<usize>, Vec<Vec<bool>>), (&'a [IpAddr], usize)>;

impl Surroundings<'_> {
    /// What `rules` tell apart.
    ///
    /// # Errors
    /// [`TooMany`]: it would take too long, or too much memory.
    pub fn other_ends(&self, rules: &[&Rule]) -> Result<Vec<OtherEnd>, TooMany> {
        let peers: BTreeSet<&PolicyPeer> =
            rules.iter().flat_map(|rule| rule.peers.iter().flatten()).gather();
        let (mut selectors, mut networks) = (Vec::new(), Vec::new());
        for peer in peers {
            match peer {
                PolicyPeer::Selected(selector) => selectors.push(selector),
                network @ PolicyPeer::Network { .. } => networks.push(network),
            }
        }
        let cut = self.cut(&networks);
        let found = selectors.iter().filter_map(|selector| self.members.get(selector));
        let found: usize = found.map(|found| found.len()).sum();
        let looks: usize = networks.iter().map(|network| addresses(network)).sum();
        let looks = looks.saturating_mul(found + self.own.len());
        if cut.len() > ENDS || found > MEMBERS || looks > LOOKS {
            let networks = cut.len();
            return Err(TooMany(format!("{networks} networks and {found} members in rules")));
        }
        let mut ends = self.own_addresses(&networks);
        let kinds = self.found_members(&selectors, &networks);
        if kinds.len() > ENDS {
            return Err(TooMany(format!("{} kinds of members", kinds.len())));
        }
        let names: Vec<String> = selectors.iter().map(|selector| short(selector)).collect();
        let is_node = |place: &usize| matches!(selectors[*place], Selector::Nodes(_));
        ends.extend(kinds.into_iter().map(|((places, _), (first, count))| OtherEnd {
            name: members_name(first, count, &places, &names),
            addresses: first.to_vec(),
            may_be_pod: !places.iter().all(is_node),
        }));
        ends.extend(self.ranges(&cut));
        Ok(ends)
    }

    fn own_addresses(&self, networks: &[&PolicyPeer]) -> Vec<OtherEnd> {
        let mut kinds: BTreeMap<Vec<bool>, Vec<IpAddr>> = BTreeMap::new();
        for address in self.own {
            kinds.entry(in_networks(networks, *address)).or_default().push(*address);
        }
        let named = |addresses: Vec<IpAddr>| {
            let shown = addresses.first().map(|first| format!("this host ({first})"));
            OtherEnd { name: shown.unwrap_or_default(), addresses, may_be_pod: false }
        };
        kinds.into_values().map(named).collect()
    }

    /// By the places of the selectors that find them.
    fn found_members(&self, selectors: &[&Selector], networks: &[&PolicyPeer]) -> MemberKinds<'_> {
        let mut found: BTreeMap<&[IpAddr], Vec<usize>> = BTreeMap::new();
        for (place, selector) in selectors.iter().enumerate() {
            for member in self.members.get(selector).into_iter().flat_map(|found| &**found) {
                if !member.addresses.iter().any(|address| self.is_here(*address)) {
                    let places = found.entry(&member.addresses).or_default();
                    // Two may differ in their ports alone.
                    if places.last() != Some(&place) {
                        places.push(place);
                    }
                }
            }
        }
        let mut kinds = MemberKinds::new();
        for (addresses, places) in found {
            let inside = addresses.iter().map(|it| in_networks(networks, *it)).collect();
            kinds.entry((places, inside)).or_insert((addresses, 0)).1 += 1;
        }
        kinds
    }

    /// The networks that cut the address spaces into parts.
    fn cut(&self, networks: &[&PolicyPeer]) -> BTreeSet<IpNetwork> {
        let mut cut: BTreeSet<IpNetwork> = self.pools.iter().copied().gather();
        for network in networks {
            if let PolicyPeer::Network { cidr, except } = network {
                cut.extend([cidr].into_iter().chain(except).map(|it| subnet::masked(*it)));
            }
        }
        cut
    }

    /// One address of each part of the address spaces that `networks` cut out.
    fn ranges(&self, networks: &BTreeSet<IpNetwork>) -> Vec<OtherEnd> {
        let lengths: BTreeSet<(Family, u8)> =
            networks.iter().map(|it| (subnet::family(*it), it.prefix())).gather();
        let mut found: BTreeMap<(Family, Option<IpNetwork>), IpAddr> = BTreeMap::new();
        for address in self.borders(networks) {
            if !self.is_here(address) {
                let family = Family::of(address);
                let of_family = lengths.range((family, 0)..=(family, u8::MAX)).rev();
                let mut around = of_family
                    .map(|(_, length)| subnet::masked(subnet::with_prefix(address, *length)));
                let smallest = around.find(|network| networks.contains(network));
                found.entry((family, smallest)).or_insert(address);
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

fn in_networks(networks: &[&PolicyPeer], address: IpAddr) -> Vec<bool> {
    networks.iter().map(|network| network.contains(address)).collect()
}

/// `10.244.2.2 and 4 like it of other hosts (pods app=web of namespace shop, and 7 more)`
fn members_name(first: &[IpAddr], count: usize, places: &[usize], names: &[String]) -> String {
    let shown = first.first().map(IpAddr::to_string).unwrap_or_default();
    let more = match count {
        ..=1 => String::new(),
        count => format!(" and {} like it", count - 1),
    };
    let mut what: Vec<&str> = places.iter().take(SELECTORS).map(|at| &*names[*at]).collect();
    let rest = places.len().saturating_sub(SELECTORS);
    let rest = if rest > 0 { format!("and {rest} more") } else { String::new() };
    what.extend((!rest.is_empty()).then_some(&*rest));
    format!("{shown}{more} of other hosts ({})", what.join(", "))
}

fn short(selector: &Selector) -> String {
    let text = selector.to_string();
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
