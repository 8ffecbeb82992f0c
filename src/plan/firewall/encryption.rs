//! Pure. The table that keeps clear text in: what pods of two hosts send to each other goes by the WireGuard
//! device, or nowhere.
//!
//! A table of its own, made before anything that packets could take: no stop of the agent removes it, and
//! without the agent it drops what a route of somebody else, or none of ours, would let out.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, PerFamily};
use crate::nft::{
    Action, Chain, Element, Field, Hook, Match, NftRule, Ruleset, Set, Shape, Type, Value, Verdict,
};
use crate::plan::encryption::device_names;
use crate::plan::firewall::{PRIORITY_RAW, base};

/// The table's name. No network's table can have it: theirs is `humanz_<network>`.
pub const ENCRYPTION_TABLE: &str = "humanz-encryption";

/// Comments of the rules that drop, by which `explain` and the metrics know them.
pub const LEAVING: &str = "clear text to pods of other hosts";
pub const ARRIVING: &str = "clear text from pods of other hosts";
pub const FROM_POD: &str = "a pod sends to the encryption of a host";
pub const FOREIGN: &str = "no other host sends from this address";

/// The interfaces that packets of pods may leave and come in by.
const INSIDE: &str = "inside";

/// The chain that encrypted packets go through.
const CHECKED: &str = "checked";

/// What the table must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionGuard {
    /// The bridge that the pods are plugged into.
    pub bridge: IfName,
    /// UDP ports of this host's devices.
    pub ports: [u16; 2],
    /// Nothing in clear text.
    pub strict: bool,
    /// Where the pods of all hosts have their addresses.
    pub pools: Vec<IpNetwork>,
    /// The other hosts that encrypt.
    pub peers: Vec<EncryptionEnd>,
}

/// Another host that encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncryptionEnd {
    /// Its node addresses.
    pub addresses: PerFamily<IpAddr>,
    /// UDP ports of its devices.
    pub ports: [Option<u16>; 2],
}

/// The table that `guard` asks for.
pub fn ruleset(guard: &EncryptionGuard) -> Ruleset {
    let base_chain = |name: &str, hook, rules| {
        let base = Some(base("filter", hook, PRIORITY_RAW));
        Chain { name: name.to_owned(), base, rules }
    };
    let strict = [
        base_chain("arriving", Hook::PREROUTING, guard.clear(ARRIVING, Match::Source, true)),
        base_chain("leaving", Hook::POSTROUTING, guard.clear(LEAVING, Match::Destination, false)),
    ];
    let mut chains: Vec<Chain> = strict.into_iter().filter(|_| guard.strict).collect();
    let received = guard.ports.map(|port| NftRule {
        comment: "encrypted packets".to_owned(),
        matches: vec![Match::UdpTo(port)],
        action: Action::Verdict(Verdict::Jump(CHECKED.to_owned())),
    });
    chains.push(base_chain("received", Hook::INPUT, received.into()));
    chains.push(Chain { name: CHECKED.to_owned(), base: None, rules: guard.checked() });
    chains.push(base_chain("sent", Hook::FORWARD, Family::BOTH.map(|of| guard.sent(of)).into()));
    let hosts =
        Family::BOTH.into_iter().flat_map(|family| [guard.nodes(family), guard.ends(family)]);
    Ruleset {
        table: ENCRYPTION_TABLE.to_owned(),
        comment: "written by humanz: packets between hosts are encrypted, or dropped".to_owned(),
        sets: std::iter::once(guard.inside()).chain(hosts).collect(),
        flowtable: None,
        chains,
    }
}

impl EncryptionGuard {
    fn inside(&self) -> Set {
        let loopback = "lo".parse().expect("a name of an interface");
        let [first, second] = device_names();
        let names = [self.bridge.clone(), first, second, loopback];
        Set {
            name: INSIDE.to_owned(),
            shape: Shape::set([Type::Interface]),
            elements: names.map(|name| Element::key([Value::Interface(name)])).into(),
        }
    }

    /// The other hosts' node addresses.
    fn nodes(&self, family: Family) -> Set {
        let addresses = self.peers.iter().filter_map(|peer| peer.addresses.get(family));
        Set {
            name: nodes_set(family).to_owned(),
            shape: Shape::set([Type::address(family)]),
            elements: addresses.map(|at| Element::key([Value::address(*at)])).collect(),
        }
    }

    /// The other hosts' node addresses, each with its ports.
    fn ends(&self, family: Family) -> Set {
        let ends = self.peers.iter().flat_map(|peer| {
            let address = peer.addresses.get(family).copied();
            let ports = peer.ports.into_iter().flatten();
            ports.filter_map(move |port| {
                Some(Element::key([Value::address(address?), Value::port(port)]))
            })
        });
        let shape = Shape::set([Type::address(family), Type::Port]);
        Set { name: ends_set(family).to_owned(), shape, elements: ends.collect() }
    }

    /// What has one end in the pools and takes another way than those inside.
    fn clear(
        &self,
        comment: &str,
        of: impl Fn(IpNetwork) -> Match,
        comes_in: bool,
    ) -> Vec<NftRule> {
        let field = if comes_in { Field::InputInterface } else { Field::OutputInterface };
        let rule = |pool: &IpNetwork| NftRule {
            comment: comment.to_owned(),
            matches: vec![of(*pool), Match::NotIn(field, INSIDE.to_owned())],
            action: Action::Verdict(Verdict::Drop),
        };
        self.pools.iter().map(rule).collect()
    }

    /// The source of an encrypted packet proves nothing, and is not needed to: it keeps strangers from making
    /// this host compute.
    fn checked(&self) -> Vec<NftRule> {
        let rule = |comment: &str, matches, verdict| NftRule {
            comment: comment.to_owned(),
            matches,
            action: Action::Verdict(verdict),
        };
        let from_pods = vec![Match::InputInterface(self.bridge.clone())];
        let from_host = |family| {
            let matches = vec![Match::In(Field::Source(family), nodes_set(family).to_owned())];
            rule("another host", matches, Verdict::Accept)
        };
        let [v4, v6] = Family::BOTH.map(from_host);
        let foreign = rule(FOREIGN, Vec::new(), Verdict::Drop);
        vec![rule(FROM_POD, from_pods, Verdict::Drop), v4, v6, foreign]
    }

    /// What a pod sends to another host would come from this host's address.
    fn sent(&self, family: Family) -> NftRule {
        let end = vec![Field::Destination(family), Field::DestinationPort];
        NftRule {
            comment: FROM_POD.to_owned(),
            // Addresses and ports are what other hosts published: no other packet than one of WireGuard is
            // dropped because of them.
            matches: vec![
                Match::InputInterface(self.bridge.clone()),
                Match::Wireguard,
                Match::AllIn(end, ends_set(family).to_owned()),
            ],
            action: Action::Verdict(Verdict::Drop),
        }
    }
}

fn nodes_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "nodes4",
        Family::V6 => "nodes6",
    }
}

fn ends_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "ends4",
        Family::V6 => "ends6",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(strict: bool) -> EncryptionGuard {
        EncryptionGuard {
            bridge: "humanz0".parse().unwrap(),
            ports: [10401, 10402],
            strict,
            pools: vec!["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()],
            peers: vec![EncryptionEnd {
                addresses: PerFamily {
                    v4: "192.0.2.2".parse().ok(),
                    v6: "2001:db8::2".parse().ok(),
                },
                ports: [Some(7000), Some(7001)],
            }],
        }
    }

    fn lines(guard: &EncryptionGuard) -> Vec<String> {
        let Ruleset { sets, chains, .. } = ruleset(guard);
        let set = |set: &Set| {
            let elements: Vec<_> = set.elements.iter().map(ToString::to_string).collect();
            format!("@{} {}", set.name, elements.join(", "))
        };
        let rules = chains.iter().flat_map(|chain| {
            chain.rules.iter().map(|rule| format!("{}: {rule}", chain.name)).collect::<Vec<_>>()
        });
        sets.iter().map(set).chain(rules).collect()
    }

    const PORTS: [&str; 13] = [
        "@inside \"humanz-wg\", \"humanz-wg2\", \"humanz0\", \"lo\"",
        "@nodes4 192.0.2.2",
        "@ends4 192.0.2.2 . 7000, 192.0.2.2 . 7001",
        "@nodes6 2001:db8::2",
        "@ends6 2001:db8::2 . 7000, 2001:db8::2 . 7001",
        "received: meta l4proto udp th dport 10401 counter jump checked",
        "received: meta l4proto udp th dport 10402 counter jump checked",
        "checked: iifname \"humanz0\" counter drop",
        "checked: ip saddr @nodes4 counter accept",
        "checked: ip6 saddr @nodes6 counter accept",
        "checked: counter drop",
        "sent: iifname \"humanz0\" meta l4proto udp @th,64,8 1-4 @th,72,24 0 ip daddr . th dport @ends4 counter drop",
        "sent: iifname \"humanz0\" meta l4proto udp @th,64,8 1-4 @th,72,24 0 ip6 daddr . th dport @ends6 counter drop",
    ];

    #[test]
    fn nothing_of_pods_leaves_or_comes_in_but_by_the_device() {
        let clear = [
            "arriving: ip saddr 10.244.0.0/16 iifname != @inside counter drop",
            "arriving: ip6 saddr fd00::/48 iifname != @inside counter drop",
            "leaving: ip daddr 10.244.0.0/16 oifname != @inside counter drop",
            "leaving: ip6 daddr fd00::/48 oifname != @inside counter drop",
        ];
        let wanted = [&PORTS[..5], &clear, &PORTS[5..]].concat();
        assert_eq!(lines(&guard(true)), wanted);
    }

    #[test]
    fn clear_text_passes_while_hosts_are_changed_over() {
        assert_eq!(lines(&guard(false)), PORTS);
    }
}
