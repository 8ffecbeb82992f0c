//! Pure. A table of nftables as it is wanted: sets, chains, rules.
//!
//! Only what humanz needs of nftables; `Display` is nft's own syntax.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, hash, subnet};
use crate::nft::set::{Set, Value};
use crate::nft::userdata::Userdata;
use crate::nft::verdict::Verdict;

/// Raised when the same rule is given to the kernel in another way than before, so that tables
/// written by an earlier release are written anew.
const SHAPE: &str = "1";

/// A table of the family `inet`, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    /// Letters, digits, `_`, `-`, `.`; at most 255 bytes.
    pub table: String,
    /// At most 127 bytes.
    pub comment: String,
    pub sets: Vec<Set>,
    pub flowtable: Option<Flowtable>,
    pub chains: Vec<Chain>,
}

/// Connections whose packets go from device to device without passing the hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    /// Unique in the table.
    pub name: String,
    /// Where packets are looked up as they come in; they must exist.
    pub devices: BTreeSet<IfName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Unique in the table.
    pub name: String,
    /// `None`: only other chains call it.
    pub base: Option<Base>,
    pub rules: Vec<NftRule>,
}

/// What makes a chain a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// `filter`, `nat` or `route`.
    pub kind: String,
    pub hook: Hook,
    /// Its place among the chains of that hook: lower comes first.
    pub priority: i32,
    /// What happens to a packet at its end.
    pub policy: ChainPolicy,
}

/// A netfilter hook of the families `ip`, `ip6` and `inet`, by its number (linux/netfilter.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook(pub u32);

impl Hook {
    /// Packets that came in, before routing.
    pub const PREROUTING: Hook = Hook(0);
    /// Packets that this host sends itself.
    pub const OUTPUT: Hook = Hook(3);
    /// Packets that are neither from nor for this host.
    pub const FORWARD: Hook = Hook(2);
    /// Packets for this host.
    pub const INPUT: Hook = Hook(1);
    /// Packets about to leave.
    pub const POSTROUTING: Hook = Hook(4);
}

/// What happens to a packet that no rule has decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainPolicy {
    Accept,
    Drop,
}

/// One rule: if all `matches` hold, the packet is counted and `action` is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftRule {
    /// At most 127 bytes.
    pub comment: String,
    /// Evaluated from left to right.
    pub matches: Vec<Match>,
    pub action: Action,
}

/// A condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    Source(IpNetwork),
    Destination(IpNetwork),
    InputInterface(IfName),
    OutputInterface(IfName),
    OutputInterfaceNot(IfName),
    /// The field is in the set of that name.
    In(Field, String),
    /// The packet is of the field's family, and the field is not in the set of that name.
    NotIn(Field, String),
    /// ICMPv6 that no router has passed on: in a forward chain, neighbour discovery that the bridge
    /// shows to it (br_netfilter).
    BridgedNdp,
    /// Packets of its connection were seen in both directions.
    Established,
    /// It is the outer packet of a VXLAN tunnel with that identifier, whatever the port.
    Vxlan(u32),
    /// It is a UDP packet whose payload begins as a message of WireGuard does, whatever the port.
    Wireguard,
    /// Its destination is no address of this host.
    NotLocal,
    /// Its source is no address of this host.
    SourceNotLocal,
    /// A socket of a process in this network namespace sends it.
    FromProgram,
    /// All these bits of its mark are set.
    Marked(u32),
    /// It is a UDP packet to that port.
    UdpTo(u16),
    /// Behind its UDP header is a VXLAN header with another identifier.
    VniNot(u32),
    /// The VXLAN packet holds a packet of that family.
    Inner(Family),
    /// The packet in the VXLAN packet is for that network.
    InnerDestination(IpNetwork),
    /// The field is in this subnet.
    Within(Field, IpNetwork),
    /// The field has this value, or one of the range.
    Is(Field, Value),
    /// The fields together are in the set of that name.
    AllIn(Vec<Field>, String),
    /// These bits (first) of its connection's mark have that value.
    ConnectionMark(u32, u32),
    /// It is of no connection.
    NoConnection,
    /// It is of no connection, and connection tracking should have found one.
    Invalid,
    /// It is an error about a connection, or of none though connection tracking should have found one.
    RelatedOrInvalid,
    /// It is an error about a connection, or of none.
    RelatedOrNoConnection,
    /// It goes the way of its connection's replies.
    Reply,
    /// It goes the way of its connection's replies, and asks for a connection over TCP itself.
    ReplyAsks,
    /// Of TCP, in the midst of a connection that connection tracking did not know.
    PickedUp,
    /// The destination of its connection was translated.
    Translated,
    /// At most so many packets a second, and a burst of so many.
    Limit {
        rate: u64,
        burst: u32,
    },
}

/// A field of a packet that is looked up in a set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Source(Family),
    Destination(Family),
    Protocol,
    DestinationPort,
    InputInterface,
    OutputInterface,
    /// In a VXLAN packet: so many leading bits of the source of the packet inside.
    InnerSource(Family, u8),
    /// The source of the first packet of its connection.
    ConnectionSource(Family),
    /// The source of the replies of its connection: where the first packet went in the end.
    ConnectionDestination(Family),
    /// The protocol of its connection, which is another one than an ICMP error's.
    ConnectionProtocol,
    /// The port that the replies of its connection come from.
    ConnectionPort,
    /// Type and code of the first packet of its connection, as one number of two bytes: of ICMP.
    ConnectionIcmp,
    /// Type and code of the packet itself, as one number of two bytes: of ICMP.
    Icmp,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Verdict(Verdict),
    /// The packet leaves with the address of the interface it leaves by, and a random port.
    Masquerade,
    /// The packet leaves with this address, and a random port. The connection keeps both where it later leaves by
    /// another interface: a masqueraded one ends there.
    Snat(IpAddr),
    /// Its connection goes into the flow table of this name; the packet goes on.
    Offload(&'static str),
    /// No connection is made of it, and its addresses are not translated; the packet goes on.
    Untracked,
    /// These bits of the packet's mark are set, and the next rule is evaluated.
    Mark(u32),
    /// The packet of this family goes to the address and port that the map of this name holds for
    /// these fields; if it holds nothing, the next rule is evaluated.
    Dnat(Family, Vec<Field>, &'static str),
    /// The verdict that the map of this name holds for these fields, if any.
    VerdictMap(Vec<Field>, String),
    /// The counter of this name counts the packet.
    Count(String, Verdict),
    /// Clears these bits of its connection's mark, counts with the counter of that name, and drops. A packet of no
    /// connection is not dropped.
    Deny(u32, String),
    /// These bits (first) of its connection's mark become this value; the packet goes on.
    MarkConnection(u32, u32),
    /// The packet is shown to the listeners of this netlink group, with this text before it: at most
    /// 127 bytes. It goes on.
    Log(u16, String),
}

impl NftRule {
    /// A number that differs when the rule differs, for the kernel to keep beside it: what it
    /// gives back of a rule is not always what it was given.
    pub fn fingerprint(&self) -> u64 {
        hash::stable_texts(&[&SHAPE, &self.comment, self])
    }

    /// What the kernel keeps beside the rule: comment and fingerprint.
    pub(super) fn userdata(&self) -> Vec<u8> {
        let fingerprint = Some(self.fingerprint());
        Userdata { fingerprint, ..Userdata::comment(&self.comment) }.bytes()
    }

    /// A map counts nothing: the counter would also count what the map does not hold. Nor does what only leads to another
    /// chain, and what every packet comes by: a count takes 20 ns.
    pub(super) fn is_counted(&self) -> bool {
        !matches!(self.matches[..], [Match::ConnectionMark(..)])
            && !matches!(
                self.action,
                Action::Verdict(Verdict::Jump(_) | Verdict::Goto(_))
                    | Action::Dnat(..)
                    | Action::VerdictMap(..)
                    | Action::Count(..)
                    | Action::Deny(..)
                    | Action::MarkConnection(..)
                    | Action::Log(..)
            )
    }
}

impl Field {
    pub(super) fn family(self) -> Option<Family> {
        match self {
            Field::Source(family) | Field::Destination(family) => Some(family),
            _ => None,
        }
    }
}

impl fmt::Display for NftRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.matches {
            write!(f, "{condition} ")?;
        }
        let counter = if self.is_counted() { "counter " } else { "" };
        write!(f, "{counter}{}", self.action)
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Source(network) => {
                write!(f, "{} {network}", Field::Source(subnet::family(*network)))
            }
            Match::Destination(network) => {
                write!(f, "{} {network}", Field::Destination(subnet::family(*network)))
            }
            Match::InputInterface(name) => write!(f, "iifname \"{name}\""),
            Match::OutputInterface(name) => write!(f, "oifname \"{name}\""),
            Match::OutputInterfaceNot(name) => write!(f, "oifname != \"{name}\""),
            Match::In(field, set) => write!(f, "{field} @{set}"),
            Match::NotIn(field, set) => write!(f, "{field} != @{set}"),
            Match::BridgedNdp => f.write_str("meta l4proto ipv6-icmp ip6 hoplimit 255"),
            Match::Established => f.write_str("ct state established"),
            Match::Vxlan(vni) => {
                write!(f, "meta l4proto udp @th,64,32 0x8000000 @th,96,24 {vni:#x}")
            }
            Match::Wireguard => f.write_str("meta l4proto udp @th,64,8 1-4 @th,72,24 0"),
            Match::NotLocal => f.write_str("fib daddr type != local"),
            Match::SourceNotLocal => f.write_str("fib saddr type != local"),
            Match::FromProgram => f.write_str("meta skuid >= 0"),
            Match::Marked(bits) => write!(f, "meta mark & {bits:#x} == {bits:#x}"),
            Match::UdpTo(port) => write!(f, "meta l4proto udp th dport {port}"),
            Match::VniNot(vni) => write!(f, "vxlan vni != {vni}"),
            Match::Inner(family) => write!(f, "vxlan ether type {}", protocol(*family)),
            Match::InnerDestination(network) => {
                write!(f, "vxlan {} daddr {network}", protocol(subnet::family(*network)))
            }
            Match::Within(field, network) => write!(f, "{field} {network}"),
            Match::Is(field, value) => write!(f, "{field} {value}"),
            Match::AllIn(fields, set) => write!(f, "{} @{set}", concatenated(fields)),
            Match::ConnectionMark(bits, mark) => write!(f, "ct mark & {bits:#x} == {mark:#x}"),
            Match::Reply => f.write_str("ct direction reply"),
            Match::ReplyAsks => f.write_str("ct direction reply tcp flags & (syn|ack) == syn"),
            Match::PickedUp => f.write_str("tcp flags & (syn|ack) != syn ct state new"),
            Match::NoConnection => f.write_str("ct state invalid,untracked"),
            Match::Invalid => f.write_str("ct state invalid"),
            Match::RelatedOrInvalid => f.write_str("ct state invalid,related"),
            Match::RelatedOrNoConnection => f.write_str("ct state invalid,related,untracked"),
            Match::Translated => f.write_str("ct status dnat"),
            Match::Limit { rate, burst } => {
                write!(f, "limit rate {rate}/second burst {burst} packets")
            }
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Source(family) => write!(f, "{} saddr", protocol(*family)),
            Field::Destination(family) => write!(f, "{} daddr", protocol(*family)),
            Field::Protocol => f.write_str("meta l4proto"),
            Field::DestinationPort => f.write_str("th dport"),
            Field::InputInterface => f.write_str("iifname"),
            Field::OutputInterface => f.write_str("oifname"),
            Field::InnerSource(family, prefix) => {
                write!(f, "vxlan {} saddr/{prefix}", protocol(*family))
            }
            Field::ConnectionSource(family) => write!(f, "ct original {} saddr", protocol(*family)),
            Field::ConnectionDestination(family) => {
                write!(f, "ct reply {} saddr", protocol(*family))
            }
            Field::ConnectionProtocol => f.write_str("ct original protocol"),
            Field::ConnectionPort => f.write_str("ct reply proto-src"),
            Field::ConnectionIcmp => f.write_str("ct original proto-dst"),
            Field::Icmp => f.write_str("@th,0,16"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Verdict(verdict) => verdict.fmt(f),
            Action::Masquerade => f.write_str("masquerade fully-random"),
            Action::Snat(address) => {
                write!(f, "snat {} to {address} fully-random", protocol(Family::of(*address)))
            }
            Action::Offload(flowtable) => write!(f, "flow add @{flowtable}"),
            Action::Untracked => f.write_str("notrack"),
            Action::Mark(bits) => write!(f, "meta mark set meta mark | {bits:#x}"),
            Action::Dnat(family, key, map) => {
                write!(f, "dnat {} to {} map @{map}", protocol(*family), concatenated(key))
            }
            Action::VerdictMap(key, map) => write!(f, "{} vmap @{map}", concatenated(key)),
            Action::Count(counter, verdict) => write!(f, "counter name \"{counter}\" {verdict}"),
            Action::Deny(bits, counter) => {
                write!(f, "ct mark set ct mark & {:#010x} counter name \"{counter}\" drop", !bits)
            }
            Action::MarkConnection(bits, value) => {
                write!(f, "ct mark set ct mark & {:#010x} | {value:#010x}", !bits)
            }
            Action::Log(group, prefix) => write!(f, "log prefix \"{prefix}\" group {group}"),
        }
    }
}

impl fmt::Display for Base {
    /// `type nat hook postrouting priority 100; policy accept`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Base { kind, hook, priority, policy } = self;
        write!(f, "type {kind} hook {hook} priority {priority}; policy {policy}")
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("prerouting"),
            1 => f.write_str("input"),
            2 => f.write_str("forward"),
            3 => f.write_str("output"),
            4 => f.write_str("postrouting"),
            number => write!(f, "{number}"),
        }
    }
}

impl fmt::Display for ChainPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChainPolicy::Accept => "accept",
            ChainPolicy::Drop => "drop",
        })
    }
}

/// `ip saddr . th dport`.
fn concatenated(fields: &[Field]) -> String {
    fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ")
}

fn protocol(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::expression::of_rule;

    fn masquerade(network: &str) -> NftRule {
        NftRule {
            comment: "pods to the outside".to_owned(),
            matches: vec![
                Match::Source(network.parse().unwrap()),
                Match::NotIn(Field::Destination(Family::V4), "cluster4".to_owned()),
                Match::OutputInterfaceNot("humanz0".parse().unwrap()),
            ],
            action: Action::Masquerade,
        }
    }

    #[test]
    fn a_rule_reads_as_nft_writes_it() {
        let text = "ip saddr 10.244.3.0/24 ip daddr != @cluster4 oifname != \"humanz0\" counter \
                    masquerade fully-random";
        assert_eq!(masquerade("10.244.3.0/24").to_string(), text);
    }

    /// Should this fail: raise `SHAPE`, and write the new number here.
    #[test]
    fn rules_are_given_to_the_kernel_as_in_the_release_before() {
        let name = || "humanz0".parse().unwrap();
        let v6 = NftRule {
            comment: String::new(),
            matches: vec![
                Match::Source("fd00::/64".parse().unwrap()),
                Match::NotIn(Field::Destination(Family::V6), "cluster6".to_owned()),
                Match::InputInterface(name()),
                Match::OutputInterface(name()),
            ],
            action: Action::Verdict(Verdict::Accept),
        };
        let bytes = [masquerade("10.244.3.0/24"), v6].map(|rule| of_rule(&rule).into_bytes());
        let hex: String = bytes.concat().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((SHAPE, hash::stable(&[&hex])), ("1", 6265816357755760845));
    }

    #[test]
    fn rules_that_differ_have_other_fingerprints() {
        let rule = masquerade("10.244.3.0/24");
        assert_eq!(rule.fingerprint(), rule.clone().fingerprint());
        assert_ne!(rule.fingerprint(), masquerade("10.244.4.0/24").fingerprint());
        let renamed = NftRule { comment: "x".to_owned(), ..rule.clone() };
        assert_ne!(rule.fingerprint(), renamed.fingerprint());
        let accepted = NftRule { action: Action::Verdict(Verdict::Accept), ..rule.clone() };
        assert_ne!(rule.fingerprint(), accepted.fingerprint());
    }
}
