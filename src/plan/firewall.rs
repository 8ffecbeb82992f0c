//! Pure. The host's own nftables table: what it must hold, and what differs.

mod changes;
pub mod encryption;
pub mod flowtable;
mod repair;
pub mod tunnels;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::range::covering;
use crate::net::{AddressRange, Family, IfName, hash, subnet};
use crate::nft::{
    Action, Base, Chain, ChainPolicy, Element, Field, Hook, Match, NftRule, Ruleset, Set, Shape,
    Type, Verdict,
};
use crate::plan::{encryption as wireguard, tunnel::device_name};

pub use changes::{TableChange, TableDifference, chain_differences, changes, set_difference};
pub use repair::{TableRepair, creation, repair};

/// The agent's table.
pub const AGENT_TABLE: &str = "humanz";

/// Priorities `raw`, `filter` and `srcnat` of nft.
const PRIORITY_RAW: i32 = -300;
const PRIORITY_FILTER: i32 = 0;
const PRIORITY_SRCNAT: i32 = 100;

/// Multicast and broadcast: the receivers must see the address of the pod itself.
const NEVER_MASQUERADED: [&str; 3] = ["224.0.0.0/4", "255.255.255.255/32", "ff00::/8"];

/// What the firewall of a host must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallSpec {
    /// The table's name: [`AGENT_TABLE`] or [`standalone_table`].
    pub table: String,
    /// The bridge that the pods are plugged into.
    pub bridge: IfName,
    /// Where this host's pods have their addresses.
    pub pod_subnets: Vec<IpNetwork>,
    /// Where the pods of all hosts have them.
    pub pools: Vec<IpNetwork>,
    /// There may be other hosts, which know a pod by its address.
    pub has_others: bool,
    /// Further destinations that shall see the pod's own address.
    pub non_masq_cidrs: Vec<IpNetwork>,
    /// The addresses of this host and of every other that is reached without a tunnel: they have
    /// routes to pods.
    pub node_addresses: BTreeSet<IpAddr>,
    /// Pods reach the outside with the host's address.
    pub masquerade: bool,
    /// VXLAN network identifier of the host's tunnels, if it may have some.
    pub tunnel_vni: Option<u32>,
    /// Packets to other hosts are encrypted.
    pub encrypts: bool,
    /// This host's own addresses. What it sends from them through a tunnel gets the tunnel's address:
    /// to its own ones the other hosts send answers by another way, on which pods are unknown.
    pub own_addresses: BTreeSet<IpAddr>,
    /// This host's addresses among its pods, which are those of its tunnels.
    pub tunnel_addresses: Vec<IpAddr>,
    /// The table accepts what is forwarded from and to pods. That alone does not help against a
    /// drop in another table: see [`crate::checks::forward`].
    pub accept_forward: bool,
}

/// The table of one network on a host without an agent. Networks may share a bridge, so each has
/// its own. A name that is too long for a table: its beginning and a hash of the whole.
pub fn standalone_table(network: &str) -> String {
    /// NFT_NAME_MAXLEN of linux/netfilter/nf_tables.h, less its final zero.
    const LONGEST: usize = 255;
    let name = format!("{AGENT_TABLE}_{network}");
    match name.len() {
        ..=LONGEST => name,
        _ => {
            let kept: String = name.chars().take(LONGEST - 17).collect();
            format!("{kept}_{:016x}", hash::stable(&[network]))
        }
    }
}

/// The table that `spec` asks for; `None` if it asks for nothing.
pub fn ruleset(spec: &FirewallSpec) -> Option<Ruleset> {
    let families = Family::BOTH.into_iter().filter(|family| spec.has_pods(*family));
    let families: Vec<Family> = families.filter(|_| spec.masquerade).collect();
    let chains = [forward(spec), tunnel(spec), programs(spec), postrouting(spec, &families)];
    let chains: Vec<Chain> = chains.into_iter().flatten().collect();
    if chains.is_empty() {
        return None;
    }
    let sets = families.iter().flat_map(|family| sets(spec, *family)).collect();
    let comment = "written by humanz, which puts back what is changed by hand".to_owned();
    Some(Ruleset { table: spec.table.clone(), comment, sets, flowtable: None, chains })
}

impl FirewallSpec {
    fn has_pods(&self, family: Family) -> bool {
        self.pod_subnets.iter().any(|network| subnet::family(*network) == family)
    }

    fn nodes(&self, family: Family) -> BTreeSet<Element> {
        elements(&self.node_addresses, family)
    }

    /// Where there are tunnels.
    fn own(&self, family: Family) -> BTreeSet<Element> {
        let has_tunnels = self.tunnel_vni.is_some() || self.encrypts;
        if has_tunnels { elements(&self.own_addresses, family) } else { BTreeSet::new() }
    }
}

fn forward(spec: &FirewallSpec) -> Option<Chain> {
    let accept = |comment: &str, condition| NftRule {
        comment: comment.to_owned(),
        matches: vec![condition],
        action: Action::Verdict(Verdict::Accept),
    };
    let rules = vec![
        accept("from pods", Match::InputInterface(spec.bridge.clone())),
        accept("to pods", Match::OutputInterface(spec.bridge.clone())),
    ];
    let base = base("filter", Hook::FORWARD, PRIORITY_FILTER);
    spec.accept_forward.then(|| Chain { name: "forward".to_owned(), base: Some(base), rules })
}

/// What goes through a tunnel keeps the mark of what is in it, and whoever masquerades by a mark
/// (kube-proxy before 1.19) gives the outer packet another port, and a wrong checksum if the inner
/// one is still to be computed. It is no connection of anybody's.
fn tunnel(spec: &FirewallSpec) -> Option<Chain> {
    let vni = spec.tunnel_vni?;
    let rule = NftRule {
        comment: "tunnels: no address is translated".to_owned(),
        matches: vec![Match::Vxlan(vni)],
        action: Action::Untracked,
    };
    let base = base("filter", Hook::OUTPUT, PRIORITY_RAW);
    Some(Chain { name: "tunnel".to_owned(), base: Some(base), rules: vec![rule] })
}

/// Every user may bind a socket to an IPv6 address that is not the host's (IP_FREEBIND), and send from it. What the
/// kernel sends in the name of a pod (an error, a reset) has no socket.
fn programs(spec: &FirewallSpec) -> Option<Chain> {
    let networks = spec.pools.iter().chain(&spec.pod_subnets);
    let networks =
        networks.filter(|network| spec.has_others && subnet::family(**network) == Family::V6);
    let networks: BTreeSet<IpNetwork> = networks.copied().map(subnet::masked).gather();
    let rule = |network| NftRule {
        comment: "a program sends from an address of pods".to_owned(),
        matches: vec![Match::Source(network), Match::FromProgram, Match::SourceNotLocal],
        action: Action::Verdict(Verdict::Drop),
    };
    let base = base("filter", Hook::OUTPUT, PRIORITY_RAW);
    let rules: Vec<NftRule> = networks.into_iter().map(rule).collect();
    (!rules.is_empty()).then(|| Chain { name: "programs".to_owned(), base: Some(base), rules })
}

fn postrouting(spec: &FirewallSpec, families: &[Family]) -> Option<Chain> {
    let own = families.iter().flat_map(|family| own_into_tunnels(spec, *family));
    let rules = families.iter().flat_map(|family| masquerade(spec, *family)).chain(own);
    let rules: Vec<NftRule> = rules.collect();
    let base = base("nat", Hook::POSTROUTING, PRIORITY_SRCNAT);
    (!rules.is_empty()).then(|| Chain { name: "postrouting".to_owned(), base: Some(base), rules })
}

/// One rule for each pod subnet.
fn masquerade(spec: &FirewallSpec, family: Family) -> Vec<NftRule> {
    let subnets = spec.pod_subnets.iter().filter(|network| subnet::family(**network) == family);
    let subnets: BTreeSet<IpNetwork> = subnets.copied().map(subnet::masked).gather();
    let outside_of = |set| Match::NotIn(Field::Destination(family), set);
    let mut outside = vec![outside_of(cluster_set(family))];
    if !spec.nodes(family).is_empty() {
        outside.push(outside_of(nodes_set(family)));
    }
    outside.push(Match::OutputInterfaceNot(spec.bridge.clone()));
    let rule = |network| NftRule {
        comment: "pods to the outside".to_owned(),
        matches: [vec![Match::Source(network)], outside.clone()].concat(),
        action: Action::Masquerade,
    };
    subnets.into_iter().map(rule).collect()
}

/// One rule for each device.
fn own_into_tunnels(spec: &FirewallSpec, family: Family) -> Vec<NftRule> {
    if spec.own(family).is_empty() {
        return Vec::new();
    }
    let address = spec.tunnel_addresses.iter().find(|address| Family::of(**address) == family);
    let Some(address) = address else { return Vec::new() };
    let rule = |device| NftRule {
        comment: "this host to pods behind tunnels".to_owned(),
        matches: vec![
            Match::OutputInterface(device),
            Match::In(Field::Source(family), own_set(family)),
        ],
        action: Action::Snat(*address),
    };
    let tunnels = Family::BOTH.map(device_name).into_iter().filter(|_| spec.tunnel_vni.is_some());
    // Each change of keys goes over to the other device.
    let encrypted = wireguard::device_names().into_iter().filter(|_| spec.encrypts);
    tunnels.chain(encrypted).map(rule).collect()
}

fn sets(spec: &FirewallSpec, family: Family) -> Vec<Set> {
    let fixed = NEVER_MASQUERADED.map(|text| text.parse().expect("a network"));
    let lists = [&spec.pod_subnets[..], &spec.pools, &spec.non_masq_cidrs, &fixed];
    let networks = lists.concat().into_iter().filter(|network| subnet::family(*network) == family);
    let cluster = Set {
        name: cluster_set(family),
        shape: Shape { intervals: true, ..Shape::set([Type::address(family)]) },
        elements: covering(networks).into_iter().map(Element::from).gather(),
    };
    let hosts = [(nodes_set(family), spec.nodes(family)), (own_set(family), spec.own(family))];
    let hosts = hosts.into_iter().filter(|(_, elements)| !elements.is_empty());
    let shape = Shape::set([Type::address(family)]);
    let hosts = hosts.map(|(name, elements)| Set { name, shape: shape.clone(), elements });
    [cluster].into_iter().chain(hosts).collect()
}

fn elements(addresses: &BTreeSet<IpAddr>, family: Family) -> BTreeSet<Element> {
    let of_family = addresses.iter().filter(|address| Family::of(**address) == family);
    of_family.copied().map(|address| AddressRange::single(address).into()).gather()
}

fn cluster_set(family: Family) -> String {
    match family {
        Family::V4 => "cluster4".to_owned(),
        Family::V6 => "cluster6".to_owned(),
    }
}

fn nodes_set(family: Family) -> String {
    match family {
        Family::V4 => "nodes4".to_owned(),
        Family::V6 => "nodes6".to_owned(),
    }
}

fn own_set(family: Family) -> String {
    match family {
        Family::V4 => "own4".to_owned(),
        Family::V6 => "own6".to_owned(),
    }
}

fn base(kind: &str, hook: Hook, priority: i32) -> Base {
    Base { kind: kind.to_owned(), hook, priority, policy: ChainPolicy::Accept }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(pod_subnets: &[&str]) -> FirewallSpec {
        let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        FirewallSpec {
            table: AGENT_TABLE.to_owned(),
            bridge: "humanz0".parse().unwrap(),
            pod_subnets: networks(pod_subnets),
            pools: networks(&["10.244.0.0/16", "fd00:10::/48"]),
            has_others: true,
            non_masq_cidrs: networks(&["172.16.0.0/12", "10.244.128.0/17"]),
            node_addresses: ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
                .map(|text| text.parse().unwrap())
                .into(),
            masquerade: true,
            tunnel_vni: None,
            encrypts: false,
            own_addresses: BTreeSet::new(),
            tunnel_addresses: vec!["10.244.3.1".parse().unwrap()],
            accept_forward: true,
        }
    }

    /// Checks the table, written almost as nft does: sets, then rules.
    fn check(spec: &FirewallSpec, wanted: &[&str]) {
        let Some(ruleset) = ruleset(spec) else {
            assert!(wanted.is_empty(), "no table");
            return;
        };
        let mut lines = Vec::new();
        for set in &ruleset.sets {
            let elements: Vec<_> = set.elements.iter().map(|range| range.to_string()).collect();
            lines.push(format!("@{} {}", set.name, elements.join(" ")));
        }
        for chain in &ruleset.chains {
            let rules = chain.rules.iter().map(|rule| format!("{}: {rule}", chain.name));
            lines.extend(rules);
        }
        assert_eq!(lines, wanted);
    }

    const CLUSTER4: &str = "@cluster4 10.244.0.0/16 172.16.0.0/12 224.0.0.0/4 255.255.255.255";
    const FROM_PODS: &str = "forward: iifname \"humanz0\" counter accept";
    const TO_PODS: &str = "forward: oifname \"humanz0\" counter accept";
    const PROGRAMS: &str =
        "programs: ip6 saddr fd00:10::/48 meta skuid >= 0 fib saddr type != local counter drop";
    const MASQUERADE4: &str = "postrouting: ip saddr 10.244.3.0/24 ip daddr != @cluster4 \
        ip daddr != @nodes4 oifname != \"humanz0\" counter masquerade fully-random";

    #[test]
    fn pods_of_one_family_need_nothing_of_the_other() {
        let lines =
            [CLUSTER4, "@nodes4 192.0.2.1 192.0.2.2", FROM_PODS, TO_PODS, PROGRAMS, MASQUERADE4];
        check(&spec(&["10.244.3.0/24"]), &lines);
    }

    #[test]
    fn dual_stack_has_both() {
        let lines = [
            CLUSTER4,
            "@nodes4 192.0.2.1 192.0.2.2",
            "@cluster6 fd00:10::/48 ff00::/8",
            "@nodes6 2001:db8::1",
            FROM_PODS,
            TO_PODS,
            PROGRAMS,
            "programs: ip6 saddr fd00:10:0:3::/64 meta skuid >= 0 fib saddr type != local counter drop",
            MASQUERADE4,
            "postrouting: ip6 saddr fd00:10:0:3::/64 ip6 daddr != @cluster6 ip6 daddr != @nodes6 \
             oifname != \"humanz0\" counter masquerade fully-random",
        ];
        check(&spec(&["10.244.3.0/24", "fd00:10:0:3::/64"]), &lines);
    }

    #[test]
    fn without_known_nodes_there_is_no_set_of_them() {
        let alone = FirewallSpec { node_addresses: BTreeSet::new(), ..spec(&["10.244.3.0/24"]) };
        let rule = "postrouting: ip saddr 10.244.3.0/24 ip daddr != @cluster4 \
                    oifname != \"humanz0\" counter masquerade fully-random";
        check(&alone, &[CLUSTER4, FROM_PODS, TO_PODS, PROGRAMS, rule]);
    }

    #[test]
    fn the_own_subnet_counts_as_cluster_even_outside_the_pool() {
        let moved = FirewallSpec { pools: Vec::new(), ..spec(&["10.9.0.0/24"]) };
        let cluster = &ruleset(&moved).unwrap().sets[0];
        assert!(
            cluster
                .elements
                .contains(&AddressRange::from("10.9.0.0/24".parse::<IpNetwork>().unwrap()).into())
        );
    }

    #[test]
    fn without_masquerade_only_forwarding_is_left() {
        let plain = FirewallSpec { masquerade: false, ..spec(&["10.244.3.0/24"]) };
        check(&plain, &[FROM_PODS, TO_PODS, PROGRAMS]);
    }

    #[test]
    fn packets_through_a_tunnel_are_not_masqueraded() {
        let tunnels =
            FirewallSpec { masquerade: false, tunnel_vni: Some(104), ..spec(&["10.244.3.0/24"]) };
        let untracked =
            "tunnel: meta l4proto udp @th,64,32 0x8000000 @th,96,24 0x68 counter notrack";
        check(&tunnels, &[FROM_PODS, TO_PODS, untracked, PROGRAMS]);
    }

    #[test]
    fn what_the_host_sends_through_a_tunnel_gets_the_address_of_that() {
        let own = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap()).into();
        let spec = FirewallSpec {
            node_addresses: BTreeSet::new(),
            accept_forward: false,
            own_addresses: own,
            tunnel_vni: Some(104),
            ..spec(&["10.244.3.0/24"])
        };
        let untracked =
            "tunnel: meta l4proto udp @th,64,32 0x8000000 @th,96,24 0x68 counter notrack";
        let pods = "postrouting: ip saddr 10.244.3.0/24 ip daddr != @cluster4 \
                    oifname != \"humanz0\" counter masquerade fully-random";
        let through = |device: &str| {
            format!(
                "postrouting: oifname \"{device}\" ip saddr @own4 counter snat ip to 10.244.3.1 fully-random"
            )
        };
        let (v4, v6) = (through("humanz-vx4"), through("humanz-vx6"));
        check(&spec, &[CLUSTER4, "@own4 192.0.2.1", untracked, PROGRAMS, pods, &v4, &v6]);
        check(&FirewallSpec { tunnel_vni: None, ..spec.clone() }, &[CLUSTER4, PROGRAMS, pods]);
        let encrypts = FirewallSpec { tunnel_vni: None, encrypts: true, ..spec };
        let (first, second) = (through("humanz-wg"), through("humanz-wg2"));
        let wanted = [CLUSTER4, "@own4 192.0.2.1", PROGRAMS, pods, &first, &second];
        check(&encrypts, &wanted);
    }

    #[test]
    fn nothing_asked_for_is_no_table() {
        let pods = FirewallSpec { has_others: false, ..spec(&["10.244.3.0/24"]) };
        let plain = FirewallSpec { masquerade: false, accept_forward: false, ..pods };
        check(&plain, &[]);
        let empty = FirewallSpec { accept_forward: false, has_others: false, ..spec(&[]) };
        check(&empty, &[]);
    }

    #[test]
    fn every_network_has_its_own_table() {
        assert_eq!(standalone_table("podnet"), "humanz_podnet");
    }
}
