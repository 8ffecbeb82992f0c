//! Pure. The rules that all pods with the same rights share.
//!
//! Sources: RFC 826 (ARP), RFC 4861 §4 and RFC 6980 (NDP, and no fragments of it), RFC 5227 §1.1
//! (ARP probe), RFC 2131 §4.1 and RFC 8415 §7.2 (ports of DHCP).

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::net::{Family, subnet};
use crate::netlink::wire::octets;
use crate::nft::frame::{Compare, FrameAction, FrameMatch, FrameRule, Header};
use crate::plan::guard::reason::DropReason;
use crate::plan::guard::sets::{MAC, ND6, OWN4, OWN6, PORT, SHAPED};
use crate::policy::Dscp;

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
/// The next header of a fragment.
const FRAGMENT: u8 = 44;
/// The port of DHCPv6's clients.
const CLIENT6: [u8; 2] = [2, 34];
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
/// The first byte of 127.0.0.0/8.
const LOOPBACK: [u8; 1] = [127];
/// Where the frame has its source MAC, and the header of the network layer its source address.
const SOURCE_MAC: (Header, u32, u32) = (Header::Link, 6, 6);
const SOURCE4: (Header, u32, u32) = (Header::Network, 12, 4);
const SOURCE6: (Header, u32, u32) = (Header::Network, 8, 16);

/// How the unicast of a pod goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnicastWay {
    Bridged,
    Routed,
    /// Routed, at the rate of a limit.
    Shaped,
}

/// The rules for pods that may use `allowed` besides their own addresses. Those of settled traffic come
/// first.
pub fn rules(way: UnicastWay, allowed: &[IpNetwork]) -> Vec<FrameRule> {
    let mut rules = FrameRules { list: Vec::new(), way, allowed };
    rules.settled();
    rules.drop(DropReason::Mac, vec![listed(MAC, vec![SOURCE_MAC], false)]);
    rules.allowed();
    rules.arp();
    rules.ndp();
    let not_of = |protocol: [u8; 2]| link(12, Compare::NotEqual, &protocol);
    rules.drop(DropReason::Arp, vec![of(ARP)]);
    rules.drop(DropReason::Protocol, vec![not_of(IPV4), not_of(IPV6)]);
    rules.drop(DropReason::Multicast, vec![to_group(true)]);
    rules.drop(DropReason::Loopback, vec![of(IPV4), network(16, Compare::Equal, &LOOPBACK)]);
    rules.drop(DropReason::Source, Vec::new());
    rules.list
}

/// Marks packets of both families.
pub fn dscp_rules(dscp: Dscp) -> Vec<FrameRule> {
    let rule = |protocol, family| FrameRule {
        comment: "profile".to_owned(),
        matches: vec![of(protocol)],
        action: FrameAction::SetDscp(family, dscp.number()),
    };
    vec![rule(IPV4, Family::V4), rule(IPV6, Family::V6)]
}

/// Networks of a family that a pod may use as sources besides its own addresses.
pub fn sources(allowed: &[IpNetwork], family: Family) -> impl Iterator<Item = IpNetwork> {
    let sources = allowed.iter().copied().filter(|network| !is_multicast(*network));
    sources.filter(move |network| subnet::family(*network) == family)
}

/// Groups of a family that a pod may send to.
fn groups(allowed: &[IpNetwork], family: Family) -> impl Iterator<Item = IpNetwork> {
    let groups = allowed.iter().copied().filter(|network| is_multicast(*network));
    groups.filter(move |network| subnet::family(*network) == family)
}

struct FrameRules<'a> {
    list: Vec<FrameRule>,
    way: UnicastWay,
    allowed: &'a [IpNetwork],
}

impl FrameRules<'_> {
    fn add(
        &mut self,
        comment: &str,
        matches: impl IntoIterator<Item = FrameMatch>,
        action: FrameAction,
    ) {
        let matches = matches.into_iter().collect();
        self.list.push(FrameRule { comment: comment.to_owned(), matches, action });
    }

    fn drop(&mut self, reason: DropReason, matches: Vec<FrameMatch>) {
        self.add(reason.word(), matches, FrameAction::Goto(reason.chain_name()));
    }

    /// Whereto unicast goes.
    fn unicast(&self) -> FrameAction {
        match self.way {
            UnicastWay::Bridged => FrameAction::Accept,
            UnicastWay::Routed => FrameAction::AcceptTo(PORT),
            UnicastWay::Shaped => FrameAction::AcceptThrough(PORT, SHAPED),
        }
    }

    /// Unicast from its own addresses with its own MAC, but nothing to clients of DHCP, from whichever
    /// port: they do not look.
    fn settled(&mut self) {
        let answer = transport(2, Compare::Equal, &[0, 68]);
        self.drop(DropReason::Dhcp, vec![of(IPV4), protocol(UDP), answer]);
        self.add("unicast", unicast4(own4()), self.unicast());
        self.ipv6(&own6());
        let answer = transport(2, Compare::Equal, &CLIENT6);
        self.drop(DropReason::Dhcp, vec![of(IPV6), protocol(UDP), answer]);
    }

    /// Unicast but ICMPv6. In a first fragment that ends before the transport header it cannot be seen which
    /// port it goes to, so that UDP and ICMPv6 must show theirs, unless in later fragments.
    fn ipv6(&mut self, from: &FrameMatch) {
        let port = transport(2, Compare::NotEqual, &CLIENT6);
        let later =
            [network(6, Compare::Equal, &[FRAGMENT]), network(42, Compare::AtLeast, &[0, 8])];
        for more in [[not(ICMPV6), not(UDP)], [protocol(UDP), port], later] {
            self.add("unicast", unicast6(from.clone()).into_iter().chain(more), self.unicast());
        }
    }

    /// What the network allows besides, with its own MAC.
    fn allowed(&mut self) {
        let allowed = self.allowed;
        for source in sources(allowed, Family::V4) {
            self.add("unicast", unicast4(within(12, &source, true)), self.unicast());
        }
        let froms = sources(allowed, Family::V4).map(|source| within(12, &source, true));
        for from in [own4()].into_iter().chain(froms) {
            for group in groups(allowed, Family::V4) {
                let to_many = [of(IPV4), from.clone(), to_group(true), within(16, &group, true)];
                self.add("allowed", to_many, FrameAction::Accept);
            }
        }
        for source in sources(allowed, Family::V6) {
            self.ipv6(&within(8, &source, true));
        }
        let froms = sources(allowed, Family::V6).map(|source| within(8, &source, true));
        for from in [own6()].into_iter().chain(froms) {
            for group in groups(allowed, Family::V6) {
                let to_many = [of(IPV6), from.clone(), to_group(true), within(24, &group, true)];
                let matches = to_many.into_iter().chain([not(ICMPV6)]);
                self.add("allowed", matches, FrameAction::Accept);
            }
        }
    }

    /// Its own addresses in requests and answers, with its own MAC inside, and no more behind it than what fills a
    /// frame of 60 bytes: it goes to other pods past the policies.
    fn arp(&mut self) {
        /// Ethernet, IPv4, the lengths of their addresses; then request (1) or answer (2).
        const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
        const REQUEST: u8 = 1;
        const SENDER: (Header, u32, u32) = (Header::Network, 8, 6);
        let arp = || [of(ARP), network(0, Compare::Equal, &HEAD)];
        let operation =
            || [network(6, Compare::AtLeast, &[0, REQUEST]), network(6, Compare::Less, &[0, 3])];
        let probe = || {
            let unspecified = Ipv4Addr::UNSPECIFIED.octets();
            [network(6, Compare::Equal, &[0, REQUEST]), network(14, Compare::Equal, &unspecified)]
        };
        let own = |offset| listed(OWN4, vec![SENDER, (Header::Network, offset, 4)], true);
        self.drop(DropReason::Arp, vec![of(ARP), reaches(46)]);
        self.add("arp", arp().into_iter().chain(operation()).chain([own(14)]), FrameAction::Accept);
        let asks = arp().into_iter().chain(probe()).chain([own(24)]);
        self.add("arp probe", asks, FrameAction::Accept);
        for source in sources(self.allowed, Family::V4) {
            let from = || arp().into_iter().chain([listed(MAC, vec![SENDER], true)]);
            let says = from().chain(operation()).chain([within(14, &source, true)]);
            self.add("arp", says, FrameAction::Accept);
            let asks = from().chain(probe()).chain([within(24, &source, true)]);
            self.add("arp probe", asks, FrameAction::Accept);
        }
    }

    /// Is this address free?
    fn address_probes(&mut self) {
        let allowed = sources(self.allowed, Family::V6);
        let allowed = allowed.map(|source| within(TARGET, &source, true));
        for target in [own_nd(TARGET, true)].into_iter().chain(allowed) {
            let unspecified = network(8, Compare::Equal, &Ipv6Addr::UNSPECIFIED.octets());
            let matches = ndp(SOLICITATION).into_iter().chain([unspecified, target]);
            self.add("nd probe", matches, FrameAction::Accept);
        }
    }

    /// Solicitations and advertisements with the pod's MAC, or with none.
    fn own_messages(&mut self) {
        let kinds = || {
            let at_least = network(40, Compare::AtLeast, &[SOLICITATION]);
            [of(IPV6), at_least, network(40, Compare::Less, &[ADVERTISEMENT + 1])]
        };
        // The length of what follows the header, 24 without an option, 32 with the one of a MAC:
        // source (1) or target (2), one times 8 bytes long.
        let head = |length: u8| network(4, Compare::Equal, &[0, length, ICMPV6, 255]);
        let option = [
            network(64, Compare::Less, &[3]),
            network(65, Compare::Equal, &[1]),
            listed(MAC, vec![(Header::Network, 66, 6)], true),
        ];
        self.add("nd", kinds().into_iter().chain([head(24)]), FrameAction::Accept);
        let with_mac = kinds().into_iter().chain([head(32)]).chain(option);
        self.add("nd", with_mac, FrameAction::Accept);
    }

    /// Solicitations and advertisements of its own addresses, which say its own MAC or none, with
    /// nothing in front of them. Its link-local address is the one that its MAC names.
    fn ndp(&mut self) {
        let allowed = self.allowed;
        let icmp = |first: u8, last: u8| {
            let kinds = [
                transport(0, Compare::AtLeast, &[first]),
                transport(0, Compare::Less, &[last + 1]),
            ];
            [of(IPV6), protocol(ICMPV6)].into_iter().chain(kinds)
        };
        // The longest message has one option of 8 bytes, the MAC or the nonce of RFC 7527.
        self.drop(DropReason::Ndp, icmp(FIRST_NDP, LAST_NDP).chain([reaches(72)]).collect());
        self.address_probes();
        let foreign = |offset| {
            let others = sources(allowed, Family::V6);
            [own_nd(offset, false)]
                .into_iter()
                .chain(others.map(move |s| within(offset, &s, false)))
        };
        let spoofed = icmp(FIRST_NDP, LAST_NDP).chain(foreign(8)).collect();
        self.drop(DropReason::Ndp, spoofed);
        let spoofed = ndp(ADVERTISEMENT).into_iter().chain(foreign(TARGET)).collect();
        self.drop(DropReason::Ndp, spoofed);
        self.own_messages();
        self.drop(DropReason::Ndp, icmp(FIRST_NDP, LAST_NDP).collect());
        let froms = sources(allowed, Family::V6).map(|source| within(8, &source, true));
        for from in [own6()].into_iter().chain(froms) {
            // Without the protocol and a type also a first fragment that hides them in the next one
            // would pass.
            let icmp = [protocol(ICMPV6), transport(0, Compare::AtLeast, &[0])];
            let matches = unicast6(from).into_iter().chain(icmp);
            self.add("icmpv6", matches, self.unicast());
        }
    }
}

/// The target of a neighbour message.
const TARGET: u32 = 48;

/// A neighbour message of this type, with nothing in front of it.
fn ndp(kind: u8) -> [FrameMatch; 3] {
    [
        of(IPV6),
        network(6, Compare::Equal, &ICMPV6_OF_THE_LINK),
        network(40, Compare::Equal, &[kind, 0]),
    ]
}

/// The address at `offset` is one of the pod's, or none of them.
fn own_nd(offset: u32, inside: bool) -> FrameMatch {
    listed(ND6, vec![SOURCE_MAC, (Header::Network, offset, 16)], inside)
}

fn own4() -> FrameMatch {
    listed(OWN4, vec![SOURCE_MAC, SOURCE4], true)
}

fn own6() -> FrameMatch {
    listed(OWN6, vec![SOURCE_MAC, SOURCE6], true)
}

fn unicast4(from: FrameMatch) -> Vec<FrameMatch> {
    let not_to_group = network(16, Compare::Less, &[224]);
    let not_loopback = network(16, Compare::NotEqual, &LOOPBACK);
    vec![of(IPV4), from, to_group(false), not_to_group, not_loopback]
}

fn unicast6(from: FrameMatch) -> Vec<FrameMatch> {
    let not_to_group = network(24, Compare::NotEqual, &[0xff]);
    vec![of(IPV6), from, to_group(false), not_to_group]
}

/// The type of the frame. In a tagged one it is that of the tag.
fn of(protocol: [u8; 2]) -> FrameMatch {
    link(12, Compare::Equal, &protocol)
}

fn protocol(protocol: u8) -> FrameMatch {
    FrameMatch::Protocol(Compare::Equal, protocol)
}

fn not(protocol: u8) -> FrameMatch {
    FrameMatch::Protocol(Compare::NotEqual, protocol)
}

/// The frame goes to many, or to one.
fn to_group(group: bool) -> FrameMatch {
    let value = vec![if group { GROUP } else { 0 }];
    let mask = Some(vec![GROUP]);
    FrameMatch::Bytes { header: Header::Link, offset: 0, mask, compare: Compare::Equal, value }
}

fn listed(set: &'static str, fields: Vec<(Header, u32, u32)>, inside: bool) -> FrameMatch {
    FrameMatch::Listed { set, fields, inside }
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

/// The frame has a byte there.
fn reaches(offset: u32) -> FrameMatch {
    network(offset, Compare::AtLeast, &[0])
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
