//! Pure. What the selectors find that rules have as peers, and which sets of the table hold it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::net::Family;
use crate::net::subnet::gateway;
use crate::nft::{Element, Set};
use crate::policy::compile::capacity::Capacity;
use crate::policy::compile::sets::FoundKeys;
use crate::policy::endpoint::Endpoint;
use crate::policy::members::{self, FoundMembers};
use crate::policy::rule::Rules;
use crate::policy::selector::Selector;
use crate::policy::selector_index::SelectorIndex;
use crate::policy::snapshot::PolicySnapshot;

/// The selectors that rules have as peers.
#[derive(Debug, Default)]
pub struct PeerSelectors {
    /// In their order.
    index: SelectorIndex<Selector>,
    /// By place in the index.
    peers: Vec<PeerMembers>,
    /// The places of those of which a set holds something else than they find.
    changed: BTreeSet<usize>,
    /// Where the members on other hosts come from, the subnets that are none of theirs, and this host's addresses.
    of: Option<(Arc<PolicySnapshot>, OwnAddresses)>,
}

/// What has addresses on this host.
#[derive(Debug, Default, PartialEq, Eq)]
struct OwnAddresses {
    /// Pods.
    subnets: Vec<IpNetwork>,
    /// The host itself.
    host: BTreeSet<IpAddr>,
}

/// What one of them finds.
#[derive(Debug, Default)]
struct PeerMembers {
    /// As the sources say, on all hosts.
    said: Option<FoundMembers>,
    /// Pods of this host.
    own: Vec<Arc<Endpoint>>,
    /// The sets in use that hold it.
    sets: BTreeMap<String, FoundKeys>,
    /// Of its sets of addresses.
    capacity: Capacity,
}

impl PeerSelectors {
    pub fn new(rules: &Rules) -> PeerSelectors {
        let index = SelectorIndex::new(members::peers(rules.iter()));
        let peers = index.all().iter().map(|_| PeerMembers::default()).collect();
        PeerSelectors { index, peers, ..PeerSelectors::default() }
    }

    /// A pod of this host more.
    pub fn add_pod(&mut self, pod: &Arc<Endpoint>) {
        for place in self.index.matching(pod) {
            self.peers[place].own.push(Arc::clone(pod));
            self.changed.insert(place);
        }
    }

    /// A pod of this host less.
    pub fn remove_pod(&mut self, pod: &Arc<Endpoint>) {
        for place in self.index.matching(pod) {
            self.peers[place].own.retain(|own| !Arc::ptr_eq(own, pod));
            self.changed.insert(place);
        }
    }

    /// A set of the table more.
    pub fn add_set(&mut self, name: &str, selector: &Selector, keys: &FoundKeys) {
        if let Ok(place) = self.index.all().binary_search(selector) {
            self.peers[place].sets.insert(name.to_owned(), keys.clone());
            self.changed.insert(place);
        }
    }

    /// A set of the table less.
    pub fn remove_set(&mut self, name: &str, selector: &Selector) {
        if let Ok(place) = self.index.all().binary_search(selector) {
            self.peers[place].sets.remove(name);
        }
    }

    /// What sources say: addresses in `subnets` are those of this host's pods, whatever they say. This host has the
    /// addresses `host`, whichever of them sources know.
    pub fn take(
        &mut self,
        known: &Arc<PolicySnapshot>,
        subnets: &[IpNetwork],
        host: &BTreeSet<IpAddr>,
    ) {
        let own = OwnAddresses { subnets: subnets.to_vec(), host: host.clone() };
        let is_same_host = match &self.of {
            Some((of, before)) if Arc::ptr_eq(of, known) && *before == own => return,
            Some((_, before)) => *before == own,
            None => false,
        };
        // Both are in the order of selectors.
        let mut members = known.members.iter().peekable();
        for (place, selector) in self.index.all().iter().enumerate() {
            let said = loop {
                match members.peek().map(|(other, _)| (*other).cmp(selector)) {
                    Some(Ordering::Less) => drop(members.next()),
                    Some(Ordering::Equal) => break members.next().map(|(_, said)| said),
                    Some(Ordering::Greater) | None => break None,
                }
            };
            let peer = &mut self.peers[place];
            if !is_same_host || !is_same(peer.said.as_ref(), said) {
                self.changed.insert(place);
            }
            peer.said = said.cloned();
        }
        self.of = Some((Arc::clone(known), own));
    }

    /// For how many addresses a set of what `selector` finds has room.
    pub fn capacity(&self, selector: &Selector) -> Capacity {
        let place = self.index.all().binary_search(selector);
        place.map_or(Capacity::UNLIMITED, |place| self.peers[place].capacity)
    }

    /// Gives sets of addresses room for what selectors find now: those in use that have another size.
    pub fn resized(&mut self) -> BTreeSet<String> {
        let host = self.of.as_ref().map(|(_, own)| &own.host);
        let mut resized = BTreeSet::new();
        for place in &self.changed {
            let peer = &mut self.peers[*place];
            let is_nodes = matches!(self.index.all()[*place], Selector::Nodes(_));
            let addresses = peer.addresses(host.filter(|_| is_nodes));
            peer.capacity = peer.capacity.for_elements(addresses);
            let sets = peer.sets.iter().filter(|(_, keys)| keys.is_of_another_size(peer.capacity));
            resized.extend(sets.map(|(name, _)| name.clone()));
        }
        resized
    }

    /// The sets that hold something else since this was asked last.
    pub fn changed_sets(&mut self) -> Vec<Set> {
        let nothing = OwnAddresses::default();
        let own = self.of.as_ref().map_or(&nothing, |(_, own)| own);
        let mut sets = Vec::new();
        for place in std::mem::take(&mut self.changed) {
            let (selector, peer) = (&self.index.all()[place], &self.peers[place]);
            sets.extend(peer.sets.iter().map(|(name, keys)| Set {
                name: name.clone(),
                shape: keys.shape(),
                elements: peer.elements(selector, keys, own),
            }));
        }
        sets
    }
}

impl PeerMembers {
    /// Of the family that has more of them, some twice: at least as many as a set holds.
    fn addresses(&self, host: Option<&BTreeSet<IpAddr>>) -> usize {
        let said = self.said.iter().flat_map(|found| &**found).flat_map(|it| &it.addresses);
        let own = self.own.iter().flat_map(|pod| &pod.addresses);
        let mut counts = [0, 0];
        for address in said.chain(own).chain(host.into_iter().flatten()) {
            counts[Family::of(*address) as usize] += 1;
        }
        counts.into_iter().max().unwrap_or_default()
    }

    fn elements(
        &self,
        selector: &Selector,
        keys: &FoundKeys,
        OwnAddresses { subnets, host }: &OwnAddresses,
    ) -> BTreeSet<Element> {
        let is_own = |address: &IpAddr| subnets.iter().any(|subnet| subnet.contains(*address));
        // The gateway is the host itself.
        let is_node = matches!(selector, Selector::Nodes(_));
        let is_gateway = |address: &IpAddr| subnets.iter().any(|it| gateway(*it) == *address);
        let counts = |address: &IpAddr| !is_own(address) || is_node && is_gateway(address);
        let said = self.said.iter().flat_map(|found| &**found).flat_map(|member| {
            keys.elements(member.addresses.iter().copied().filter(counts), &member.ports)
        });
        let mut addresses =
            self.said.iter().flat_map(|found| &**found).flat_map(|it| &it.addresses);
        // Others may say that they have an address which this host has as well, as 172.17.0.1, but none of its pools.
        let is_this_host = is_node && addresses.any(is_gateway);
        let host = is_this_host.then(|| keys.elements(host.iter().copied(), &[]));
        let own = self.own.iter();
        let own = own.flat_map(|pod| keys.elements(pod.addresses.iter().copied(), &pod.ports));
        said.chain(host.into_iter().flatten()).chain(own).collect()
    }
}

fn is_same(before: Option<&FoundMembers>, now: Option<&FoundMembers>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => Arc::ptr_eq(before, now),
        (None, None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::net::Family;
    use crate::policy::Member;
    use crate::policy::compile::sets::{SetSource, Sets};
    use crate::policy::read::documents;

    /// What the set of nodes holds on a host of two addresses and a gateway, where sources find a node with `address`.
    fn nodes_with(address: &str) -> usize {
        let policy = json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy", "metadata": {"name": "p"},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [
                {"action": "Accept", "to": [{"nodes": {"matchLabels": {"role": "monitor"}}}]}]}});
        let rules = documents::read(&[policy], true).rules;
        let mut peers = PeerSelectors::new(&rules);
        let selector = peers.index.all()[0].clone();
        let mut sets = Sets::default();
        sets.selected(&selector, Family::V4, Capacity::UNLIMITED);
        for (name, source) in &sets.by_name {
            let SetSource::Found(selector, keys) = source else { panic!("{source:?}") };
            peers.add_set(name, selector, keys);
        }
        let member = Member { addresses: vec![address.parse().unwrap()], ports: Vec::new() };
        let members = [(selector, Arc::new([member].into()))].into();
        let known = Arc::new(PolicySnapshot { rules, members, ..PolicySnapshot::default() });
        let own = ["192.0.2.11", "172.17.0.1", "10.244.1.1"].map(|own| own.parse().unwrap());
        peers.take(&known, &["10.244.1.0/24".parse().unwrap()], &own.into());
        let [set] = &peers.changed_sets()[..] else { panic!("one set") };
        set.elements.len()
    }

    #[test]
    fn a_host_that_claims_an_address_of_this_one_does_not_become_it() {
        assert_eq!(nodes_with("10.244.1.1"), 3, "it is this host");
        assert_eq!(nodes_with("172.17.0.1"), 1, "another one that has a bridge of Docker, too");
    }
}
