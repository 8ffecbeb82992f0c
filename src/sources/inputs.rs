//! Pure. What a host says of its own pods, and what it needs to know of others'.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::lease::{self, Peer, Peers};
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::subnet;
use crate::policy::held::PodOwners;
use crate::policy::local::Pods;
use crate::policy::network::Networks;
use crate::policy::shares::host_limit;
use crate::policy::sources::denied;
use crate::policy::{Endpoints, Members, Node, PolicySnapshot, Selector, Shares, members};
use crate::sources::exchanged::ExchangeInputs;
use crate::sources::find::needed;
use crate::sources::shared::{self, HostAddresses, Hosts};

/// What inputs of the exchange are computed from.
#[derive(Clone, Debug)]
pub struct ExchangedFrom {
    pub known: Arc<PolicySnapshot>,
    /// All of this host.
    pub pods: Pods,
    pub hosts: Arc<lease::Snapshot>,
    pub peers: Arc<Peers>,
    /// Etcd has said in this life what it has of hosts.
    pub is_certain: bool,
}

impl ExchangedFrom {
    /// What follows from both is the same. Members on other hosts say nothing of this one.
    pub(super) fn is_same(&self, other: &ExchangedFrom) -> bool {
        says_same(&self.known, &other.known)
            && Arc::ptr_eq(&self.hosts, &other.hosts)
            && Arc::ptr_eq(&self.peers, &other.peers)
            && self.is_certain == other.is_certain
            && self.pods == other.pods
    }
}

impl ExchangeInputs {
    /// What the host `own` says and needs. `former`: groups that other hosts may still look up.
    pub fn of(
        from: &ExchangedFrom,
        former: impl IntoIterator<Item = Selector>,
        own: &NodeName,
        hosts: Arc<Hosts>,
    ) -> Self {
        let ExchangedFrom { known, pods, .. } = from;
        let endpoints = pods.endpoints(known, own);
        let mut in_use = members::peers(known.rules.iter());
        in_use.extend(former);
        let mut needed: BTreeSet<_> = needed(known.rules.iter(), &endpoints);
        let denied: BTreeSet<_> = denied(&known.rules).gather();
        needed.extend(denied.iter().cloned());
        let record = from.hosts.nodes.get(own);
        let addresses = record.map(|record| {
            let gateways = record.value.subnets.iter().map(|subnet| subnet::gateway(*subnet));
            record.value.addresses.iter().copied().chain(gateways).collect()
        });
        let node = Node {
            name: own.clone(),
            labels: known.node.clone(),
            addresses: addresses.unwrap_or_default(),
        };
        let sizes = members::sizes(&in_use, &endpoints);
        let size = |selector: &Selector| sizes.get(selector).copied().unwrap_or_default();
        let excess =
            Shares::of(&known.rules).excess(&in_use, host_limit(from.peers.by_name.len()), size);
        let published = in_use.difference(&excess.selectors);
        let found = members::find(published, &Endpoints { pods: endpoints, nodes: vec![node] });
        let (found, unpublished) = fitting_groups(found, &denied);
        let published = addresses_of(&found);
        let owners = pods
            .owners()
            .filter(|(address, _)| published.contains(address) && !unpublished.contains(address));
        let owners: PodOwners =
            owners.map(|(address, container)| (address, container.to_owned())).gather();
        let record = record.filter(|_| from.is_certain).map(|record| record.modified);
        let owners = Arc::new(owners);
        ExchangeInputs { own: found, excess, needed, hosts, record, owners }
    }
}

/// Groups as other hosts will read them, and addresses of those that cannot be published and are `denied`: their pods
/// stay in quarantine, where rules that deny them would not find them.
fn fitting_groups(found: Members, denied: &BTreeSet<Selector>) -> (Members, BTreeSet<IpAddr>) {
    let (mut fitting, mut others) = (Members::new(), Members::new());
    for (selector, members) in found {
        match shared::fitting(&selector, &members) {
            Some(members) => drop(fitting.insert(selector, members)),
            None if denied.contains(&selector) => drop(others.insert(selector, members)),
            None => {}
        }
    }
    let unpublished = addresses_of(&others);
    (fitting, unpublished)
}

fn addresses_of(members: &Members) -> BTreeSet<IpAddr> {
    let all = members.values().flat_map(|found| &**found).flat_map(|member| &member.addresses);
    all.copied().gather()
}

fn says_same(one: &Arc<PolicySnapshot>, other: &Arc<PolicySnapshot>) -> bool {
    Arc::ptr_eq(one, other)
        || one.rules == other.rules
            && one.pods == other.pods
            && one.standalone == other.standalone
            && one.group == other.group
            && one.node == other.node
            && one.networks == other.networks
}

/// What `peers` may say. No host makes a pod of a network a node by publishing its address as its own.
pub fn hosts(peers: &Peers, networks: &Networks) -> Hosts {
    let host = |(name, peer): (&NodeName, &Peer)| {
        let own = peer.addresses.iter().copied();
        let nodes = own.filter(|address| networks.of(*address).is_none()).collect();
        (name.clone(), HostAddresses { subnets: peer.pod_subnets().collect(), nodes })
    };
    peers.by_name.iter().map(host).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lease::records::Backend;
    use crate::net::PerFamily;
    use crate::policy::Member;
    use crate::policy::read::documents;

    #[test]
    fn no_address_of_a_network_is_that_of_a_node() {
        let network = json!({"apiVersion": "humanz.io/v1", "kind": "Network",
            "metadata": {"tenant": "red", "name": "front"}, "spec": {"subnets": ["10.33.0.0/16"]}});
        let networks = documents::read(&[network], true).networks;
        let nodes = |address: &str| {
            let peer = Peer {
                subnets: PerFamily::default(),
                blocks: Vec::new(),
                addresses: PerFamily { v4: Some(address.parse().unwrap()), v6: None },
                backend: Backend::Direct,
                tunnel: None,
                wireguard: None,
                mtu: None,
                python: false,
                alive: true,
            };
            let by_name = [("h2".parse().unwrap(), peer)].into();
            let peers = Peers { by_name, ..Peers::default() };
            hosts(&peers, &networks).into_values().flat_map(|host| host.nodes).count()
        };
        assert_eq!((nodes("10.33.1.5"), nodes("192.0.2.2")), (0, 1));
    }

    #[test]
    fn a_group_that_cannot_be_published_holds_up_its_pods_where_a_rule_denies_it() {
        let values: Vec<String> = (0..9_000).map(|at| format!("{}{at}", "x".repeat(50))).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let long =
            json!({"pods": {"namespaces": {"labelled": []}, "labels": [{"NotIn": ["x", values]}]}});
        let long: Selector = serde_json::from_value(long).unwrap();
        let member = Member { addresses: vec!["10.1.2.3".parse().unwrap()], ports: Vec::new() };
        let found: Members = [(long.clone(), Arc::new([member].into()))].into();
        let (fitting, held) = fitting_groups(found.clone(), &BTreeSet::new());
        assert_eq!((fitting.len(), held.len()), (0, 0));
        let (fitting, held) = fitting_groups(found, &[long].into());
        assert_eq!((fitting.len(), held.len()), (0, 1));
    }

    #[test]
    fn a_member_on_another_host_changes_nothing_of_what_this_one_says() {
        let (hosts, peers) = Default::default();
        let from = |known: PolicySnapshot| ExchangedFrom {
            known: Arc::new(known),
            pods: Pods::default(),
            hosts: Arc::clone(&hosts),
            peers: Arc::clone(&peers),
            is_certain: true,
        };
        let nothing = || from(PolicySnapshot::default());
        let members = [(Selector::every_pod(), Arc::default())].into();
        assert!(nothing().is_same(&from(PolicySnapshot { members, ..Default::default() })));
        let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "p"}, "spec": {"podSelector": {}}});
        let read = documents::read(&[policy], true);
        let (rules, standalone) = (read.rules, Some(read.cluster));
        assert!(!nothing().is_same(&from(PolicySnapshot { rules, ..Default::default() })));
        assert!(!nothing().is_same(&from(PolicySnapshot { standalone, ..Default::default() })));
        let group = Some(Networks::default_name());
        assert!(!nothing().is_same(&from(PolicySnapshot { group, ..Default::default() })));
        assert!(!nothing().is_same(&ExchangedFrom { is_certain: false, ..nothing() }));
    }
}
