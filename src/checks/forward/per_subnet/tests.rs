use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::forward::per_subnet::*;
use crate::checks::forward::plan;
use crate::checks::forward::tests::{FIREWALLD, IPTABLES, PLAIN, accept, chain, rule, traffic};
use crate::nft::base_chains::{ChainRule, Criterion, FoundChains};
use crate::nft::{Policy, Verdict};

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
    rule(&[Criterion::Address(End::Destination, networks(list))], verdict)
}

fn from(list: &[&str], verdict: Verdict) -> ChainRule {
    rule(&[Criterion::Address(End::Source, networks(list))], verdict)
}

/// The obstacles of a chain, up to what to do.
fn check(chain: BaseChain, wanted: &[&str]) {
    let found = FoundChains { chains: vec![chain], unreadable: Vec::new() };
    let plan = plan(&traffic(), hosts(), &found);
    assert_eq!(plan.edits, [], "nothing is changed for it");
    let lines: Vec<String> = plan.blocking_rules.iter().map(ToString::to_string).collect();
    let told: Vec<&str> = lines.iter().map(|line| line.rsplit_once("; ").unwrap().0).collect();
    assert_eq!(told, wanted);
}

#[test]
fn a_drop_for_the_pods_of_one_host_names_that_host() {
    let rules = [to(&["10.244.5.0/24"], Verdict::Drop)];
    let line =
        "iptables chain FORWARD: a rule drops what pods send to pods of 10.244.5.0/24 (host h5)";
    check(chain(IPTABLES, Policy::Accept, &rules), &[line]);
    let rules = [from(&["fd00:10:0:5::/64"], Verdict::Drop)];
    let line = "nft table inet filter, chain forward: a rule drops what pods of fd00:10:0:5::/64 \
                (host h5) send to pods";
    check(chain(PLAIN, Policy::Accept, &rules), &[line]);
}

#[test]
fn both_ways_are_told_at_once_and_two_hosts_apart() {
    let rules = [to(&["10.244.5.0/24"], Verdict::Drop), from(&["10.244.5.0/24"], Verdict::Drop)];
    let line = "nft table inet filter, chain forward: a rule drops traffic with pods of \
                10.244.5.0/24 (host h5)";
    check(chain(PLAIN, Policy::Accept, &rules), &[line]);
    let rules = [to(&["10.244.5.0/24"], Verdict::Drop), from(&["10.244.6.0/24"], Verdict::Drop)];
    let at = "nft table inet filter, chain forward: a rule drops what pods";
    let lines = [
        &format!("{at} of 10.244.6.0/24 (host h6) send to pods"),
        &format!("{at} send to pods of 10.244.5.0/24 (host h5)"),
    ];
    check(chain(PLAIN, Policy::Accept, &rules), &lines.map(String::as_str));
}

#[test]
fn a_few_hosts_are_named_and_the_rest_counted() {
    let rules = [to(&["10.244.4.0/22", "10.244.8.0/23"], Verdict::Drop)];
    let line = "nft table inet filter, chain forward: a rule drops what pods send to pods of \
                10.244.4.0/24 (host h4), 10.244.5.0/24 (host h5), 10.244.6.0/24 (host h6) and 3 more";
    check(chain(PLAIN, Policy::Accept, &rules), &[line]);
}

#[test]
fn a_host_with_both_families_is_one_host() {
    let both = ["10.244.5.0/24", "fd00:10:0:5::/64"];
    let at = "nft table inet filter, chain forward: a rule drops what pods send to pods of";
    let line = format!("{at} 10.244.5.0/24 and fd00:10:0:5::/64 (host h5)");
    check(chain(PLAIN, Policy::Accept, &[to(&both, Verdict::Drop)]), &[&line]);
    let most = ["10.244.4.0/22", "10.244.8.0/23", "fd00:10:0:4::/62", "fd00:10:0:8::/63"];
    let each = |n: u8| format!("10.244.{n}.0/24 and fd00:10:0:{n}::/64 (host h{n})");
    let line = format!("{at} {}, {}, {} and 3 more", each(4), each(5), each(6));
    check(chain(PLAIN, Policy::Accept, &[to(&most, Verdict::Drop)]), &[&line]);
}

#[test]
fn each_chain_is_named_with_what_it_drops() {
    let jump = |name: &str| rule(&[], Verdict::Jump(name.to_owned()));
    let drops = |name: &str, rules: &[ChainRule]| (name.to_owned(), rules.to_vec());
    let called = [
        drops("A", &[to(&["10.244.6.0/24"], Verdict::Drop)]),
        drops("B", &[to(&["10.244.5.0/24"], Verdict::Drop)]),
        drops("C", &[from(&["10.244.5.0/24"], Verdict::Drop)]),
    ];
    let rules = [jump("A"), jump("B"), jump("C")];
    let chain = BaseChain { called: called.into(), ..chain(PLAIN, Policy::Accept, &rules) };
    let at = "nft table inet filter, chain forward: a rule of chain";
    let lines = [
        &format!("{at} C drops what pods of 10.244.5.0/24 (host h5) send to pods"),
        &format!("{at} A drops what pods send to pods of 10.244.6.0/24 (host h6)"),
        &format!("{at} B drops what pods send to pods of 10.244.5.0/24 (host h5)"),
    ];
    check(chain, &lines.map(String::as_str));
}

#[test]
fn a_drop_for_part_of_a_hosts_pods_names_the_part() {
    let rules = [to(&["10.244.5.7/32"], Verdict::Drop)];
    let line = "nft table inet filter, chain forward: a rule drops what pods send to pods of \
                10.244.5.7 (host h5)";
    check(chain(PLAIN, Policy::Accept, &rules), &[line]);
}

/// However a chain tells parts of a subnet from each other, one is told if all are stopped.
#[test]
fn parts_of_a_subnet_that_are_stopped_alike_are_one() {
    let rules = [
        to(&["10.244.5.0/25"], Verdict::Continue),
        to(&["10.244.5.64/26"], Verdict::Drop),
        to(&["10.244.5.0/24"], Verdict::Drop),
    ];
    let line = "nft table inet filter, chain forward: a rule drops what pods send to pods of \
                10.244.5.0/24 (host h5)";
    check(chain(PLAIN, Policy::Accept, &rules), &[line]);
}

#[test]
fn a_host_that_a_list_forgot_is_named() {
    let known = ["10.244.0.0/22", "10.244.4.0/24", "10.244.6.0/23", "10.244.8.0/23"];
    let rules = [
        to(&["203.0.113.0/24"], Verdict::Accept),
        to(&known, Verdict::Accept),
        rule(&[Criterion::Family(Family::V4)], Verdict::Drop),
    ];
    let place = (crate::nft::TableFamily::Ip, "filter", "forward");
    let chain = chain(place, Policy::Accept, &rules);
    let line = "nft table ip filter, chain forward: a rule drops what pods send to pods of \
                10.244.5.0/24 (host h5)";
    let back =
        "nft table ip filter, chain forward: a rule drops what other hosts' pods send to pods";
    let found = FoundChains { chains: vec![chain], unreadable: Vec::new() };
    let lines: Vec<String> =
        plan(&traffic(), hosts(), &found).blocking_rules.iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|told| told.starts_with(line)), "{lines:?}");
    assert!(!lines.iter().any(|told| told.starts_with(back)), "pods send to themselves: {lines:?}");
}

#[test]
fn what_is_dropped_of_nobody_is_not_told() {
    check(chain(PLAIN, Policy::Accept, &[to(&["10.244.200.0/24"], Verdict::Drop)]), &[]);
    let special = Criterion::Address(End::Destination, networks(&["10.244.5.0/24"]));
    check(
        chain(PLAIN, Policy::Accept, &[rule(&[special, Criterion::Special], Verdict::Drop)]),
        &[],
    );
}

#[test]
fn a_drop_behind_an_accept_for_the_bridge_is_not_told() {
    let rules = [
        accept(Direction::In, "humanz0"),
        accept(Direction::Out, "humanz0"),
        to(&["10.244.5.0/24"], Verdict::Drop),
    ];
    check(chain(PLAIN, Policy::Accept, &rules), &[]);
}

#[test]
fn what_to_do_is_a_command_that_finds_the_rule() {
    let fix = |at, wanted: &str| {
        let wall = rule(&[], Verdict::Jump("WALL".to_owned()));
        let called = [("WALL".to_owned(), vec![to(&["10.244.5.0/24"], Verdict::Drop)])].into();
        let chain = BaseChain { called, ..chain(at, Policy::Accept, &[wall]) };
        let found = FoundChains { chains: vec![chain], unreadable: Vec::new() };
        let line = plan(&traffic(), hosts(), &found).blocking_rules[0].to_string();
        assert_eq!(line.matches(';').count(), 1, "{line}");
        assert!(line.contains("a rule of chain WALL drops"), "{line}");
        assert!(line.rsplit_once("; ").unwrap().1.contains(wanted), "{line}");
    };
    fix(IPTABLES, "find it with `iptables -S WALL` and delete it");
    fix(PLAIN, "find it with `nft -a list chain inet filter WALL` and delete it");
    fix(FIREWALLD, "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16");
}

/// As many questions as there are kinds of hosts, not as there are hosts.
#[test]
fn a_range_is_asked_about_once_unless_a_rule_divides_it() {
    let packet = |traffic: &Traffic| {
        let own = traffic.subnets.v4.unwrap();
        fate_of_all(
            &chain(PLAIN, Policy::Accept, &[to(&["10.244.5.0/24"], Verdict::Drop)]),
            &of_pod(traffic, own, Direction::In, ("eth0", "10.244.0.2".parse().unwrap())),
            (End::Destination, networks(&["10.244.0.0/16"])[0]),
        )
        .map(|_| ())
    };
    let at: IpAddr = "10.244.5.0".parse().unwrap();
    assert_eq!(packet(&traffic()), Err(at));
}

/// A list of thousands is no reason to look for minutes.
#[test]
fn thousands_of_rules_are_judged_in_part() {
    let many: Vec<ChainRule> = (0..20_000_u32)
        .map(|at| {
            let address = IpAddr::from(std::net::Ipv4Addr::from(0x0af4_0400 + 2 * at));
            let range = vec![AddressRange::single(address)];
            rule(&[Criterion::Address(End::Destination, range)], Verdict::Drop)
        })
        .collect();
    let found =
        FoundChains { chains: vec![chain(PLAIN, Policy::Accept, &many)], unreadable: Vec::new() };
    let plan = plan(&traffic(), hosts(), &found);
    let line = plan.blocking_rules[0].to_string();
    assert!(line.contains("10.244.4.0 (host h4)"), "the first are told: {line}");
}
