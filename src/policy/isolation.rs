//! Pure. What keeps tenants apart, as rules of a tier of their own.
//!
//! Addresses decide, not what pods say of themselves: the other end of a connection is of the network that has its
//! address, also where its pod is not described yet.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;

use crate::policy::labels::LabelSelector;
use crate::policy::name::{ObjectName, Scoped};
use crate::policy::network::Networks;
use crate::policy::rule::{Direction, Origin, PolicyKind, PolicyPeer, PolicyVerdict, Rule, Tier};
use crate::policy::selector::Selector;
use crate::policy::service::Service;

/// Pods of different tenants do not reach each other; where one of the two is in a shared network, they do, and
/// nodes are of no tenant, but for host ports: behind another node's address there may be a pod of any tenant that
/// asked for them. Without networks beside that of the settings there is nothing to keep apart.
pub fn rules(networks: &Networks) -> Vec<Rule> {
    if networks.is_empty() {
        return Vec::new();
    }
    let mut pools: BTreeMap<Scoped, Vec<IpNetwork>> = BTreeMap::new();
    networks.pools().for_each(|(pool, network)| pools.entry(network).or_default().push(pool));
    let mut reached: BTreeMap<&ObjectName, Vec<IpNetwork>> = BTreeMap::new();
    let mut shared: Vec<IpNetwork> = Vec::new();
    for (network, pools) in &pools {
        reached.entry(&network.tenant).or_default().extend(pools);
        shared.extend(pools.iter().filter(|_| networks.is_shared(network)));
    }
    let every: Vec<PolicyPeer> = peers(pools.values().flatten());
    let nodes = PolicyPeer::Selected(Selector::Nodes(LabelSelector::default()));
    let apart = pools.keys().filter(|network| !networks.is_shared(network));
    let rules = apart.flat_map(|network| {
        let mut passed = peers(reached[&network.tenant].iter().chain(&shared));
        passed.push(nodes.clone());
        let of_both = |index, peers: &[PolicyPeer], verdict| {
            Direction::BOTH.map(|direction| rule(network, index, direction, peers.into(), verdict))
        };
        let passed = of_both(Some(1), &passed, PolicyVerdict::Pass);
        let denied = of_both(None, &every, PolicyVerdict::Deny);
        [passed, denied].into_iter().flatten().chain([host_ports(network, nodes.clone())])
    });
    rules.collect()
}

fn host_ports(network: &Scoped, nodes: PolicyPeer) -> Rule {
    Rule {
        services: Some(vec![Service::HostPort]),
        ..rule(network, Some(0), Direction::Ingress, vec![nodes], PolicyVerdict::Deny)
    }
}

fn peers<'a>(pools: impl IntoIterator<Item = &'a IpNetwork>) -> Vec<PolicyPeer> {
    let peer = |cidr: &IpNetwork| PolicyPeer::Network { cidr: *cidr, except: Vec::new() };
    pools.into_iter().map(peer).collect()
}

fn rule(
    network: &Scoped,
    index: Option<u16>,
    direction: Direction,
    peers: Vec<PolicyPeer>,
    verdict: PolicyVerdict,
) -> Rule {
    Rule {
        tier: Tier::Tenant,
        priority: 0,
        origin: Origin {
            source: PolicyKind::Network,
            namespace: Some(network.tenant.clone()),
            name: network.name.clone(),
            index,
        },
        direction,
        subject: Selector::Network(network.clone()),
        peers: Some(peers),
        services: None,
        verdict,
        audit: false,
    }
}

#[cfg(test)]
mod tests {
    use crate::net::Protocol;
    use crate::policy::read::documents;
    use crate::policy::{Transport, Tuple, evaluate};

    const WORLD: &str = r#"---
{apiVersion: humanz.io/v1, kind: Network, metadata: {tenant: blue, name: front}, spec: {subnets: [10.1.0.0/16, "fd00:1::/64"]}}
---
{apiVersion: humanz.io/v1, kind: Network, metadata: {tenant: blue, name: back}, spec: {subnets: [10.2.0.0/16]}}
---
{apiVersion: humanz.io/v1, kind: Network, metadata: {tenant: red, name: front}, spec: {subnets: [10.3.0.0/16, "fd00:3::/64"]}}
---
{apiVersion: humanz.io/v1, kind: Network, metadata: {tenant: infra, name: tools}, spec: {subnets: [10.4.0.0/16], shared: true}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
"#;

    fn world(default: &str) -> String {
        let pod = |(name, address, other): &(&str, &str, &str)| {
            format!(
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{namespace: shop, name: {name}}}, spec: \
                 {{nodeName: n9}}, status: {{podIPs: [{{ip: \"{address}\"}}{other}]}}}}\n"
            )
        };
        let pods: String = [
            ("bf", "10.1.0.2", ", {ip: \"fd00:1::2\"}"),
            ("bb", "10.2.0.2", ""),
            ("rf", "10.3.0.2", ", {ip: \"fd00:3::2\"}"),
            ("tools", "10.4.0.2", ""),
            ("plain", "10.244.1.2", ""),
        ]
        .iter()
        .map(pod)
        .collect();
        [WORLD, &pods, default].concat()
    }

    fn reaches(text: &str, from: &str, to: &str) -> bool {
        let read = documents::read(&documents::objects(text).unwrap(), true).isolated();
        assert_eq!(read.problems, []);
        let (source, destination) = (from.parse().unwrap(), to.parse().unwrap());
        let tuple = Tuple { source, destination, transport: Transport::Port(Protocol::Tcp, 80) };
        evaluate(&read.rules, &read.endpoints, &tuple).allowed()
    }

    #[test]
    fn tenants_are_apart_and_shared_networks_are_not() {
        let text = world("");
        for (from, to, wanted) in [
            ("10.1.0.2", "10.2.0.2", true),
            ("10.1.0.2", "10.3.0.2", false),
            ("10.3.0.2", "10.2.0.2", false),
            ("fd00:1::2", "fd00:3::2", false),
            ("10.1.0.2", "10.4.0.2", true),
            ("10.4.0.2", "10.1.0.2", true),
            ("10.4.0.2", "10.244.1.2", true),
            ("10.1.0.2", "10.244.1.2", false),
            ("10.244.1.2", "10.1.0.2", false),
            ("10.1.0.2", "10.1.0.2", true),
            // A pod of another tenant, not described yet.
            ("10.1.0.2", "10.3.9.9", false),
            ("10.3.9.9", "10.1.0.2", false),
            ("10.1.0.2", "198.51.100.1", true),
            ("198.51.100.1", "10.1.0.2", true),
            ("192.0.2.1", "10.1.0.2", true),
        ] {
            assert_eq!(reaches(&text, from, to), wanted, "{from} -> {to}");
        }
        let shared = "---\n{apiVersion: humanz.io/v1, kind: Network, metadata: {name: default}, spec: {shared: true}}";
        assert!(reaches(&world(shared), "10.1.0.2", "10.244.1.2"));
    }

    #[test]
    fn no_policy_opens_another_tenant() {
        let open = r#"---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: open},
 spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {}}]}],
 egress: [{action: Accept, to: [{namespaces: {}}]}]}}
"#;
        assert!(!reaches(&world(open), "10.1.0.2", "10.3.0.2"));
        assert!(reaches(&world(open), "10.1.0.2", "10.2.0.2"));
    }
}
