//! Every difference between a table and the one wanted.

use crate::net::AddressRange;
use crate::nft::{
    Action, Base, ChainPolicy, FoundSet, Hook, Match, Shape, TableEdit, Type, Verdict,
};
use crate::plan::Describe;
use crate::plan::firewall::changes::*;
use crate::plan::firewall::{TableRepair, repair};

fn base() -> Base {
    let kind = "filter".to_owned();
    Base { kind, hook: Hook::FORWARD, priority: 0, policy: ChainPolicy::Accept }
}

fn rule(bridge: &str) -> NftRule {
    NftRule {
        comment: "from pods".to_owned(),
        matches: vec![Match::InputInterface(bridge.parse().unwrap())],
        action: Action::Verdict(Verdict::Accept),
    }
}

fn addresses(list: &[&str]) -> BTreeSet<Element> {
    list.iter().map(|text| AddressRange::single(text.parse().unwrap()).into()).collect()
}

fn set(name: &str, intervals: bool, elements: &[&str]) -> Set {
    let shape = Shape { intervals, ..Shape::set([Type::Ipv4]) };
    Set { name: name.to_owned(), shape, elements: addresses(elements) }
}

fn wanted() -> Ruleset {
    Ruleset {
        table: "humanz".to_owned(),
        comment: String::new(),
        sets: vec![
            set("cluster4", true, &["10.0.0.1"]),
            set("nodes4", false, &["192.0.2.1", "192.0.2.2"]),
        ],
        flowtable: None,
        chains: vec![Chain {
            name: "forward".to_owned(),
            base: Some(base()),
            rules: vec![rule("humanz0"), rule("humanz1")],
        }],
    }
}

/// What the kernel shows of `wanted` when it holds just that.
fn as_wanted() -> FoundTable {
    let wanted = wanted();
    let sets = wanted.sets.iter().map(|set| FoundSet {
        name: set.name.clone(),
        shape: Some(set.shape.clone()),
        is_anonymous: false,
        elements: set.elements.clone(),
    });
    let chains = wanted.chains.iter().map(|chain| FoundChain {
        name: chain.name.clone(),
        base: chain.base.clone(),
        rules: (1..).zip(&chain.rules).map(|(handle, rule)| found(handle, rule)).collect(),
    });
    let (sets, chains) = (sets.collect(), chains.collect());
    FoundTable { name: "humanz".to_owned(), dormant: false, sets, flowtables: Vec::new(), chains }
}

fn found(handle: u64, rule: &NftRule) -> FoundRule {
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
    let repair = match repair(Some(&wanted()), &changes) {
        TableRepair::Nothing => "nothing".to_owned(),
        TableRepair::Elements(_) => "elements".to_owned(),
        TableRepair::Edits(transactions) => edits(&transactions),
        TableRepair::Replace | TableRepair::Delete => panic!("{changes:?}"),
    };
    assert_eq!(repair, wanted_repair);
}

/// Verbs and names; `;` between transactions.
fn edits(transactions: &[Vec<TableEdit>]) -> String {
    let text = |edit: &TableEdit| match edit {
        TableEdit::Table { .. } => "table".to_owned(),
        TableEdit::AddSet(set) => format!("+{}", set.name),
        TableEdit::Elements(change) => format!("~{}", change.set),
        TableEdit::AddCounter(name) => format!("+{name}"),
        TableEdit::AddChain(chain) => format!("+{}", chain.name),
        TableEdit::Rules(chain) => format!("rules {}", chain.name),
        TableEdit::MoreRules(chain) => format!("more rules {}", chain.name),
        TableEdit::Flush(name) => format!("flush {name}"),
        TableEdit::RemoveChain(name)
        | TableEdit::RemoveSet(name)
        | TableEdit::RemoveCounter(name)
        | TableEdit::RemoveFlowtable(name) => format!("-{name}"),
    };
    let texts = |edits: &Vec<TableEdit>| edits.iter().map(text).collect::<Vec<_>>().join(", ");
    transactions.iter().map(texts).collect::<Vec<_>>().join("; ")
}

/// The rules of the chain are written again.
const REFILLED: &str = "flush forward, +forward, rules forward";

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
    check(|found| found.chains[0].rules.clear(), &lines, REFILLED);
}

#[test]
fn a_deleted_rule_is_noticed() {
    let lines = ["rule missing in chain forward: iifname \"humanz0\" counter accept"];
    check(|found| drop(found.chains[0].rules.remove(0)), &lines, REFILLED);
}

#[test]
fn a_rule_added_by_hand_is_noticed() {
    let foreign = FoundRule { handle: 9, comment: None, fingerprint: None };
    let lines = ["rule not ours in chain forward: handle 9"];
    check(|found| found.chains[0].rules.push(foreign), &lines, REFILLED);
}

#[test]
fn a_rule_that_is_there_twice_is_noticed() {
    let again = found(9, &rule("humanz0"));
    let lines = ["rule not ours in chain forward: handle 9, \"from pods\""];
    check(|found| found.chains[0].rules.push(again), &lines, REFILLED);
}

#[test]
fn rules_in_another_order_are_noticed() {
    let lines = ["rules out of order in chain forward"];
    check(|found| found.chains[0].rules.reverse(), &lines, REFILLED);
}

#[test]
fn a_policy_changed_by_hand_is_noticed() {
    let drop = Some(Base { policy: ChainPolicy::Drop, ..base() });
    let lines = ["chain forward is \"type filter hook forward priority 0; policy drop\" and \
                  not \"type filter hook forward priority 0; policy accept\""];
    check(
        |found| found.chains[0].base = drop,
        &lines,
        "flush forward, -forward, +forward, rules forward",
    );
}

#[test]
fn a_host_that_came_and_one_that_went_change_elements_only() {
    let elements = addresses(&["192.0.2.1", "192.0.2.9"]);
    let lines = ["set nodes4: +192.0.2.2 -192.0.2.9"];
    check(|found| found.sets[1].elements = elements, &lines, "elements");
}

#[test]
fn many_elements_are_counted() {
    let first: std::net::IpAddr = "198.51.100.1".parse().unwrap();
    let next = |n| AddressRange::single(crate::net::subnet::offset(first, n)).into();
    let lines = ["set nodes4: -9 elements"];
    check(|found| found.sets[1].elements.extend((0..9).map(next)), &lines, "elements");
}

#[test]
fn a_range_that_differs_changes_elements_only() {
    let lines = ["set cluster4: +10.0.0.1"];
    check(|found| found.sets[0].elements.clear(), &lines, "elements");
}

#[test]
fn sets_and_chains_that_are_missing_foreign_or_of_another_kind_are_noticed() {
    let lines = ["set cluster4 missing"];
    check(|found| drop(found.sets.remove(0)), &lines, "+cluster4");
    let again = "flush forward, -nodes4, +nodes4, +forward, rules forward";
    check(|found| found.sets[1].shape = None, &["set nodes4 is of another type"], again);
    let made = "+forward, rules forward";
    check(|found| found.chains.clear(), &["chain forward missing"], made);
    let mine = FoundChain { name: "mine".to_owned(), base: None, rules: Vec::new() };
    check(|found| found.chains.push(mine), &["chain mine not ours"], "flush mine, -mine");
    let other = FoundSet { name: "x".to_owned(), shape: None, ..as_wanted().sets.remove(0) };
    check(|found| found.sets.push(other), &["set x not ours"], "-x");
}

#[test]
fn sets_are_made_in_a_transaction_before_their_rules_and_a_dormant_table_wakes_last() {
    let spoil = |found: &mut FoundTable| {
        found.dormant = true;
        found.sets.remove(0);
        found.chains[0].rules.pop();
    };
    let lines = [
        "dormant",
        "set cluster4 missing",
        "rule missing in chain forward: iifname \"humanz1\" counter accept",
    ];
    check(spoil, &lines, &format!("+cluster4; {REFILLED}; table"));
}

#[test]
fn a_table_switched_off_is_noticed() {
    check(|found| found.dormant = true, &["dormant"], "table");
}

#[test]
fn a_missing_table_is_written_and_an_unwanted_one_removed() {
    let missing = changes(Some(&wanted()), None);
    assert_eq!(missing[0].line().to_string(), "+ nft table inet humanz");
    let TableRepair::Edits(transactions) = repair(Some(&wanted()), &missing) else { panic!() };
    assert_eq!(edits(&transactions), "table, +cluster4, +nodes4; +forward, rules forward");
    let unwanted = changes(None, Some(&as_wanted()));
    assert_eq!(unwanted[0].line().to_string(), "- nft table inet humanz");
    assert_eq!(repair(None, &unwanted), TableRepair::Delete);
    assert_eq!(changes(None, None), []);
}

#[test]
fn elements_that_only_one_of_two_sets_has_are_found() {
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let some = |bits: usize| -> Vec<&str> {
        let is_in =
            |(place, text): (usize, &&'static str)| (bits >> place & 1 == 1).then_some(*text);
        all.iter().enumerate().filter_map(is_in).collect()
    };
    for (one, other) in (0..8).flat_map(|one| (0..8).map(move |other| (one, other))) {
        let wanted = set("s", false, &some(one));
        let found = addresses(&some(other));
        let difference = set_difference(&wanted, (Some(&wanted.shape), &found));
        let (added, removed) = match difference {
            Some(TableDifference::Elements(change)) => (change.added, change.removed),
            None => Default::default(),
            Some(other) => panic!("{other:?}"),
        };
        assert_eq!(added, addresses(&some(one & !other)), "{one} {other}");
        assert_eq!(removed, addresses(&some(other & !one)), "{one} {other}");
    }
}
