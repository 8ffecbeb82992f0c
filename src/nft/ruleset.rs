//! Pure. A table of nftables as it is wanted: sets, chains, rules.
//!
//! Only what humanz needs of nftables; `Display` is nft's own syntax.

use std::collections::BTreeSet;
use std::fmt;

use ipnetwork::IpNetwork;

use crate::net::{AddressRange, Family, IfName, hash, subnet};
use crate::nft::host_port_maps::PortMap;
use crate::nft::userdata;

/// Raised when the same rule is given to the kernel in another way than before, so that tables
/// written by an earlier release are written anew.
const SHAPE: &str = "1";

/// A table of the family `inet`, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    /// The table's name: letters, digits, `_`, `-`, `.`; at most 255 bytes.
    pub table: String,
    /// What an operator reads at the table's head; at most 127 bytes.
    pub comment: String,
    /// The sets that the rules look into.
    pub sets: Vec<Set>,
    /// The shortcut for packets of established connections, if there is to be one.
    pub flowtable: Option<Flowtable>,
    /// Its chains, all of them base chains.
    pub chains: Vec<Chain>,
}

/// A table of connections whose packets go from device to device without being looked at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    /// Its name, unique in the table.
    pub name: String,
    /// Where packets are looked up as they come in; they must exist.
    pub devices: BTreeSet<IfName>,
}

/// A named set of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, unique in the table.
    pub name: String,
    /// The family of all its elements.
    pub family: Family,
    /// Single addresses, or ranges.
    pub kind: SetKind,
    /// Its elements; those of [`SetKind::Ranges`] must not touch each other
    /// ([`crate::net::range::covering`] sees to it).
    pub elements: BTreeSet<AddressRange>,
}

/// How the kernel keeps a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// Hash of single addresses.
    Addresses,
    /// Tree of ranges (`flags interval`).
    Ranges,
}

/// Elements to add to and to take from one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementChange {
    /// The set; its elements are not looked at.
    pub set: Set,
    /// Elements it lacks.
    pub added: BTreeSet<AddressRange>,
    /// Elements it has and should not.
    pub removed: BTreeSet<AddressRange>,
}

/// A chain that the kernel calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name, unique in the table.
    pub name: String,
    /// Where and when it is called.
    pub base: Base,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// What makes a chain a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// Where packets meet it.
    pub hook: Hook,
    /// Its place among the chains of that hook: lower comes first.
    pub priority: i32,
    /// What happens to a packet at its end.
    pub policy: Policy,
}

/// A netfilter hook of the families `ip`, `ip6` and `inet`, by its number (linux/netfilter.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook(pub u32);

impl Hook {
    /// Packets that came in, before it is known whom they are for.
    pub const PREROUTING: Hook = Hook(0);
    /// Packets that this host sends itself.
    pub const OUTPUT: Hook = Hook(3);
    /// Packets that are neither from nor for this host.
    pub const FORWARD: Hook = Hook(2);
    /// Before a packet reaches a socket of the host.
    pub const INPUT: Hook = Hook(1);
    /// Packets about to leave.
    pub const POSTROUTING: Hook = Hook(4);
}

/// What happens to a packet that no rule has decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It goes on.
    Accept,
    /// It is dropped.
    Drop,
}

/// One rule: if all `matches` hold, count the packet and do as `verdict` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What an operator reads behind it; at most 127 bytes.
    pub comment: String,
    /// Conditions, looked at from left to right.
    pub matches: Vec<Match>,
    /// What is done.
    pub verdict: Verdict,
}

/// A condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// It comes from this network.
    Source(IpNetwork),
    /// It is of this family and goes to no address in the set of that name.
    DestinationOutside(Family, String),
    /// It came in by this interface.
    Input(IfName),
    /// It goes out by this interface.
    Output(IfName),
    /// It goes out by any other interface.
    OutputNot(IfName),
    /// Packets of its connection were seen in both directions.
    Established,
    /// It is the outer packet of a VXLAN tunnel with that identifier, whatever the port.
    Vxlan(u32),
    /// It goes to this network.
    Destination(IpNetwork),
    /// It goes to no address of this host.
    NotLocal,
    /// It came in by an interface in the set of that name.
    InputIn(String),
    /// It goes out by an interface in the set of that name.
    OutputIn(String),
    /// All these bits of its mark are set.
    Marked(u32),
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This chain lets the packet pass.
    Accept,
    /// The packet leaves with the address of the interface it leaves by, and a random port.
    Masquerade,
    /// Its connection goes into the flow table of this name; the packet goes on.
    Offload(&'static str),
    /// No connection is made of it, and nobody translates its addresses; the packet goes on.
    Untracked,
    /// The packet goes nowhere.
    Drop,
    /// The chain's policy decides.
    Return,
    /// These bits of the packet's mark are set, and the next rule is looked at.
    Mark(u32),
    /// The packet goes where the map leads its destination; if it does not say, the next rule is
    /// looked at.
    Forward(PortMap),
}

impl Rule {
    /// A number that differs when the rule differs, for the kernel to keep beside it: what it
    /// gives back of a rule is not always what it was given.
    pub fn fingerprint(&self) -> u64 {
        hash::stable(&[SHAPE, &self.comment, &self.to_string()])
    }

    /// What the kernel keeps beside the rule: comment and fingerprint.
    pub(super) fn userdata(&self) -> Vec<u8> {
        userdata::of_rule(&self.comment, self.fingerprint())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.matches {
            write!(f, "{condition} ")?;
        }
        match self.verdict {
            // It would count what the map does not hold as well.
            Verdict::Forward(_) => write!(f, "{}", self.verdict),
            verdict => write!(f, "counter {verdict}"),
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Source(network) => {
                write!(f, "{} saddr {network}", protocol(subnet::family(*network)))
            }
            Match::DestinationOutside(family, set) => {
                write!(f, "{} daddr != @{set}", protocol(*family))
            }
            Match::Input(name) => write!(f, "iifname \"{name}\""),
            Match::Output(name) => write!(f, "oifname \"{name}\""),
            Match::OutputNot(name) => write!(f, "oifname != \"{name}\""),
            Match::Established => f.write_str("ct state established"),
            Match::Vxlan(vni) => {
                write!(f, "meta l4proto udp @th,64,32 0x8000000 @th,96,24 {vni:#x}")
            }
            Match::Destination(network) => {
                write!(f, "{} daddr {network}", protocol(subnet::family(*network)))
            }
            Match::NotLocal => f.write_str("fib daddr type != local"),
            Match::InputIn(set) => write!(f, "iifname @{set}"),
            Match::OutputIn(set) => write!(f, "oifname @{set}"),
            Match::Marked(bits) => write!(f, "meta mark & {bits:#x} == {bits:#x}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Masquerade => f.write_str("masquerade fully-random"),
            Verdict::Offload(flowtable) => write!(f, "flow add @{flowtable}"),
            Verdict::Untracked => f.write_str("notrack"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Return => f.write_str("return"),
            Verdict::Mark(bits) => write!(f, "meta mark set meta mark | {bits:#x}"),
            Verdict::Forward(map) => write!(f, "{map}"),
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

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Accept => "accept",
            Policy::Drop => "drop",
        })
    }
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

    fn masquerade(network: &str) -> Rule {
        Rule {
            comment: "pods to the outside".to_owned(),
            matches: vec![
                Match::Source(network.parse().unwrap()),
                Match::DestinationOutside(Family::V4, "cluster4".to_owned()),
                Match::OutputNot("humanz0".parse().unwrap()),
            ],
            verdict: Verdict::Masquerade,
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
        let v6 = Rule {
            comment: String::new(),
            matches: vec![
                Match::Source("fd00::/64".parse().unwrap()),
                Match::DestinationOutside(Family::V6, "cluster6".to_owned()),
                Match::Input(name()),
                Match::Output(name()),
            ],
            verdict: Verdict::Accept,
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
        let renamed = Rule { comment: "x".to_owned(), ..rule.clone() };
        assert_ne!(rule.fingerprint(), renamed.fingerprint());
        let accepted = Rule { verdict: Verdict::Accept, ..rule.clone() };
        assert_ne!(rule.fingerprint(), accepted.fingerprint());
    }
}
