//! Pure. The table of tunnels: which VXLAN packets this host takes in, and which its pods cannot send.
//!
//! Everybody knows identifier, port and MAC of a tunnel, so none of them proves anything. A packet is
//! taken in if another host sent it (its outer source) from its own pods (the inner source) to pods of
//! this host (the inner destination). The outer source cannot be a pod or whatever else is behind a host and
//! gets its address when it is forwarded (containers of another bridge, machines that it masquerades): hosts let
//! nothing through to the tunnel of any host but what a host has sent. Nor can it be a program of a host, whatever
//! its user: what a socket sends to a tunnel can be from the host itself alone.
//!
//! A table of its own: it changes with every host, and what is written anew with the settings is small.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::subnet::Pool;
use crate::net::{Family, IfName, PerFamily, subnet};
use crate::nft::{
    Action, Chain, Element, Field, Hook, Match, NftRule, Ruleset, Set, Shape, Type, Value, Verdict,
};
use crate::plan::firewall::{PRIORITY_RAW, base};

/// The table's name. No network's table can have it: theirs is `humanz_<network>`.
pub const TUNNELS_TABLE: &str = "humanz-tunnels";

/// Of a host that has an older, wider subnet; no host needs more.
const MOST_SLOTS: usize = 4096;

/// Comments of the rules that drop, by which `explain` and the metrics know them.
pub const FROM_POD: &str = "a pod sends to a tunnel";
pub const FORWARDED: &str = "somebody who is no host sends to a tunnel";
pub const FROM_PROGRAM: &str = "a program sends to a tunnel what is not from this host itself";
pub const FOREIGN: &str = "no other host sends this from its pods to pods of this host";

/// What the table must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelFilter {
    /// The bridge that the pods are plugged into.
    pub bridge: IfName,
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port of this host's tunnel.
    pub port: u16,
    /// This host's node addresses, which the others send to.
    pub own: PerFamily<IpAddr>,
    pub pod_subnets: PerFamily<IpNetwork>,
    /// This host's blocks of tenants' networks.
    pub blocks: Vec<IpNetwork>,
    pub pools: PerFamily<Pool>,
    /// The other hosts that have tunnels.
    pub peers: Vec<TunnelEnd>,
}

/// Another host that has a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelEnd {
    /// Its node addresses.
    pub addresses: PerFamily<IpAddr>,
    pub port: u16,
    pub pod_subnets: PerFamily<IpNetwork>,
    pub blocks: Vec<IpNetwork>,
}

/// The table that `filter` asks for.
pub fn ruleset(filter: &TunnelFilter) -> Ruleset {
    let pairs: Vec<Pair> = filter.pairs().collect();
    let sets = pairs.iter().map(|pair| filter.senders(*pair));
    let of_blocks = pairs.iter().flat_map(|pair| filter.block_senders(*pair));
    let sets = sets.chain(of_blocks);
    let nodes = pairs.iter().filter(|pair| pair.outer == pair.inner);
    let sets = sets.chain(nodes.map(|pair| filter.nodes(pair.inner)));
    let sets = sets.chain(Family::BOTH.map(|family| filter.ends(family)));
    let sets = sets.chain(Family::BOTH.map(|family| filter.hosts(family))).collect();
    let comment = "written by humanz: which packets of tunnels are taken in".to_owned();
    let chain = |name: &str, hook, rules| {
        let base = Some(base("filter", hook, PRIORITY_RAW));
        Chain { name: name.to_owned(), base, rules }
    };
    let sent = Family::BOTH.iter().flat_map(|family| filter.sent(*family)).collect();
    let by_programs = Family::BOTH.map(|family| filter.sent_by_programs(family)).into();
    let chains = vec![
        chain("received", Hook::INPUT, vec![filter.received()]),
        Chain { name: CHECKED.to_owned(), base: None, rules: filter.checked(&pairs) },
        chain("sent", Hook::FORWARD, sent),
        chain("programs", Hook::OUTPUT, by_programs),
        Chain { name: BY_PROGRAM.to_owned(), base: None, rules: filter.by_program() },
    ];
    Ruleset { table: TUNNELS_TABLE.to_owned(), comment, sets, flowtable: None, chains }
}

/// The chain that a packet of a tunnel goes through.
const CHECKED: &str = "checked";

/// The chain for what a socket of this host sends to a tunnel.
const BY_PROGRAM: &str = "program";

/// Families of the outer and the inner packet.
#[derive(Clone, Copy)]
struct Pair {
    outer: Family,
    inner: Family,
}

impl Pair {
    fn set(self) -> &'static str {
        senders_set(self.outer, self.inner)
    }
}

/// The set of hosts, each with what its pods send from.
pub fn senders_set(outer: Family, inner: Family) -> &'static str {
    match (inner, outer) {
        (Family::V4, Family::V4) => "hosts_4in4",
        (Family::V6, Family::V4) => "hosts_6in4",
        (Family::V4, Family::V6) => "hosts_4in6",
        (Family::V6, Family::V6) => "hosts_6in6",
    }
}

impl TunnelFilter {
    /// The usual ones first: pods' packets travel in those of their family.
    fn pairs(&self) -> impl Iterator<Item = Pair> {
        let inner = self.pod_subnets.entries().map(|(inner, _)| inner);
        let outer = || self.own.entries().map(|(outer, _)| outer);
        let all = inner.flat_map(move |inner| outer().map(move |outer| Pair { outer, inner }));
        let (usual, rest): (Vec<Pair>, Vec<Pair>) = all.partition(|pair| pair.outer == pair.inner);
        usual.into_iter().chain(rest)
    }

    /// Fragments of IPv4 are whole at this hook, those of IPv6 perhaps not. A first fragment that ends
    /// before what is compared is dropped with all that cannot be read, and the others are nothing without
    /// it: so nothing but the port decides here.
    fn received(&self) -> NftRule {
        let matches = vec![Match::UdpTo(self.port)];
        rule("packets of tunnels", matches, Verdict::Jump(CHECKED.to_owned()))
    }

    fn checked(&self, pairs: &[Pair]) -> Vec<NftRule> {
        let drop = |comment, matches| rule(comment, matches, Verdict::Drop);
        let not_ours = vec![Match::VniNot(self.vni)];
        let not_ours = rule("a device of somebody else", not_ours, Verdict::Accept);
        let from_pods = drop(FROM_POD, vec![Match::InputInterface(self.bridge.clone())]);
        let accepted = pairs.iter().flat_map(|pair| self.accepted(*pair));
        let from_nodes = pairs.iter().filter(|pair| pair.outer == pair.inner);
        let from_nodes = from_nodes.flat_map(|pair| self.accepted_from_node(pair.inner));
        [not_ours, from_pods]
            .into_iter()
            .chain(accepted)
            .chain(from_nodes)
            .chain([drop(FOREIGN, Vec::new())])
            .collect()
    }

    /// What the kernel delivers here is for an address of this host, whichever the others know.
    fn accepted(&self, pair: Pair) -> Vec<NftRule> {
        let Pair { outer, inner } = pair;
        let slots = self.pools.get(inner).map(|pool| (pool.host_prefix(), pair.set().to_owned()));
        let blocks = self.block_prefixes(pair).into_iter();
        let senders =
            slots.into_iter().chain(blocks.map(|prefix| (prefix, blocks_set(pair, prefix))));
        let rules = senders.flat_map(|(prefix, set)| {
            self.destinations(inner).map(move |destination| NftRule {
                comment: "another host's pods to pods of this host".to_owned(),
                matches: vec![
                    Match::Inner(inner),
                    Match::InnerDestination(destination),
                    Match::AllIn(
                        vec![Field::Source(outer), Field::InnerSource(inner, prefix)],
                        set.clone(),
                    ),
                ],
                action: Action::Verdict(Verdict::Accept),
            })
        });
        rules.collect()
    }

    /// Where this host's pods have their addresses.
    fn destinations(&self, inner: Family) -> impl Iterator<Item = IpNetwork> {
        let blocks = self.blocks.iter().filter(move |block| subnet::family(**block) == inner);
        self.pod_subnets.get(inner).into_iter().chain(blocks).copied()
    }

    /// The prefix lengths of other hosts' blocks.
    fn block_prefixes(&self, pair: Pair) -> BTreeSet<u8> {
        let reached = self.peers.iter().filter(|peer| peer.addresses.get(pair.outer).is_some());
        let blocks = reached.flat_map(|peer| &peer.blocks);
        let inner = blocks.filter(|block| subnet::family(**block) == pair.inner);
        inner.map(|block| block.prefix()).gather()
    }

    /// As [`TunnelFilter::senders`], for blocks: one set for each prefix length.
    fn block_senders(&self, pair: Pair) -> Vec<Set> {
        let Pair { outer, inner } = pair;
        let shape = || Shape::set([Type::address(outer), Type::Inner(inner)]);
        let set = |prefix: u8| {
            let elements = self.peers.iter().filter_map(|peer| {
                let address = *peer.addresses.get(outer)?;
                let is_of = move |block: &&IpNetwork| {
                    subnet::family(**block) == inner && block.prefix() == prefix
                };
                Some(peer.blocks.iter().filter(is_of).map(move |block| {
                    Element::key([Value::address(address), Value::address(block.network())])
                }))
            });
            let elements = elements.flatten().collect();
            Set { name: blocks_set(pair, prefix), shape: shape(), elements }
        };
        self.block_prefixes(pair).into_iter().map(set).collect()
    }

    /// What another host itself sends to pods of this one: an answer to a pod that it saw unmasqueraded.
    fn accepted_from_node(&self, family: Family) -> Vec<NftRule> {
        let sender = vec![Field::Source(family), Field::InnerSource(family, family.bits())];
        let accept = |destination| {
            let matches = vec![
                Match::Inner(family),
                Match::InnerDestination(destination),
                Match::AllIn(sender.clone(), nodes_set(family).to_owned()),
            ];
            rule("another host to pods of this host", matches, Verdict::Accept)
        };
        self.destinations(family).map(accept).collect()
    }

    /// The node addresses of other hosts, each with itself.
    fn nodes(&self, family: Family) -> Set {
        let addresses = self.peers.iter().filter_map(|peer| peer.addresses.get(family));
        let twice = addresses.map(|address| [Value::address(*address), Value::address(*address)]);
        let shape = Shape::set([Type::address(family), Type::Inner(family)]);
        Set {
            name: nodes_set(family).to_owned(),
            shape,
            elements: twice.map(Element::key).collect(),
        }
    }

    /// The node addresses of other hosts with what their pods send from, slot by slot of the pool: the
    /// kernel then finds a sender by one hash.
    fn senders(&self, pair: Pair) -> Set {
        let Pair { outer, inner } = pair;
        let mut elements = BTreeSet::new();
        for peer in &self.peers {
            let ends = peer.addresses.get(outer).zip(peer.pod_subnets.get(inner));
            let Some(((address, subnet), pool)) = ends.zip(self.pools.get(inner)) else { continue };
            let Some((first, last)) = pool.slots_of(*subnet) else { continue };
            let slots = (first..=last).take(MOST_SLOTS);
            elements.extend(slots.map(|slot| {
                let network = pool.subnet(slot).network();
                Element::key([Value::address(*address), Value::address(network)])
            }));
        }
        let shape = Shape::set([Type::address(outer), Type::Inner(inner)]);
        Set { name: pair.set().to_owned(), shape, elements }
    }

    /// The tunnels of all hosts, this one's too: address and port.
    fn ends(&self, family: Family) -> Set {
        let peers = self.peers.iter().map(|peer| (peer.addresses, peer.port));
        let all = peers.chain([(self.own, self.port)]);
        let ends = all.filter_map(|(addresses, port)| Some((*addresses.get(family)?, port)));
        let element = |(address, port)| Element::key([Value::address(address), Value::port(port)]);
        let shape = Shape::set([Type::address(family), Type::Port]);
        Set { name: ends_set(family).to_owned(), shape, elements: ends.map(element).collect() }
    }

    /// The node addresses of the other hosts: what one of them sends another one may come by this one.
    fn hosts(&self, family: Family) -> Set {
        let addresses = self.peers.iter().filter_map(|peer| peer.addresses.get(family));
        let element = |address: &IpAddr| Element::key([Value::address(*address)]);
        let shape = Shape::set([Type::address(family)]);
        Set {
            name: hosts_set(family).to_owned(),
            shape,
            elements: addresses.map(element).collect(),
        }
    }

    /// The packets that the kernel makes of pods' ones have no socket here.
    fn sent_by_programs(&self, family: Family) -> NftRule {
        let end = vec![Field::Destination(family), Field::DestinationPort];
        let end = Match::AllIn(end, ends_set(family).to_owned());
        let matches = vec![Match::FromProgram, Match::Vxlan(self.vni), end];
        rule("a program sends to a tunnel", matches, Verdict::Jump(BY_PROGRAM.to_owned()))
    }

    /// This host itself sends to pods from its node address, or gets the address of the tunnel.
    fn by_program(&self) -> Vec<NftRule> {
        let gateways = self.pod_subnets.iter().map(|subnet| subnet::gateway(*subnet));
        let from_itself = gateways.chain(self.own.iter().copied()).map(|address| {
            let inner = Family::of(address);
            let source = Field::InnerSource(inner, inner.bits());
            let source = Match::Within(source, subnet::host(address));
            rule("this host itself", vec![Match::Inner(inner), source], Verdict::Accept)
        });
        let drop = |matches| rule(FROM_PROGRAM, matches, Verdict::Drop);
        let spoofed = drop(vec![Match::SourceNotLocal]);
        [spoofed].into_iter().chain(from_itself).chain([drop(Vec::new())]).collect()
    }

    fn sent(&self, family: Family) -> [NftRule; 2] {
        let drop = |comment, from| {
            // Addresses and ports are what other hosts published: no other packet than one of a tunnel is
            // dropped because of them.
            let end = vec![Field::Destination(family), Field::DestinationPort];
            let end = Match::AllIn(end, ends_set(family).to_owned());
            rule(comment, vec![Match::Vxlan(self.vni), from, end], Verdict::Drop)
        };
        let no_host = Match::NotIn(Field::Source(family), hosts_set(family).to_owned());
        [
            drop(FROM_POD, Match::InputInterface(self.bridge.clone())),
            // The address of a container is still its own here: hosts translate it later.
            drop(FORWARDED, no_host),
        ]
    }
}

fn rule(comment: &str, matches: Vec<Match>, verdict: Verdict) -> NftRule {
    NftRule { comment: comment.to_owned(), matches, action: Action::Verdict(verdict) }
}

/// The set of hosts, each with its blocks of this prefix length.
fn blocks_set(pair: Pair, prefix: u8) -> String {
    let digit = |family| if family == Family::V4 { 4 } else { 6 };
    format!("blocks{prefix}_{}in{}", digit(pair.inner), digit(pair.outer))
}

/// The set of hosts, each with its own address.
pub fn nodes_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "nodes_4in4",
        Family::V6 => "nodes_6in6",
    }
}

/// The set of node addresses of the other hosts.
fn hosts_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "hosts4",
        Family::V6 => "hosts6",
    }
}

/// The set of addresses and ports of tunnels.
pub fn ends_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "tunnels4",
        Family::V6 => "tunnels6",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family<T>(v4: T, v6: T) -> PerFamily<T> {
        PerFamily { v4: Some(v4), v6: Some(v6) }
    }

    fn filter() -> TunnelFilter {
        let pool = |text: &str, margin| Pool::new(text.parse().unwrap(), margin).unwrap();
        TunnelFilter {
            bridge: "humanz0".parse().unwrap(),
            vni: 104,
            port: 10400,
            own: PerFamily { v4: "192.0.2.1".parse().ok(), v6: None },
            pod_subnets: family("10.244.1.0/24", "fd00:0:0:1::/64").map_texts(),
            blocks: Vec::new(),
            pools: family(pool("10.244.0.0/16", 8), pool("fd00::/48", 16)),
            peers: vec![TunnelEnd {
                addresses: PerFamily {
                    v4: "192.0.2.2".parse().ok(),
                    v6: "2001:db8::2".parse().ok(),
                },
                port: 53,
                pod_subnets: family("10.244.2.0/23", "fd00:0:0:2::/64").map_texts(),
                blocks: Vec::new(),
            }],
        }
    }

    trait MapTexts {
        fn map_texts(self) -> PerFamily<IpNetwork>;
    }

    impl MapTexts for PerFamily<&str> {
        fn map_texts(self) -> PerFamily<IpNetwork> {
            PerFamily { v4: self.v4.unwrap().parse().ok(), v6: self.v6.unwrap().parse().ok() }
        }
    }

    #[test]
    fn a_sender_is_an_address_with_each_slot_of_its_subnets() {
        let elements = |name: &str| {
            let ruleset = ruleset(&filter());
            let set = ruleset.sets.into_iter().find(|set| set.name == name);
            set.map(|set| set.elements.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let v4 = ["192.0.2.2 . 10.244.2.0", "192.0.2.2 . 10.244.3.0"].map(str::to_owned);
        assert_eq!(elements("hosts_4in4"), Some(v4.into()));
        assert_eq!(elements("hosts_6in4"), Some(vec!["192.0.2.2 . fd00:0:0:2::".to_owned()]));
        assert_eq!(elements("hosts_4in6"), None, "this host has no IPv6 address");
        assert_eq!(elements("nodes_4in4"), Some(vec!["192.0.2.2 . 192.0.2.2".to_owned()]));
        let ends = ["192.0.2.1 . 10400", "192.0.2.2 . 53"].map(str::to_owned);
        assert_eq!(elements("tunnels4"), Some(ends.into()));
        assert_eq!(elements("tunnels6"), Some(vec!["2001:db8::2 . 53".to_owned()]));
        assert_eq!(elements("hosts4"), Some(vec!["192.0.2.2".to_owned()]));
    }

    #[test]
    fn what_is_not_of_another_host_is_dropped() {
        let chains = ruleset(&filter()).chains;
        let rules = chains
            .iter()
            .flat_map(|chain| chain.rules.iter().map(|rule| format!("{}: {rule}", chain.name)));
        let lines: Vec<String> = rules.collect();
        let accepted = |inner: &str, subnet: &str, prefix: u8, set: &str| {
            format!(
                "checked: vxlan ether type {inner} vxlan {inner} daddr {subnet} ip saddr . vxlan \
                 {inner} saddr/{prefix} @{set} counter accept"
            )
        };
        let sent = |from: &str, family: &str, number: u8| {
            format!(
                "sent: meta l4proto udp @th,64,32 0x8000000 @th,96,24 0x68 {from} {family} daddr . th dport \
                 @tunnels{number} counter drop"
            )
        };
        let itself = |inner: &str, source: &str| {
            format!("program: vxlan ether type {inner} vxlan {inner} saddr/{source} counter accept")
        };
        let by_programs = |family: &str, number: u8| {
            format!(
                "programs: meta skuid >= 0 meta l4proto udp @th,64,32 0x8000000 @th,96,24 0x68 {family} daddr . \
                 th dport @tunnels{number} jump program"
            )
        };
        assert_eq!(
            lines,
            [
                "received: meta l4proto udp th dport 10400 jump checked".to_owned(),
                "checked: vxlan vni != 104 counter accept".to_owned(),
                "checked: iifname \"humanz0\" counter drop".to_owned(),
                accepted("ip", "10.244.1.0/24", 24, "hosts_4in4"),
                accepted("ip6", "fd00:0:0:1::/64", 64, "hosts_6in4"),
                accepted("ip", "10.244.1.0/24", 32, "nodes_4in4"),
                "checked: counter drop".to_owned(),
                sent("iifname \"humanz0\"", "ip", 4),
                sent("ip saddr != @hosts4", "ip", 4),
                sent("iifname \"humanz0\"", "ip6", 6),
                sent("ip6 saddr != @hosts6", "ip6", 6),
                by_programs("ip", 4),
                by_programs("ip6", 6),
                "program: fib saddr type != local counter drop".to_owned(),
                itself("ip", "32 10.244.1.1/32"),
                itself("ip6", "128 fd00:0:0:1::1/128"),
                itself("ip", "32 192.0.2.1/32"),
                "program: counter drop".to_owned(),
            ]
        );
    }

    #[test]
    fn blocks_are_senders_by_their_prefix_and_receivers_beside_the_subnet() {
        let mut filter = filter();
        filter.blocks = vec!["10.32.0.64/26".parse().unwrap()];
        filter.peers[0].blocks =
            ["10.32.0.128/26", "10.33.0.0/28"].map(|block| block.parse().unwrap()).into();
        let ruleset = ruleset(&filter);
        let elements = |name: &str| {
            let set = ruleset.sets.iter().find(|set| set.name == name).unwrap();
            set.elements.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(elements("blocks26_4in4"), ["192.0.2.2 . 10.32.0.128"]);
        assert_eq!(elements("blocks28_4in4"), ["192.0.2.2 . 10.33.0.0"]);
        let rules: Vec<String> = ruleset.chains[1].rules.iter().map(ToString::to_string).collect();
        for destination in ["10.244.1.0/24", "10.32.0.64/26"] {
            for (prefix, set) in [(24, "hosts_4in4"), (26, "blocks26_4in4"), (28, "blocks28_4in4")]
            {
                let wanted = format!(
                    "vxlan ether type ip vxlan ip daddr {destination} ip saddr . vxlan ip saddr/{prefix} @{set} \
                     counter accept"
                );
                assert!(rules.contains(&wanted), "{wanted}: {rules:#?}");
            }
        }
    }

    /// A host with a subnet of 2^24 slots must not take the memory of the others.
    #[test]
    fn a_peer_has_a_bounded_number_of_elements() {
        let mut filter = filter();
        filter.pools.v4 = Pool::new("10.0.0.0/8".parse().unwrap(), 20).ok();
        filter.peers[0].pod_subnets.v4 = "10.0.0.0/8".parse().ok();
        let most = ruleset(&filter).sets.iter().map(|set| set.elements.len()).max();
        assert_eq!(most, Some(MOST_SLOTS));
    }
}
