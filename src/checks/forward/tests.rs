mod hosts;

use std::iter;

use crate::checks::forward::*;
use crate::net::PerFamily;
use crate::nft::{ChainPolicy, NftChain, TableFamily, Verdict};

const IPTABLES: (TableFamily, &str, &str) = (TableFamily::Ip, "filter", "FORWARD");
const FIREWALLD: (TableFamily, &str, &str) = (TableFamily::Inet, "firewalld", "filter_FORWARD");
const PLAIN: (TableFamily, &str, &str) = (TableFamily::Inet, "filter", "forward");

fn traffic() -> Traffic {
    Traffic {
        bridge: "humanz0".parse().unwrap(),
        uplink: Some("eth0".parse().unwrap()),
        pods_come_by: vec!["eth0".parse().unwrap()],
        subnets: PerFamily {
            v4: Some("10.244.3.0/24".parse().unwrap()),
            v6: Some("fd00:10:0:3::/64".parse().unwrap()),
        },
        pools: PerFamily {
            v4: Some("10.244.0.0/16".parse().unwrap()),
            v6: Some("fd00:10::/48".parse().unwrap()),
        },
        bridged: vec![Family::V4],
    }
}

fn chain(at: (TableFamily, &str, &str), policy: ChainPolicy, rules: &[ChainRule]) -> BaseChain {
    let (family, table, chain) = at;
    let (table, chain) = (table.to_owned(), chain.to_owned());
    let place = ChainRef::Nft(NftChain { family, table, chain });
    BaseChain { place, policy, rules: rules.to_vec(), called: Default::default() }
}

fn rule(matches: &[RuleMatch], verdict: Verdict) -> ChainRule {
    ChainRule { handle: Some(7), matches: matches.to_vec(), verdict, comment: None }
}

fn by(direction: HookDirection, name: &str) -> RuleMatch {
    RuleMatch::interface(direction, name)
}

fn accept(direction: HookDirection, name: &str) -> ChainRule {
    rule(&[by(direction, name)], Verdict::Accept)
}

fn ours(direction: HookDirection) -> ChainRule {
    ChainRule { comment: Some(direction.comment()), ..accept(direction, "humanz0") }
}

fn drop_all() -> ChainRule {
    rule(&[], Verdict::Drop)
}

fn check(chain: BaseChain, wanted: &[&str]) {
    let found = HookChains { chains: vec![chain], unreadable: Vec::new() };
    let plan = plan(&traffic(), iter::empty(), &found);
    let mut lines: Vec<String> = plan.edits.iter().map(|edit| edit.line().to_string()).collect();
    lines.extend(plan.problems.iter().map(ToString::to_string));
    assert_eq!(lines, wanted);
}

const INSERT_OUT: &str = "+ rule -o humanz0 -j ACCEPT in iptables chain FORWARD";
const INSERT_IN: &str = "+ rule -i humanz0 -j ACCEPT in iptables chain FORWARD";
const REMOVE_IN: &str = "- rule -i humanz0 -j ACCEPT in iptables chain FORWARD";

#[test]
fn a_chain_that_drops_nothing_is_left_alone() {
    check(chain(IPTABLES, ChainPolicy::Accept, &[rule(&[RuleMatch::never()], Verdict::Drop)]), &[]);
}

#[test]
fn a_policy_that_drops_gets_both_rules() {
    check(chain(IPTABLES, ChainPolicy::Drop, &[]), &[INSERT_OUT, INSERT_IN]);
    let other = accept(HookDirection::In, "humanz00");
    check(chain(IPTABLES, ChainPolicy::Drop, &[other]), &[INSERT_OUT, INSERT_IN]);
}

#[test]
fn a_rule_that_drops_everything_counts_as_a_policy() {
    check(chain(IPTABLES, ChainPolicy::Accept, &[drop_all()]), &[INSERT_OUT, INSERT_IN]);
}

#[test]
fn a_drop_in_a_chain_that_is_called_counts_too() {
    let wall = rule(&[], Verdict::Jump("WALL".to_owned()));
    let called = [("WALL".to_owned(), vec![drop_all()])].into();
    let chain = BaseChain { called, ..chain(IPTABLES, ChainPolicy::Accept, &[wall]) };
    check(chain, &[INSERT_OUT, INSERT_IN]);
}

#[test]
fn a_rule_that_may_accept_is_not_relied_on() {
    let perhaps = rule(&[RuleMatch::unknown()], Verdict::Accept);
    check(
        chain(IPTABLES, ChainPolicy::Drop, std::slice::from_ref(&perhaps)),
        &[INSERT_OUT, INSERT_IN],
    );
    let line = "nft table inet filter, chain forward: may drop pod traffic: a rule is not understood; \
        nft -a list chain inet filter forward # read its rules";
    check(chain(PLAIN, ChainPolicy::Drop, &[perhaps]), &[line]);
}

#[test]
fn ipv6_and_older_tables_have_their_own() {
    let at = (TableFamily::Ip6, "filter", "FORWARD");
    let lines = [
        "+ rule -o humanz0 -j ACCEPT in ip6tables chain FORWARD",
        "+ rule -i humanz0 -j ACCEPT in ip6tables chain FORWARD",
    ];
    check(chain(at, ChainPolicy::Drop, &[]), &lines);
    let place = ChainRef::Legacy(Family::V4, "FORWARD");
    let lines = [
        "+ rule -o humanz0 -j ACCEPT in iptables-legacy chain FORWARD",
        "+ rule -i humanz0 -j ACCEPT in iptables-legacy chain FORWARD",
    ];
    check(BaseChain { place, ..chain(IPTABLES, ChainPolicy::Drop, &[]) }, &lines);
}

#[test]
fn rules_that_are_there_are_not_inserted_again() {
    let rules = [
        rule(&[RuleMatch::never()], Verdict::Drop),
        ours(HookDirection::In),
        ours(HookDirection::Out),
    ];
    check(chain(IPTABLES, ChainPolicy::Drop, &rules), &[]);
}

#[test]
fn rules_of_the_owner_do_as_well() {
    let rules = [accept(HookDirection::In, "humanz0"), accept(HookDirection::Out, "humanz0")];
    check(chain(IPTABLES, ChainPolicy::Drop, &rules), &[]);
}

#[test]
fn only_the_rule_that_is_gone_comes_back() {
    check(chain(IPTABLES, ChainPolicy::Drop, &[ours(HookDirection::Out)]), &[INSERT_IN]);
}

#[test]
fn a_rule_of_ours_behind_a_drop_is_moved() {
    let rules = [ours(HookDirection::Out), drop_all(), ours(HookDirection::In)];
    check(chain(IPTABLES, ChainPolicy::Accept, &rules), &[REMOVE_IN, INSERT_IN]);
}

#[test]
fn a_drop_for_one_interface_is_its_owners_will_and_reported() {
    let only =
        rule(&[by(HookDirection::In, "humanz0"), by(HookDirection::Out, "eth0")], Verdict::Drop);
    let line = "iptables chain FORWARD: a rule drops what pods send; iptables -I \
        FORWARD -i humanz0 -j ACCEPT && iptables -I FORWARD -o humanz0 -j ACCEPT # and likewise in \
        the file that makes the rules";
    check(chain(IPTABLES, ChainPolicy::Accept, &[only]), &[line]);
}

#[test]
fn every_chain_that_drops_is_reported_with_a_fix() {
    let loading = (TableFamily::Inet, "firewalld_policy_drop", "filter_FORWARD");
    for at in [PLAIN, FIREWALLD, loading, IPTABLES] {
        let only = rule(
            &[by(HookDirection::In, "humanz0"), by(HookDirection::Out, "eth0")],
            Verdict::Drop,
        );
        let found = HookChains {
            chains: vec![chain(at, ChainPolicy::Drop, &[only])],
            unreadable: Vec::new(),
        };
        let plan = plan(&traffic(), iter::empty(), &found);
        let why = "MANAGE_FORWARD=false";
        let inserted = plan.edits.iter().filter_map(|edit| not_inserted(edit, why));
        let problems: Vec<Problem> = plan.problems.into_iter().chain(inserted).collect();
        assert!(!problems.is_empty(), "{at:?}");
        for problem in problems {
            assert_eq!(problem.kind, ProblemKind::ForwardBlocked);
            assert!(problem.fix.is_some(), "{problem}");
        }
    }
}

#[test]
fn a_chain_of_another_owner_is_reported_with_what_to_do() {
    let line = "nft table inet filter, chain forward: its policy drops pod traffic; \
        nft 'insert rule inet filter forward iifname \"humanz0\" accept' && nft 'insert rule inet \
        filter forward oifname \"humanz0\" accept' # and likewise in the file that makes the table";
    check(chain(PLAIN, ChainPolicy::Drop, &[]), &[line]);
    let line = "nft table inet firewalld, chain filter_FORWARD: a rule drops pod traffic; \
        firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16 \
        --add-source=fd00:10::/48 && firewall-cmd --reload";
    check(chain(FIREWALLD, ChainPolicy::Accept, &[drop_all()]), &[line]);
}

/// As firewalld has it when the bridge alone is in the zone `trusted`.
#[test]
fn a_table_that_lets_pods_out_but_not_in_is_reported() {
    let to_zone = rule(&[], Verdict::Goto("public".to_owned()));
    let called = [("public".to_owned(), vec![drop_all()])].into();
    let rules = [accept(HookDirection::In, "humanz0"), to_zone];
    let line = "nft table inet firewalld, chain filter_FORWARD: a rule of chain public drops what \
        other hosts' pods send to pods; firewall-cmd --permanent --zone=trusted \
        --add-source=10.244.0.0/16 --add-source=fd00:10::/48 && firewall-cmd --reload";
    check(BaseChain { called, ..chain(FIREWALLD, ChainPolicy::Accept, &rules) }, &[line]);
}

#[test]
fn a_table_whose_owner_thought_of_the_bridge_is_not_reported() {
    let rules = [accept(HookDirection::In, "humanz0"), accept(HookDirection::Out, "humanz0")];
    check(chain(PLAIN, ChainPolicy::Drop, &rules), &[]);
}

#[test]
fn pods_on_one_bridge_count_where_firewalls_see_them() {
    let by = |input, output| {
        let conditions = [by(HookDirection::In, input), by(HookDirection::Out, output)];
        rule(&conditions, Verdict::Accept)
    };
    let rules = [by("humanz0", "eth0"), by("eth0", "humanz0")];
    let at = |family| (family, "filter", "forward");
    check(chain(at(TableFamily::Ip6), ChainPolicy::Drop, &rules), &[]);
    let line = "nft table ip filter, chain forward: its policy drops pod traffic; nft \
        'insert rule ip filter forward iifname \"humanz0\" accept' && nft 'insert rule ip filter \
        forward oifname \"humanz0\" accept' # and likewise in the file that makes the table";
    check(chain(at(TableFamily::Ip), ChainPolicy::Drop, &rules), &[line]);
}

#[test]
fn pods_of_other_hosts_may_come_by_a_tunnel() {
    let rules = [accept(HookDirection::In, "humanz0"), accept(HookDirection::In, "eth0")];
    let chain = chain(PLAIN, ChainPolicy::Drop, &rules);
    check(chain.clone(), &[]);
    let traffic = Traffic { pods_come_by: vec!["humanz-vx4".parse().unwrap()], ..traffic() };
    let found = HookChains { chains: vec![chain], unreadable: Vec::new() };
    let line = plan(&traffic, iter::empty(), &found).problems[0].to_string();
    assert!(line.contains("its policy drops what other hosts' pods send to pods"), "{line}");
}

#[test]
fn older_tables_that_cannot_be_read_are_reported() {
    let error = ChainError::NoProgram { name: "iptables-legacy" };
    let unreadable = vec![(ChainRef::Legacy(Family::V4, "FORWARD"), error)];
    let plan = plan(&traffic(), iter::empty(), &HookChains { chains: Vec::new(), unreadable });
    let problem = &plan.problems[0];
    let what = "iptables-legacy chain FORWARD: may drop pod traffic and cannot be read: the \
        program iptables-legacy is not installed (package iptables)";
    assert_eq!((problem.kind, problem.what.as_str()), (ProblemKind::ForwardUnreadable, what));
}

#[test]
fn the_other_pods_address_is_never_one_of_this_host() {
    let check = |pool: &str, own: &str, wanted: &str| {
        let found = elsewhere(pool.parse().unwrap(), own.parse().unwrap());
        assert_eq!(found.to_string(), wanted, "{pool} {own}");
    };
    check("10.244.0.0/16", "10.244.3.0/24", "10.244.0.2");
    check("10.244.0.0/16", "10.244.0.0/24", "10.244.1.2");
}

#[test]
fn cleaning_up_removes_our_rules_and_no_others() {
    let rules =
        [ours(HookDirection::In), accept(HookDirection::Out, "humanz0"), ours(HookDirection::Out)];
    let chains = vec![chain(IPTABLES, ChainPolicy::Accept, &rules)];
    let found = HookChains { chains, unreadable: Vec::new() };
    let edits = removals(&traffic().bridge, &found);
    let lines: Vec<String> = edits.iter().map(|edit| edit.line().to_string()).collect();
    assert_eq!(lines, ["- rule -o humanz0 -j ACCEPT in iptables chain FORWARD", REMOVE_IN]);
}
