//! Pure. The table that keeps clear text in: what pods of two hosts send to each other goes by the WireGuard
//! device, or nowhere.
//!
//! A table of its own, made before anything that packets could take: no stop of the agent removes it, and
//! without the agent it drops what a route of somebody else, or none of ours, would let out.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, PerFamily};
use crate::nft::{
    Action, Chain, Element, Field, FoundChain, FoundRule, FoundTable, Hook, Match, NftRule,
    Ruleset, Set, Shape, Type, Value, Verdict,
};
use crate::plan::encryption::device_names;
use crate::plan::firewall::{PRIORITY_RAW, TableChange, TableDifference, base, changes};

/// The table's name. No network's table can have it: theirs is `humanz_<network>`.
pub const ENCRYPTION_TABLE: &str = "humanz-encryption";

/// Comments of the rules that drop, by which `explain` and the metrics know them.
pub const LEAVING: &str = "clear text to pods of other hosts";
pub const ARRIVING: &str = "clear text from pods of other hosts";
pub const FROM_POD: &str = "a pod sends to the encryption of a host";
pub const FOREIGN: &str = "no other host sends from this address";

/// The interfaces that packets of pods may leave and come in by.
const INSIDE: &str = "inside";

/// The chains that keep clear text in.
const ARRIVES: &str = "arriving";
const LEAVES: &str = "leaving";

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
        base_chain(ARRIVES, Hook::PREROUTING, guard.clear(ARRIVING, Match::Source, true)),
        base_chain(LEAVES, Hook::POSTROUTING, guard.clear(LEAVING, Match::Destination, false)),
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

/// What differs between the table wanted and the one found, while it is not known yet where tenants' pods have
/// their addresses: what keeps clear text in stays, if it is of humanz, and what is missing of it comes behind.
pub fn keeping_pools(wanted: &Ruleset, found: &FoundTable) -> Vec<TableChange> {
    let mut all = changes(Some(wanted), Some(found));
    if all.iter().any(|change| matches!(change.difference, TableDifference::SetDiffers(_))) {
        // All rules are written anew.
        return all;
    }
    for chain in wanted.chains.iter().filter(|chain| [ARRIVES, LEAVES].contains(&&*chain.name)) {
        let present = found.chains.iter().find(|present| present.name == chain.name);
        let kept = |found: &&FoundChain| {
            found.base == chain.base && found.rules.iter().all(keeps_clear_text_in)
        };
        let Some(present) = present.filter(kept) else { continue };
        all.retain(|change| rules_of(&change.difference) != Some(&chain.name));
        let mut lacking = chain.clone();
        lacking.rules.retain(|rule| {
            let print = Some(rule.fingerprint());
            !present.rules.iter().any(|found| found.fingerprint == print)
        });
        if !lacking.rules.is_empty() {
            let difference = TableDifference::RulesLacking(lacking);
            all.push(TableChange { table: wanted.table.clone(), difference });
        }
    }
    all
}

fn keeps_clear_text_in(rule: &FoundRule) -> bool {
    let is_drop = |comment: &String| [ARRIVING, LEAVING].contains(&comment.as_str());
    rule.fingerprint.is_some() && rule.comment.as_ref().is_some_and(is_drop)
}

/// The chain whose rules differ.
fn rules_of(difference: &TableDifference) -> Option<&String> {
    match difference {
        TableDifference::RuleMissing(chain, _)
        | TableDifference::RuleForeign(chain, ..)
        | TableDifference::RulesDisordered(chain) => Some(chain),
        _ => None,
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
    use crate::nft::{FoundSet, TableEdit};
    use crate::plan::firewall::{TableRepair, repair};

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
        "received: meta l4proto udp th dport 10401 jump checked",
        "received: meta l4proto udp th dport 10402 jump checked",
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

    /// The table as the kernel has it.
    fn found(guard: &EncryptionGuard) -> FoundTable {
        let Ruleset { table: name, sets, chains, .. } = ruleset(guard);
        let set = |Set { name, shape, elements }| FoundSet {
            name,
            shape: Some(shape),
            is_anonymous: false,
            elements,
        };
        let chain = |chain: Chain| FoundChain {
            rules: (1..).zip(&chain.rules).map(|(handle, rule)| found_rule(handle, rule)).collect(),
            name: chain.name,
            base: chain.base,
        };
        FoundTable {
            name,
            dormant: false,
            sets: sets.into_iter().map(set).collect(),
            flowtables: Vec::new(),
            chains: chains.into_iter().map(chain).collect(),
        }
    }

    fn found_rule(handle: u64, rule: &NftRule) -> FoundRule {
        let comment = Some(rule.comment.clone());
        FoundRule { handle, comment, fingerprint: Some(rule.fingerprint()) }
    }

    fn of_pools(pools: &[&str], strict: bool) -> EncryptionGuard {
        let pools = pools.iter().map(|pool| pool.parse().unwrap()).collect();
        EncryptionGuard { pools, ..guard(strict) }
    }

    /// Checks the repairs while tenants' pools may not be known.
    fn check(found: &FoundTable, wanted: &EncryptionGuard, lines: &[&str]) {
        let changes = keeping_pools(&ruleset(wanted), found);
        let said: Vec<String> =
            changes.iter().map(|change| change.difference.to_string()).collect();
        assert_eq!(said, lines);
    }

    #[test]
    fn rules_of_pools_that_may_only_not_be_known_stay_and_others_come_behind_them() {
        let before = found(&of_pools(&["10.244.0.0/16", "10.32.0.0/16"], true));
        check(&before, &of_pools(&["10.244.0.0/16"], true), &[]);
        let grown = of_pools(&["10.244.0.0/16", "10.7.0.0/16"], true);
        let lines = [
            "rules missing in chain arriving: ip saddr 10.7.0.0/16 iifname != @inside counter drop",
            "rules missing in chain leaving: ip daddr 10.7.0.0/16 oifname != @inside counter drop",
        ];
        check(&before, &grown, &lines);
        let changes = keeping_pools(&ruleset(&grown), &before);
        let TableRepair::Edits(edits) = repair(Some(&ruleset(&grown)), &changes) else {
            panic!("one edit after the other")
        };
        let is_more = |edit: &TableEdit| matches!(edit, TableEdit::MoreRules(_));
        assert!(edits.concat().iter().all(is_more), "nothing is flushed: {edits:?}");
    }

    #[test]
    fn what_does_not_keep_clear_text_in_does_not_stay() {
        let one = || of_pools(&["10.244.0.0/16"], true);
        let mut before = found(&of_pools(&["10.244.0.0/16", "10.32.0.0/16"], true));
        check(
            &before,
            &of_pools(&[], false),
            &["chain arriving not ours", "chain leaving not ours"],
        );
        // Somebody's rule in front of them lets everything through.
        let accept = FoundRule { handle: 9, comment: None, fingerprint: None };
        before.chains[1].rules.insert(0, accept);
        let lines = [
            "rule not ours in chain leaving: handle 9",
            "rule not ours in chain leaving: handle 2, \"clear text to pods of other hosts\"",
        ];
        check(&before, &one(), &lines);
        before.chains.remove(1);
        check(&before, &one(), &["chain leaving missing"]);
    }
}
