//! Drops of the pods of some hosts.

use std::net::Ipv4Addr;

use super::{FIREWALLD, IPTABLES, PLAIN, accept, chain, rule, traffic};
use crate::checks::forward::*;
use crate::net::AddressRange;
use crate::nft::base_chains::{Comparison, PacketAddress, PacketField};
use crate::nft::{ChainPolicy, TableFamily, Verdict};

/// Ten hosts with a subnet of each family, `h0` to `h9`. The host of the tests is 3.
fn hosts() -> impl Iterator<Item = (&'static str, IpNetwork)> + Clone {
    let names = ["h0", "h1", "h2", "h4", "h5", "h6", "h7", "h8", "h9"];
    names.into_iter().flat_map(|name| {
        let number = &name[1..];
        let v4 = format!("10.244.{number}.0/24").parse().unwrap();
        let v6 = format!("fd00:10:0:{number}::/64").parse().unwrap();
        [(name, v4), (name, v6)]
    })
}

fn networks(networks: &[&str]) -> Vec<AddressRange> {
    networks.iter().map(|text| text.parse::<IpNetwork>().unwrap().into()).collect()
}

fn to(list: &[&str], verdict: Verdict) -> ChainRule {
    rule(&[RuleMatch::address(PacketAddress::Destination, &networks(list))], verdict)
}

fn from(list: &[&str], verdict: Verdict) -> ChainRule {
    rule(&[RuleMatch::address(PacketAddress::Source, &networks(list))], verdict)
}

/// The problems of a chain, without their fixes.
fn check(chain: BaseChain, wanted: &[&str]) {
    let found = HookChains { chains: vec![chain], unreadable: Vec::new() };
    let plan = plan(&traffic(), hosts(), &found);
    assert_eq!(plan.edits, [], "nothing is changed for it");
    let lines: Vec<&str> = plan.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert_eq!(lines, wanted);
}

#[test]
fn a_drop_for_the_pods_of_one_host_names_that_host() {
    let rules = [to(&["10.244.5.0/24"], Verdict::Drop)];
    let line =
        "iptables chain FORWARD: a rule drops what pods send to pods of 10.244.5.0/24 (host h5)";
    check(chain(IPTABLES, ChainPolicy::Accept, &rules), &[line]);
    let rules = [from(&["fd00:10:0:5::/64"], Verdict::Drop)];
    let line = "nft table inet filter, chain forward: a rule drops what pods of fd00:10:0:5::/64 \
                (host h5) send to pods";
    check(chain(PLAIN, ChainPolicy::Accept, &rules), &[line]);
}

#[test]
fn both_ways_are_one_problem_and_two_hosts_two() {
    let rules = [to(&["10.244.5.0/24"], Verdict::Drop), from(&["10.244.5.0/24"], Verdict::Drop)];
    let line = "nft table inet filter, chain forward: a rule drops traffic with pods of \
                10.244.5.0/24 (host h5)";
    check(chain(PLAIN, ChainPolicy::Accept, &rules), &[line]);
    let rules = [to(&["10.244.5.0/24"], Verdict::Drop), from(&["10.244.6.0/24"], Verdict::Drop)];
    let at = "nft table inet filter, chain forward: a rule drops what pods";
    let lines = [
        &format!("{at} of 10.244.6.0/24 (host h6) send to pods"),
        &format!("{at} send to pods of 10.244.5.0/24 (host h5)"),
    ];
    check(chain(PLAIN, ChainPolicy::Accept, &rules), &lines.map(String::as_str));
}

#[test]
fn a_few_hosts_are_named_and_the_rest_counted() {
    let rules = [to(&["10.244.4.0/22", "10.244.8.0/23"], Verdict::Drop)];
    let line = "nft table inet filter, chain forward: a rule drops what pods send to pods of \
                10.244.4.0/24 (host h4), 10.244.5.0/24 (host h5), 10.244.6.0/24 (host h6) and 3 more";
    check(chain(PLAIN, ChainPolicy::Accept, &rules), &[line]);
}

#[test]
fn a_host_with_both_families_is_one_host() {
    let both = ["10.244.5.0/24", "fd00:10:0:5::/64"];
    let at = "nft table inet filter, chain forward: a rule drops what pods send to pods of";
    let line = format!("{at} 10.244.5.0/24 and fd00:10:0:5::/64 (host h5)");
    let rules = both.map(|network| to(&[network], Verdict::Drop));
    check(chain(PLAIN, ChainPolicy::Accept, &rules), &[&line]);
    let most = ["10.244.4.0/22", "10.244.8.0/23", "fd00:10:0:4::/62", "fd00:10:0:8::/63"];
    let each = |n: u8| format!("10.244.{n}.0/24 and fd00:10:0:{n}::/64 (host h{n})");
    let line = format!("{at} {}, {}, {} and 3 more", each(4), each(5), each(6));
    let rules = [to(&most[..2], Verdict::Drop), to(&most[2..], Verdict::Drop)];
    check(chain(PLAIN, ChainPolicy::Accept, &rules), &[&line]);
}

#[test]
fn each_chain_is_reported_with_what_it_drops() {
    let jump = |name: &str| rule(&[], Verdict::Jump(name.to_owned()));
    let drops = |name: &str, rules: &[ChainRule]| (name.to_owned(), rules.to_vec());
    let called = [
        drops("A", &[to(&["10.244.6.0/24"], Verdict::Drop)]),
        drops("B", &[to(&["10.244.5.0/24"], Verdict::Drop)]),
        drops("C", &[from(&["10.244.5.0/24"], Verdict::Drop)]),
    ];
    let rules = [jump("A"), jump("B"), jump("C")];
    let chain = BaseChain { called: called.into(), ..chain(PLAIN, ChainPolicy::Accept, &rules) };
    let at = "nft table inet filter, chain forward: a rule of chain";
    let lines = [
        &format!("{at} C drops what pods of 10.244.5.0/24 (host h5) send to pods"),
        &format!("{at} A drops what pods send to pods of 10.244.6.0/24 (host h6)"),
        &format!("{at} B drops what pods send to pods of 10.244.5.0/24 (host h5)"),
    ];
    check(chain, &lines.map(String::as_str));
}

#[test]
fn a_host_that_a_list_forgot_is_reported() {
    let known = ["10.244.0.0/22", "10.244.4.0/24", "10.244.6.0/23", "10.244.8.0/23"];
    let rules = [
        to(&["203.0.113.0/24"], Verdict::Accept),
        to(&known, Verdict::Accept),
        rule(&[RuleMatch::new(PacketField::Family, Comparison::Begins(vec![2]))], Verdict::Drop),
    ];
    let place = (TableFamily::Ip, "filter", "forward");
    let chain = chain(place, ChainPolicy::Accept, &rules);
    let line = "nft table ip filter, chain forward: a rule drops what pods send to pods of \
                10.244.5.0/24 (host h5)";
    let back =
        "nft table ip filter, chain forward: a rule drops what other hosts' pods send to pods";
    let found = HookChains { chains: vec![chain], unreadable: Vec::new() };
    let lines: Vec<String> = plan(&traffic(), hosts(), &found)
        .problems
        .into_iter()
        .map(|problem| problem.what)
        .collect();
    assert!(lines.iter().any(|what| what.starts_with(line)), "{lines:?}");
    assert!(!lines.iter().any(|what| what.starts_with(back)), "pods send to themselves: {lines:?}");
}

#[test]
fn a_drop_of_no_hosts_pods_is_not_reported() {
    check(chain(PLAIN, ChainPolicy::Accept, &[to(&["10.244.200.0/24"], Verdict::Drop)]), &[]);
    let to_h5 = RuleMatch::address(PacketAddress::Destination, &networks(&["10.244.5.0/24"]));
    check(
        chain(PLAIN, ChainPolicy::Accept, &[rule(&[to_h5, RuleMatch::never()], Verdict::Drop)]),
        &[],
    );
}

#[test]
fn a_drop_behind_an_accept_for_the_bridge_is_not_reported() {
    let rules = [
        accept(HookDirection::In, "humanz0"),
        accept(HookDirection::Out, "humanz0"),
        to(&["10.244.5.0/24"], Verdict::Drop),
    ];
    check(chain(PLAIN, ChainPolicy::Accept, &rules), &[]);
}

#[test]
fn the_fix_is_a_command_that_finds_the_rule() {
    let check = |at, wanted: &str| {
        let wall = rule(&[], Verdict::Jump("WALL".to_owned()));
        let called = [("WALL".to_owned(), vec![to(&["10.244.5.0/24"], Verdict::Drop)])].into();
        let chain = BaseChain { called, ..chain(at, ChainPolicy::Accept, &[wall]) };
        let found = HookChains { chains: vec![chain], unreadable: Vec::new() };
        let problem = plan(&traffic(), hosts(), &found).problems.remove(0);
        assert!(problem.what.contains("a rule of chain WALL drops"), "{problem}");
        assert!(problem.fix.as_ref().unwrap().contains(wanted), "{problem}");
    };
    check(IPTABLES, "iptables -S WALL # finds it: delete it");
    check(PLAIN, "nft -a list chain inet filter WALL # finds it: delete it");
    check(FIREWALLD, "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16");
}

/// A list of thousands is no reason to evaluate for minutes.
#[test]
fn thousands_of_rules_are_evaluated_for_the_first_hosts() {
    let many: Vec<ChainRule> = (0..20_000_u32)
        .map(|at| {
            let address = IpAddr::from(Ipv4Addr::from(0x0af4_0402 + 2 * at));
            let only =
                RuleMatch::address(PacketAddress::Destination, &[AddressRange::single(address)]);
            rule(&[only], Verdict::Drop)
        })
        .collect();
    let found = HookChains {
        chains: vec![chain(PLAIN, ChainPolicy::Accept, &many)],
        unreadable: Vec::new(),
    };
    let names: Vec<String> = (0..20_000).map(|number| format!("h{number}")).collect();
    let subnet =
        |number: u32| IpNetwork::new(Ipv4Addr::from(0x0af4_0400 + 16 * number).into(), 28).unwrap();
    let hosts = names.iter().zip(0..).map(|(name, number)| (name.as_str(), subnet(number)));
    let plan = plan(&traffic(), hosts, &found);
    let what = &plan.problems[0].what;
    assert!(what.contains("10.244.4.0/28 (host h0)"), "the first are named: {what}");
}
