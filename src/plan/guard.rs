//! Pure. The guard at each pod's port: what a pod may send, as a chain at the ingress of the host's
//! end of its veth, where frames pass before the bridge sees them.
//!
//! A pod sends as itself only: with its MAC, its addresses and what the network allows besides, in
//! IP, ARP and NDP. It does not play router (RA, redirect), DHCP server or switch (BPDU, tags).
//! Unicast IP goes to the MAC of the host's end, which the bridge takes for its own, whatever MAC the
//! pod sent it to. So the host routes it: also a packet to a pod of the same host passes the hooks of
//! netfilter. (The bridge's MAC would do as well, but somebody may change it.)
//!
//! Sources: RFC 826 (ARP), RFC 4861 §4 and RFC 6980 (NDP, and no fragments of it), RFC 5227 §1.1
//! (ARP probe), RFC 2131 §4.1 and RFC 8415 §7.2 (ports of DHCP).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::cni::config::NetConf;
use crate::ipam::StoreEntry;
use crate::net::{Family, IfName, Mac, Object, subnet};
use crate::netlink::link::Link;
use crate::netlink::neighbour::{NeighbourState, NudState};
use crate::netlink::wire::octets;
use crate::nft::frame::{
    Compare, DeviceChain, FoundChains, FoundFrameRule, FrameAction, FrameMatch, FrameRule, Header,
};
use crate::plan::pod::{LinkIdentity, is_of_network};
use crate::plan::{Describe, Line};

/// The table of the family `netdev` with the guards of all networks of a host.
pub const TABLE: &str = "humanz";

/// What an operator reads at its head.
pub const COMMENT: &str = "humanz: what each pod may send";

/// So many guards without a pod are removed at once; fewer ones wait for the next full check. To remove
/// guards makes whoever closes a netfilter socket at that moment wait, such as an ADD.
pub const LEFTOVERS: usize = 256;

/// What one pod may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The host's end of its veth.
    pub device: IfName,
    pub mac: Mac,
    pub addresses: Vec<IpAddr>,
    /// Further sources; those that are multicast are destinations instead.
    pub allowed: Vec<IpNetwork>,
    /// The MAC of the device if the host routes what the pod sends; `None`: it is bridged.
    pub routed_by: Option<Mac>,
}

/// What goes with guards: the bridge ignores router advertisements and redirects, and sends none to
/// pods whose packets leave as they came in, by the bridge. Of `all` and the bridge's own setting it
/// is enough that one wants redirects to be sent (kernel: Documentation/networking/ip-sysctl.rst);
/// other links have settings of their own.
pub fn guard_sysctls(bridge: &IfName) -> [(String, &'static str); 5] {
    let of = |family: &str, name: &str, key: &str| (format!("net/{family}/conf/{name}/{key}"), "0");
    [
        of("ipv6", bridge.as_str(), "accept_ra"),
        of("ipv6", bridge.as_str(), "accept_redirects"),
        of("ipv4", bridge.as_str(), "accept_redirects"),
        of("ipv4", bridge.as_str(), "send_redirects"),
        of("ipv4", "all", "send_redirects"),
    ]
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Another source MAC than the pod's.
    Mac,
    /// A server's answer to a client.
    Dhcp,
    /// Neither IP nor ARP, or tagged.
    Protocol,
    /// Somebody else's address in ARP, or not ARP for IPv4.
    Arp,
    /// Router advertisement or solicitation, redirect, or somebody else's address.
    Ndp,
    /// To many, and neither ARP nor NDP.
    Multicast,
    /// To a loopback address of the host.
    Loopback,
    /// Another source address than the pod's.
    Source,
}

impl DropReason {
    pub const ALL: [DropReason; 8] = [
        DropReason::Mac,
        DropReason::Dhcp,
        DropReason::Protocol,
        DropReason::Arp,
        DropReason::Ndp,
        DropReason::Multicast,
        DropReason::Loopback,
        DropReason::Source,
    ];

    /// One word, for metrics and as the comment of the rule.
    pub fn word(self) -> &'static str {
        match self {
            DropReason::Mac => "mac",
            DropReason::Dhcp => "dhcp",
            DropReason::Protocol => "protocol",
            DropReason::Arp => "arp",
            DropReason::Ndp => "ndp",
            DropReason::Multicast => "multicast",
            DropReason::Loopback => "loopback",
            DropReason::Source => "source",
        }
    }
}

/// What is known of a host's pods, for guards that no configuration of a runtime describes.
#[derive(Debug)]
pub struct FoundPorts<'a> {
    pub links: &'a [Link],
    pub entries: &'a [StoreEntry],
    /// MACs pinned to ports, with the index of the port.
    pub pinned: &'a [(Mac, u32)],
    /// On the bridge.
    pub neighbours: &'a [NeighbourState],
}

/// A port of the bridge that belongs to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPort<'a> {
    pub link: &'a Link,
    pub mac: Mac,
    pub addresses: Vec<IpAddr>,
    /// The MAC is pinned to the port, and the bridge learns none there.
    pub is_fixed: bool,
}

/// The ports of `network` on the bridge `bridge` that are up (others belong to an ADD), and those links of which nobody knows an address.
///
/// A pod's MAC is the pinned one. Of a port that an older release attached there is none: then it is
/// the one that the host has used so far, unless that is somebody else's; else the one that follows
/// from the first address.
pub fn ports<'a>(
    network: &str,
    bridge: &Link,
    found: &FoundPorts<'a>,
) -> (Vec<PodPort<'a>>, Vec<&'a Link>) {
    let of_network = |link: &&Link| {
        link.up
            && link.master == Some(bridge.index)
            && is_of_network(link.alias.as_deref(), network)
    };
    let derived: BTreeSet<Mac> = found
        .entries
        .iter()
        .filter_map(|entry| entry.addresses.first())
        .map(|first| Mac::of_address(*first))
        .collect();
    let (mut ports, mut unknown) = (Vec::new(), Vec::new());
    for link in found.links.iter().filter(of_network) {
        let owner = |entry: &&StoreEntry| {
            let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
            LinkIdentity { network, container_id, ifname }.host_ifname() == link.name
        };
        let pinned = found.pinned.iter().find(|(_, port)| *port == link.index).map(|(mac, _)| *mac);
        let addresses = match found.entries.iter().find(owner) {
            Some(entry) => entry.addresses.clone(),
            None => pinned.map(|mac| permanent(found.neighbours, mac)).unwrap_or_default(),
        };
        let Some(first) = addresses.first() else {
            unknown.push(link);
            continue;
        };
        let own = Mac::of_address(*first);
        let used = found.neighbours.iter().find(|neighbour| neighbour.address == *first);
        let used = used.and_then(|neighbour| neighbour.mac);
        let used = used.filter(|mac| !derived.contains(mac) && Some(*mac) != bridge.mac);
        let is_fixed = pinned.is_some() && link.port.is_some_and(|port| port.fixed);
        ports.push(PodPort { link, mac: pinned.or(used).unwrap_or(own), addresses, is_fixed });
    }
    (ports, unknown)
}

/// The addresses that were said to have this MAC for good.
fn permanent(neighbours: &[NeighbourState], mac: Mac) -> Vec<IpAddr> {
    let of = |neighbour: &&NeighbourState| {
        neighbour.mac == Some(mac) && neighbour.state == NudState::Permanent
    };
    neighbours.iter().filter(of).map(|neighbour| neighbour.address).collect()
}

/// The change of one guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardChange {
    Add(DeviceChain),
    Replace(DeviceChain),
    /// Its device shall have none.
    Remove(String),
    /// The MAC is pinned to the port with this index, and no other is learned there; or no longer.
    Fix(IfName, u32, Option<Mac>),
}

/// The changes that turn `found` into `wanted`. Of `found` only chains named in `wanted` or
/// `unwanted` are changed: others belong to other networks.
pub fn changes(
    wanted: &[DeviceChain],
    unwanted: &BTreeSet<String>,
    found: Option<&FoundChains>,
) -> Vec<GuardChange> {
    let none = BTreeMap::new();
    let found = found.unwrap_or(&none);
    let kept = wanted.iter().filter_map(|chain| match found.get(chain.device.as_str()) {
        None => Some(GuardChange::Add(chain.clone())),
        Some(rules) if is_whole(chain, rules) => None,
        Some(_) => Some(GuardChange::Replace(chain.clone())),
    });
    let is_wanted = |name: &String| wanted.iter().any(|chain| chain.device.as_str() == name);
    let removed = found.keys().filter(|name| unwanted.contains(*name) && !is_wanted(name));
    kept.chain(removed.cloned().map(GuardChange::Remove)).collect()
}

/// The rules of the kernel are those of `wanted`.
pub fn is_whole(wanted: &DeviceChain, found: &[FoundFrameRule]) -> bool {
    let fingerprints = wanted.fingerprints();
    fingerprints.len() == found.len()
        && fingerprints.iter().zip(found).all(|(wanted, found)| found.fingerprint == Some(*wanted))
}

/// Frames dropped so far, by reason.
pub fn dropped(found: &[FoundFrameRule]) -> BTreeMap<DropReason, u64> {
    let mut dropped = BTreeMap::new();
    for rule in found {
        let is_of = |reason: &DropReason| rule.comment.as_deref() == Some(reason.word());
        if let Some(reason) = DropReason::ALL.into_iter().find(is_of) {
            *dropped.entry(reason).or_default() += rule.packets;
        }
    }
    dropped
}

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
/// The next header of a fragment.
const FRAGMENT: u8 = 44;
const ICMPV6: u8 = 58;
/// The types of NDP: router and neighbour solicitation and advertisement, redirect.
const FIRST_NDP: u8 = 133;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const LAST_NDP: u8 = 137;
/// Next header ICMPv6 at once and the hop limit that no router leaves: bytes 6 and 7 of the header.
const ICMPV6_OF_THE_LINK: [u8; 2] = [ICMPV6, 255];
/// The group bit of a MAC: multicast or broadcast.
const GROUP: u8 = 1;

impl Guard {
    /// That of a pod of the network `conf`, if there is to be one. Isolated ports stay apart: what
    /// the host routes between them would pass.
    pub fn of(
        conf: &NetConf,
        device: &IfName,
        mac: Mac,
        addresses: &[IpAddr],
        host_mac: Option<Mac>,
    ) -> Option<Guard> {
        let routes = conf.guard.routes && conf.is_gateway && !conf.port_isolation;
        conf.guard.is_on.then(|| Guard {
            device: device.clone(),
            mac,
            addresses: addresses.to_vec(),
            allowed: conf.guard.allowed.clone(),
            routed_by: host_mac.filter(|_| routes),
        })
    }

    /// Its chain. Rules of settled traffic come first.
    pub fn chain(&self) -> DeviceChain {
        let mut rules = Rules(Vec::new());
        rules.drop(DropReason::Mac, vec![link(6, Compare::NotEqual, &self.mac.0)]);
        if self.sends(Family::V4) {
            self.ipv4(&mut rules);
        }
        if self.sends(Family::V6) {
            self.ipv6(&mut rules);
        }
        if self.sends(Family::V4) {
            self.arp(&mut rules);
        }
        if self.sends(Family::V6) {
            self.ndp(&mut rules);
        }
        let not = |protocol: [u8; 2]| link(12, Compare::NotEqual, &protocol);
        rules.drop(DropReason::Arp, vec![of(ARP)]);
        rules.drop(DropReason::Protocol, vec![not(IPV4), not(IPV6)]);
        rules.drop(DropReason::Multicast, vec![to_group(true)]);
        rules.drop(DropReason::Loopback, vec![of(IPV4), network(16, Compare::Equal, &LOOPBACK)]);
        rules.drop(DropReason::Source, Vec::new());
        DeviceChain { device: self.device.clone(), rules: rules.0 }
    }

    /// Its addresses of a family and what it may use besides.
    fn sources(&self, family: Family) -> impl Iterator<Item = IpNetwork> {
        let own =
            self.addresses.iter().map(|address| subnet::with_prefix(*address, whole(*address)));
        let allowed = self.allowed.iter().copied().filter(|network| !is_multicast(*network));
        own.chain(allowed).filter(move |network| subnet::family(*network) == family)
    }

    /// Groups of a family that it may send to.
    fn groups(&self, family: Family) -> impl Iterator<Item = IpNetwork> {
        let groups = self.allowed.iter().copied().filter(|network| is_multicast(*network));
        groups.filter(move |network| subnet::family(*network) == family)
    }

    fn sends(&self, family: Family) -> bool {
        self.sources(family).next().is_some()
    }

    /// Whereto unicast goes.
    fn unicast(&self) -> FrameAction {
        self.routed_by.map_or(FrameAction::Accept, FrameAction::AcceptTo)
    }

    fn ipv4(&self, rules: &mut Rules) {
        // To port 68, from whichever: clients do not look.
        let answer = transport(2, Compare::Equal, &[0, 68]);
        rules.drop(DropReason::Dhcp, vec![of(IPV4), protocol(UDP), answer]);
        for source in self.sources(Family::V4) {
            let from = || vec![of(IPV4), within(12, &source, true)];
            let to_one = [
                to_group(false),
                network(16, Compare::Less, &[224]),
                network(16, Compare::NotEqual, &LOOPBACK),
            ];
            rules.add("unicast", from().into_iter().chain(to_one), self.unicast());
            for group in self.groups(Family::V4) {
                let to_many = [to_group(true), within(16, &group, true)];
                rules.add("allowed", from().into_iter().chain(to_many), FrameAction::Accept);
            }
        }
    }

    /// In a first fragment that ends before the transport header nobody sees to whom it goes, so that
    /// UDP and ICMPv6 must show theirs, unless in later fragments.
    fn ipv6(&self, rules: &mut Rules) {
        const CLIENT: [u8; 2] = [2, 34];
        let not = |protocol| FrameMatch::Protocol(Compare::NotEqual, protocol);
        for source in self.sources(Family::V6) {
            let unicast = |more: Vec<FrameMatch>| [self.ipv6_unicast(&source), more].concat();
            rules.add("unicast", unicast(vec![not(ICMPV6), not(UDP)]), self.unicast());
            let port = transport(2, Compare::NotEqual, &CLIENT);
            rules.add("unicast", unicast(vec![protocol(UDP), port]), self.unicast());
            let later =
                [network(6, Compare::Equal, &[FRAGMENT]), network(42, Compare::AtLeast, &[0, 8])];
            rules.add("unicast", unicast(later.into()), self.unicast());
        }
        let answer = transport(2, Compare::Equal, &CLIENT);
        rules.drop(DropReason::Dhcp, vec![of(IPV6), protocol(UDP), answer]);
        for source in self.sources(Family::V6) {
            for group in self.groups(Family::V6) {
                let matches = [
                    of(IPV6),
                    within(8, &source, true),
                    to_group(true),
                    within(24, &group, true),
                    not(ICMPV6),
                ];
                rules.add("allowed", matches, FrameAction::Accept);
            }
        }
    }

    fn ipv6_unicast(&self, source: &IpNetwork) -> Vec<FrameMatch> {
        let not_to_group = network(24, Compare::NotEqual, &[0xff]);
        vec![of(IPV6), within(8, source, true), to_group(false), not_to_group]
    }

    /// Its own addresses in requests and answers, with its own MAC inside.
    fn arp(&self, rules: &mut Rules) {
        /// Ethernet, IPv4, the lengths of their addresses; then request (1) or answer (2).
        const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
        const REQUEST: u8 = 1;
        for source in self.sources(Family::V4) {
            let arp = || {
                let from = network(8, Compare::Equal, &self.mac.0);
                vec![of(ARP), network(0, Compare::Equal, &HEAD), from]
            };
            let operation =
                [network(6, Compare::AtLeast, &[0, REQUEST]), network(6, Compare::Less, &[0, 3])];
            let says = arp().into_iter().chain(operation).chain([within(14, &source, true)]);
            rules.add("arp", says, FrameAction::Accept);
            let probe = [
                network(6, Compare::Equal, &[0, REQUEST]),
                network(14, Compare::Equal, &Ipv4Addr::UNSPECIFIED.octets()),
                within(24, &source, true),
            ];
            rules.add("arp probe", arp().into_iter().chain(probe), FrameAction::Accept);
        }
    }

    /// Solicitations and advertisements of its own addresses, which say its own MAC or none, with
    /// nothing in front of them. Its link-local address is the one that its MAC names.
    fn ndp(&self, rules: &mut Rules) {
        const TARGET: u32 = 48;
        let own = subnet::with_prefix(self.mac.link_local().into(), 128);
        let sources: Vec<IpNetwork> = self.sources(Family::V6).chain([own]).collect();
        let ndp = |kind: u8| {
            vec![
                of(IPV6),
                network(6, Compare::Equal, &ICMPV6_OF_THE_LINK),
                network(40, Compare::Equal, &[kind, 0]),
            ]
        };
        // Is this address free?
        for source in &sources {
            let unspecified = network(8, Compare::Equal, &Ipv6Addr::UNSPECIFIED.octets());
            let asks = [unspecified, within(TARGET, source, true)];
            let matches = ndp(SOLICITATION).into_iter().chain(asks);
            rules.add("nd probe", matches, FrameAction::Accept);
        }
        let icmp = |first: u8, last: u8| {
            let kinds = [
                transport(0, Compare::AtLeast, &[first]),
                transport(0, Compare::Less, &[last + 1]),
            ];
            [of(IPV6), protocol(ICMPV6)].into_iter().chain(kinds)
        };
        let foreign = |offset| sources.iter().map(move |source| within(offset, source, false));
        let spoofed = icmp(FIRST_NDP, LAST_NDP).chain(foreign(8)).collect();
        rules.drop(DropReason::Ndp, spoofed);
        let spoofed = ndp(ADVERTISEMENT).into_iter().chain(foreign(TARGET)).collect();
        rules.drop(DropReason::Ndp, spoofed);
        let kinds = || {
            let at_least = network(40, Compare::AtLeast, &[SOLICITATION]);
            [of(IPV6), at_least, network(40, Compare::Less, &[ADVERTISEMENT + 1])]
        };
        // The length of what follows the header, 24 without an option, 32 with the one of a MAC:
        // source (1) or target (2), one times 8 bytes long.
        let head = |length: u8| network(4, Compare::Equal, &[0, length, ICMPV6, 255]);
        let [a, b, c, d, e, f] = self.mac.0;
        let option =
            [network(64, Compare::Less, &[3]), network(65, Compare::Equal, &[1, a, b, c, d, e, f])];
        rules.add("nd", kinds().into_iter().chain([head(24)]), FrameAction::Accept);
        let with_mac = kinds().into_iter().chain([head(32)]).chain(option);
        rules.add("nd", with_mac, FrameAction::Accept);
        rules.drop(DropReason::Ndp, icmp(FIRST_NDP, LAST_NDP).collect());
        for source in self.sources(Family::V6) {
            // Without the protocol and a type also a first fragment that hides them in the next one
            // would pass.
            let mut matches = self.ipv6_unicast(&source);
            matches.extend([protocol(ICMPV6), transport(0, Compare::AtLeast, &[0])]);
            rules.add("icmpv6", matches, self.unicast());
        }
    }
}

/// The first byte of 127.0.0.0/8.
const LOOPBACK: [u8; 1] = [127];

struct Rules(Vec<FrameRule>);

impl Rules {
    fn add(
        &mut self,
        comment: &str,
        matches: impl IntoIterator<Item = FrameMatch>,
        action: FrameAction,
    ) {
        let matches = matches.into_iter().collect();
        self.0.push(FrameRule { comment: comment.to_owned(), matches, action });
    }

    fn drop(&mut self, reason: DropReason, matches: Vec<FrameMatch>) {
        self.add(reason.word(), matches, FrameAction::Drop);
    }
}

/// The type of the frame. In a tagged one it is that of the tag.
fn of(protocol: [u8; 2]) -> FrameMatch {
    link(12, Compare::Equal, &protocol)
}

fn protocol(protocol: u8) -> FrameMatch {
    FrameMatch::Protocol(Compare::Equal, protocol)
}

/// The frame goes to many, or to one.
fn to_group(group: bool) -> FrameMatch {
    let value = vec![if group { GROUP } else { 0 }];
    let mask = Some(vec![GROUP]);
    FrameMatch::Bytes { header: Header::Link, offset: 0, mask, compare: Compare::Equal, value }
}

/// The address at `offset` of the network header is, or is not, in `network`.
fn within(offset: u32, network: &IpNetwork, inside: bool) -> FrameMatch {
    let compare = if inside { Compare::Equal } else { Compare::NotEqual };
    let (mask, value) = (octets(network.mask()), octets(network.network()));
    let mask = (!mask.iter().all(|byte| *byte == 0xff)).then_some(mask);
    FrameMatch::Bytes { header: Header::Network, offset, mask, compare, value }
}

fn link(offset: u32, compare: Compare, value: &[u8]) -> FrameMatch {
    bytes(Header::Link, offset, compare, value)
}

fn network(offset: u32, compare: Compare, value: &[u8]) -> FrameMatch {
    bytes(Header::Network, offset, compare, value)
}

fn transport(offset: u32, compare: Compare, value: &[u8]) -> FrameMatch {
    bytes(Header::Transport, offset, compare, value)
}

fn bytes(header: Header, offset: u32, compare: Compare, value: &[u8]) -> FrameMatch {
    FrameMatch::Bytes { header, offset, mask: None, compare, value: value.to_vec() }
}

fn is_multicast(network: IpNetwork) -> bool {
    network.network().is_multicast()
}

/// The length of a prefix that is one address.
fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Describe for GuardChange {
    fn line(&self) -> Line {
        let object = |name: &str| Object::Guard(name.to_owned());
        match self {
            GuardChange::Add(chain) => Line::added(object(chain.device.as_str())),
            GuardChange::Replace(chain) => Line::changed(object(chain.device.as_str())),
            GuardChange::Remove(name) => Line::removed(object(name)),
            GuardChange::Fix(name, _, Some(mac)) => {
                Line::changed(object(name.as_str())).with(format!(": port fixed to MAC {mac}"))
            }
            GuardChange::Fix(name, _, None) => {
                Line::changed(object(name.as_str())).with(": port learns MACs")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard {
            device: "hz1".parse().unwrap(),
            mac: "0a:58:0a:f4:01:02".parse().unwrap(),
            addresses: vec!["10.244.1.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            allowed: Vec::new(),
            routed_by: Some("0a:58:0a:f4:01:01".parse().unwrap()),
        }
    }

    /// As the kernel would give it back.
    fn found(chain: &DeviceChain) -> Vec<FoundFrameRule> {
        let rule = |rule: &FrameRule| FoundFrameRule {
            fingerprint: Some(rule.fingerprint()),
            comment: Some(rule.comment.clone()),
            packets: 2,
        };
        chain.rules.iter().map(rule).collect()
    }

    fn texts(guard: &Guard) -> Vec<String> {
        guard.chain().rules.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_guard_that_is_whole_needs_nothing() {
        let chain = guard().chain();
        let mut kernel = FoundChains::from([("hz1".to_owned(), found(&chain))]);
        let wanted = [chain.clone()];
        assert_eq!(changes(&wanted, &BTreeSet::new(), Some(&kernel)), []);
        assert_eq!(changes(&wanted, &BTreeSet::new(), None), [GuardChange::Add(chain.clone())]);
        kernel.get_mut("hz1").unwrap()[3].fingerprint = None;
        let repaired = [GuardChange::Replace(chain.clone())];
        assert_eq!(changes(&wanted, &BTreeSet::new(), Some(&kernel)), repaired);
        kernel.get_mut("hz1").unwrap().pop();
        assert_eq!(changes(&wanted, &BTreeSet::new(), Some(&kernel)), repaired);
    }

    #[test]
    fn chains_of_other_networks_stay() {
        let kernel = FoundChains::from([("hz1".into(), Vec::new()), ("hz2".into(), Vec::new())]);
        let gone = BTreeSet::from(["hz2".to_owned(), "hz3".to_owned()]);
        assert_eq!(changes(&[], &gone, Some(&kernel)), [GuardChange::Remove("hz2".to_owned())]);
    }

    #[test]
    fn drops_are_counted_by_reason() {
        let dropped = dropped(&found(&guard().chain()));
        assert_eq!(dropped.len(), DropReason::ALL.len());
        assert_eq!((dropped[&DropReason::Mac], dropped[&DropReason::Ndp]), (2, 6));
    }

    #[test]
    fn a_pod_without_ipv6_has_no_rules_for_it() {
        let v4 = Guard { addresses: guard().addresses[..1].to_vec(), ..guard() };
        assert!(texts(&v4).iter().all(|rule| !rule.contains("@ll,96,16 0x86dd")));
        assert!(texts(&guard()).iter().any(|rule| rule.contains("@ll,96,16 0x86dd")));
    }

    #[test]
    fn unicast_goes_to_the_host_or_as_it_was_sent() {
        let set = "ether daddr set 0a:58:0a:f4:01:01 meta pkttype set host accept";
        assert_eq!(texts(&guard()).iter().filter(|rule| rule.ends_with(set)).count(), 5);
        let bridged = Guard { routed_by: None, ..guard() };
        assert!(texts(&bridged).iter().all(|rule| !rule.contains("daddr set")));
    }

    #[test]
    fn allowed_networks_are_sources_and_allowed_groups_destinations() {
        let allowed = ["10.9.0.0/16", "224.0.0.18/32"].map(|network| network.parse().unwrap());
        let text = texts(&Guard { allowed: allowed.to_vec(), ..guard() }).join("\n");
        assert!(text.contains("@nh,96,32 & 0xffff0000 == 0x0a090000"), "{text}");
        assert!(text.contains("@nh,128,32 0xe0000012 accept"), "{text}");
    }
}
