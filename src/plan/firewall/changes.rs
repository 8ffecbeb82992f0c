//! Pure. How a table found differs from the one wanted, and what puts it right.

use std::collections::BTreeSet;
use std::fmt;

use crate::linux::nft::{
    Chain, ElementChange, Flowtable, FoundChain, FoundRule, FoundSet, FoundTable, Rule, Ruleset,
    Set, SetKind,
};
use crate::net::AddressRange;
use crate::plan::{Describe, Line, Object};

/// How many elements of a set a line names before it only counts them.
const ELEMENTS_SHOWN: usize = 8;

/// One difference between the table wanted and the table found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub table: String,
    /// What differs in it.
    pub difference: Difference,
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// There is no such table.
    Missing,
    /// There is one, and none is wanted.
    Unwanted,
    /// It is switched off.
    Dormant,
    /// There is no chain of this name.
    ChainMissing(String),
    /// Nobody asked for this chain.
    ChainForeign(String),
    /// The chain is called elsewhere, or drops: its definition as found and as wanted.
    ChainDiffers(String, String, String),
    /// The chain lacks this rule.
    RuleMissing(String, String),
    /// The chain has a rule that nobody asked for: its handle, and its comment if it has one.
    RuleForeign(String, u64, Option<String>),
    /// The chain has its rules in another order.
    RulesDisordered(String),
    /// There is no set of this name.
    SetMissing(String),
    /// Nobody asked for this set.
    SetForeign(String),
    /// The set cannot hold what it should.
    SetDiffers(String),
    /// The set holds too much or too little.
    Elements(ElementChange),
    /// The flow tables are not the one that is wanted: as found and as wanted.
    Flowtable(String, String),
}

/// What turns the table found into the one wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Nothing differs.
    Nothing,
    /// Some sets of single addresses differ: a host came or went.
    Elements(Vec<ElementChange>),
    /// Anything else: the table is written anew.
    Replace,
    /// The table is removed.
    Delete,
}

/// What differs between `wanted` (`None`: no table) and `found` (`None`: there is none).
pub fn changes(wanted: Option<&Ruleset>, found: Option<&FoundTable>) -> Vec<Change> {
    let (table, differences) = match (wanted, found) {
        (None, None) => return Vec::new(),
        (None, Some(found)) => (&found.name, vec![Difference::Unwanted]),
        (Some(wanted), None) => (&wanted.table, vec![Difference::Missing]),
        (Some(wanted), Some(found)) => (&wanted.table, differences(wanted, found)),
    };
    let change = |difference| Change { table: table.clone(), difference };
    differences.into_iter().map(change).collect()
}

/// The smallest step that makes all of `changes` true.
pub fn repair(changes: &[Change]) -> Repair {
    let mut elements = Vec::new();
    for change in changes {
        match &change.difference {
            Difference::Unwanted => return Repair::Delete,
            // Ranges come from the configuration; they do not come and go with hosts.
            Difference::Elements(change) if change.set.kind == SetKind::Addresses => {
                elements.push(change.clone());
            }
            _ => return Repair::Replace,
        }
    }
    match elements.is_empty() {
        true => Repair::Nothing,
        false => Repair::Elements(elements),
    }
}

fn differences(wanted: &Ruleset, found: &FoundTable) -> Vec<Difference> {
    let mut differences = Vec::new();
    if found.dormant {
        differences.push(Difference::Dormant);
    }
    for set in &wanted.sets {
        let there = found.sets.iter().find(|there| there.name == set.name);
        differences.extend(set_difference(set, there));
    }
    let flowtables: Vec<&Flowtable> = wanted.flowtable.iter().collect();
    if !found.flowtables.iter().eq(flowtables.iter().copied()) {
        let found = told(found.flowtables.iter());
        differences.push(Difference::Flowtable(found, told(flowtables.into_iter())));
    }
    for chain in &wanted.chains {
        let there = found.chains.iter().find(|there| there.name == chain.name);
        differences.extend(chain_differences(chain, there));
    }
    for set in &found.sets {
        if !wanted.sets.iter().any(|wanted| wanted.name == set.name) {
            differences.push(Difference::SetForeign(set.name.clone()));
        }
    }
    for chain in &found.chains {
        if !wanted.chains.iter().any(|wanted| wanted.name == chain.name) {
            differences.push(Difference::ChainForeign(chain.name.clone()));
        }
    }
    differences
}

/// `pods (br0 eth0)`; `none` for none.
fn told<'a>(flowtables: impl Iterator<Item = &'a Flowtable>) -> String {
    let text = |flowtable: &Flowtable| {
        let devices: Vec<_> = flowtable.devices.iter().map(ToString::to_string).collect();
        format!("{} ({})", flowtable.name, devices.join(" "))
    };
    let texts: Vec<_> = flowtables.map(text).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

fn set_difference(wanted: &Set, found: Option<&FoundSet>) -> Option<Difference> {
    let name = || wanted.name.clone();
    let Some(found) = found else { return Some(Difference::SetMissing(name())) };
    if found.holds != Some((wanted.family, wanted.kind)) {
        return Some(Difference::SetDiffers(name()));
    }
    let lacking = |all: &BTreeSet<AddressRange>, from: &BTreeSet<AddressRange>| {
        all.difference(from).copied().collect::<BTreeSet<_>>()
    };
    let added = lacking(&wanted.elements, &found.elements);
    let removed = lacking(&found.elements, &wanted.elements);
    if added.is_empty() && removed.is_empty() {
        return None;
    }
    let set = Set { elements: BTreeSet::new(), ..wanted.clone() };
    Some(Difference::Elements(ElementChange { set, added, removed }))
}

fn chain_differences(wanted: &Chain, found: Option<&FoundChain>) -> Vec<Difference> {
    let name = || wanted.name.clone();
    let Some(found) = found else { return vec![Difference::ChainMissing(name())] };
    let mut differences = Vec::new();
    if found.base.as_ref() != Some(&wanted.base) {
        let is = found.base.as_ref().map_or("no hook".to_owned(), |base| base.to_string());
        differences.push(Difference::ChainDiffers(name(), is, wanted.base.to_string()));
    }
    differences.extend(rule_differences(wanted, &found.rules));
    differences
}

fn rule_differences(wanted: &Chain, found: &[FoundRule]) -> Vec<Difference> {
    let name = || wanted.name.clone();
    let prints: Vec<Option<u64>> =
        wanted.rules.iter().map(|rule| Some(rule.fingerprint())).collect();
    let there: Vec<Option<u64>> = found.iter().map(|rule| rule.fingerprint).collect();
    if prints == there {
        return Vec::new();
    }
    let missing = |(rule, print): (&Rule, &Option<u64>)| {
        (!there.contains(print)).then(|| Difference::RuleMissing(name(), rule.to_string()))
    };
    let mut differences: Vec<_> = wanted.rules.iter().zip(&prints).filter_map(missing).collect();
    for (place, rule) in found.iter().enumerate() {
        let again = there[..place].contains(&rule.fingerprint);
        if again || !prints.contains(&rule.fingerprint) {
            let comment = rule.comment.clone();
            differences.push(Difference::RuleForeign(name(), rule.handle, comment));
        }
    }
    if differences.is_empty() {
        differences.push(Difference::RulesDisordered(name()));
    }
    differences
}

impl Describe for Change {
    fn line(&self) -> Line {
        let table = Object::Table(self.table.clone());
        match &self.difference {
            Difference::Missing => Line::added(table),
            Difference::Unwanted => Line::removed(table),
            difference => Line::changed(table).with(format!(": {difference}")),
        }
    }
}

impl fmt::Display for Difference {
    /// What was found, as in `chain forward missing`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing => f.write_str("missing"),
            Difference::Unwanted => f.write_str("not wanted"),
            Difference::Dormant => f.write_str("dormant"),
            Difference::ChainMissing(name) => write!(f, "chain {name} missing"),
            Difference::ChainForeign(name) => write!(f, "chain {name} not ours"),
            Difference::ChainDiffers(name, found, wanted) => {
                write!(f, "chain {name} is \"{found}\" and not \"{wanted}\"")
            }
            Difference::RuleMissing(chain, rule) => {
                write!(f, "rule missing in chain {chain}: {rule}")
            }
            Difference::RuleForeign(chain, handle, comment) => {
                write!(f, "rule not ours in chain {chain}: handle {handle}")?;
                comment.iter().try_for_each(|comment| write!(f, ", {comment:?}"))
            }
            Difference::RulesDisordered(chain) => write!(f, "rules out of order in chain {chain}"),
            Difference::SetMissing(name) => write!(f, "set {name} missing"),
            Difference::SetForeign(name) => write!(f, "set {name} not ours"),
            Difference::SetDiffers(name) => write!(f, "set {name} is of another type"),
            Difference::Flowtable(found, wanted) => {
                write!(f, "flow table is {found} and not {wanted}")
            }
            Difference::Elements(ElementChange { set, added, removed }) => {
                write!(f, "set {}:{}{}", set.name, elements('+', added), elements('-', removed))
            }
        }
    }
}

/// ` +192.0.2.1 +192.0.2.2`, or ` +300 elements`; nothing for nothing.
fn elements(sign: char, ranges: &BTreeSet<AddressRange>) -> String {
    match ranges.len() {
        0..=ELEMENTS_SHOWN => ranges.iter().map(|range| format!(" {sign}{range}")).collect(),
        count => format!(" {sign}{count} elements"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::nft::{Base, Hook, Match, Policy, Verdict};
    use crate::net::Family;

    fn base() -> Base {
        let kind = "filter".to_owned();
        Base { kind, hook: Hook::FORWARD, priority: 0, policy: Policy::Accept }
    }

    fn rule(bridge: &str) -> Rule {
        Rule {
            comment: "from pods".to_owned(),
            matches: vec![Match::Input(bridge.parse().unwrap())],
            verdict: Verdict::Accept,
        }
    }

    fn ranges(list: &[&str]) -> BTreeSet<AddressRange> {
        list.iter().map(|text| AddressRange::single(text.parse().unwrap())).collect()
    }

    fn set(name: &str, kind: SetKind, elements: &[&str]) -> Set {
        Set { name: name.to_owned(), family: Family::V4, kind, elements: ranges(elements) }
    }

    fn wanted() -> Ruleset {
        Ruleset {
            table: "humanz".to_owned(),
            comment: String::new(),
            sets: vec![
                set("cluster4", SetKind::Ranges, &["10.0.0.1"]),
                set("nodes4", SetKind::Addresses, &["192.0.2.1", "192.0.2.2"]),
            ],
            flowtable: None,
            chains: vec![Chain {
                name: "forward".to_owned(),
                base: base(),
                rules: vec![rule("humanz0"), rule("humanz1")],
            }],
        }
    }

    /// What the kernel shows of `wanted` when it holds just that.
    fn as_wanted() -> FoundTable {
        let wanted = wanted();
        let sets = wanted.sets.iter().map(|set| FoundSet {
            name: set.name.clone(),
            holds: Some((set.family, set.kind)),
            elements: set.elements.clone(),
        });
        let chains = wanted.chains.iter().map(|chain| FoundChain {
            name: chain.name.clone(),
            base: Some(chain.base.clone()),
            rules: (1..).zip(&chain.rules).map(|(handle, rule)| found(handle, rule)).collect(),
        });
        let (sets, chains) = (sets.collect(), chains.collect());
        FoundTable {
            name: "humanz".to_owned(),
            dormant: false,
            sets,
            flowtables: Vec::new(),
            chains,
        }
    }

    fn found(handle: u64, rule: &Rule) -> FoundRule {
        let comment = Some(rule.comment.clone());
        FoundRule { handle, comment, fingerprint: Some(rule.fingerprint()) }
    }

    /// Checks the lines for a table that `spoil` spoils, and the kind of repair.
    fn check(spoil: impl FnOnce(&mut FoundTable), lines: &[&str], wanted_repair: &str) {
        let mut found = as_wanted();
        spoil(&mut found);
        let changes = changes(Some(&wanted()), Some(&found));
        let prefix = "~ nft table inet humanz: ";
        let said: Vec<_> = changes.iter().map(|change| change.line().to_string()).collect();
        let said: Vec<_> = said.iter().map(|line| line.strip_prefix(prefix).unwrap()).collect();
        assert_eq!(said, lines);
        let repair = match repair(&changes) {
            Repair::Nothing => "nothing",
            Repair::Elements(_) => "elements",
            Repair::Replace => "replace",
            Repair::Delete => "delete",
        };
        assert_eq!(repair, wanted_repair);
    }

    #[test]
    fn a_table_as_wanted_is_left_alone() {
        check(|_| {}, &[], "nothing");
    }

    #[test]
    fn a_flushed_chain_is_noticed_rule_by_rule() {
        let lines = [
            "rule missing in chain forward: iifname \"humanz0\" counter accept",
            "rule missing in chain forward: iifname \"humanz1\" counter accept",
        ];
        check(|found| found.chains[0].rules.clear(), &lines, "replace");
    }

    #[test]
    fn a_deleted_rule_is_noticed() {
        let lines = ["rule missing in chain forward: iifname \"humanz0\" counter accept"];
        check(|found| drop(found.chains[0].rules.remove(0)), &lines, "replace");
    }

    #[test]
    fn a_rule_added_by_hand_is_noticed() {
        let foreign = FoundRule { handle: 9, comment: None, fingerprint: None };
        let lines = ["rule not ours in chain forward: handle 9"];
        check(|found| found.chains[0].rules.push(foreign), &lines, "replace");
    }

    #[test]
    fn a_rule_that_is_there_twice_is_noticed() {
        let again = found(9, &rule("humanz0"));
        let lines = ["rule not ours in chain forward: handle 9, \"from pods\""];
        check(|found| found.chains[0].rules.push(again), &lines, "replace");
    }

    #[test]
    fn rules_in_another_order_are_noticed() {
        let lines = ["rules out of order in chain forward"];
        check(|found| found.chains[0].rules.reverse(), &lines, "replace");
    }

    #[test]
    fn a_policy_changed_by_hand_is_noticed() {
        let drop = Some(Base { policy: Policy::Drop, ..base() });
        let lines = ["chain forward is \"type filter hook forward priority 0; policy drop\" and \
                      not \"type filter hook forward priority 0; policy accept\""];
        check(|found| found.chains[0].base = drop, &lines, "replace");
    }

    #[test]
    fn a_host_that_came_and_one_that_went_change_elements_only() {
        let elements = ranges(&["192.0.2.1", "192.0.2.9"]);
        let lines = ["set nodes4: +192.0.2.2 -192.0.2.9"];
        check(|found| found.sets[1].elements = elements, &lines, "elements");
    }

    #[test]
    fn many_elements_are_counted() {
        let first: std::net::IpAddr = "198.51.100.1".parse().unwrap();
        let next = |n| AddressRange::single(crate::net::subnet::offset(first, n));
        let lines = ["set nodes4: -9 elements"];
        check(|found| found.sets[1].elements.extend((0..9).map(next)), &lines, "elements");
    }

    #[test]
    fn a_range_that_differs_is_a_new_table() {
        let lines = ["set cluster4: +10.0.0.1"];
        check(|found| found.sets[0].elements.clear(), &lines, "replace");
    }

    #[test]
    fn sets_and_chains_that_are_missing_foreign_or_of_another_kind_are_noticed() {
        let lines = ["set cluster4 missing"];
        check(|found| drop(found.sets.remove(0)), &lines, "replace");
        check(|found| found.sets[1].holds = None, &["set nodes4 is of another type"], "replace");
        check(|found| found.chains.clear(), &["chain forward missing"], "replace");
        let mine = FoundChain { name: "mine".to_owned(), base: None, rules: Vec::new() };
        check(|found| found.chains.push(mine), &["chain mine not ours"], "replace");
        let other = FoundSet { name: "x".to_owned(), holds: None, elements: BTreeSet::new() };
        check(|found| found.sets.push(other), &["set x not ours"], "replace");
    }

    #[test]
    fn a_table_switched_off_is_noticed() {
        check(|found| found.dormant = true, &["dormant"], "replace");
    }

    #[test]
    fn a_missing_table_is_written_and_an_unwanted_one_removed() {
        let missing = changes(Some(&wanted()), None);
        assert_eq!(missing[0].line().to_string(), "+ nft table inet humanz");
        assert_eq!(repair(&missing), Repair::Replace);
        let unwanted = changes(None, Some(&as_wanted()));
        assert_eq!(unwanted[0].line().to_string(), "- nft table inet humanz");
        assert_eq!(repair(&unwanted), Repair::Delete);
        assert_eq!(changes(None, None), []);
    }
}
