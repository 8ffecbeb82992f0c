use crate::checks::forward::evaluate::*;
use crate::nft::base_chains::{ChainRef, NamePattern};

/// Rules as a person writes them: conditions and a verdict, `not` before a condition that must not
/// hold.
fn rules(lines: &[&str]) -> Vec<ChainRule> {
    lines.iter().map(|line| rule(line)).collect()
}

fn rule(line: &str) -> ChainRule {
    let mut words = line.split(' ').peekable();
    let mut conditions = Vec::new();
    loop {
        let negated = words.next_if_eq(&"not").is_some();
        let word = words.next().unwrap();
        let mut argument = || words.next().unwrap().to_owned();
        let asks = match word {
            "iif" => Criterion::Interface(Direction::In, vec![NamePattern::exact(&argument())]),
            "oif" => Criterion::Interface(Direction::Out, vec![NamePattern::exact(&argument())]),
            "from" => Criterion::Address(End::Source, vec![network(&argument())]),
            "to" => Criterion::Address(End::Destination, vec![network(&argument())]),
            "v6" => Criterion::Family(Family::V6),
            "tcp" => Criterion::Protocol(vec![6]),
            "udp" => Criterion::Protocol(vec![17]),
            "port" => {
                let port = argument().parse().unwrap();
                Criterion::Port(vec![(port, port)])
            }
            "special" => Criterion::Special,
            "unknown" => Criterion::Unknown,
            word => {
                let verdict = match word {
                    "accept" => Verdict::Accept,
                    "drop" => Verdict::Drop,
                    "return" => Verdict::Return,
                    "count" => Verdict::Continue,
                    "jump" => Verdict::Jump(argument()),
                    "goto" => Verdict::Goto(argument()),
                    word => panic!("{word}"),
                };
                return ChainRule { handle: None, matches: conditions, verdict, comment: None };
            }
        };
        conditions.push(Match { asks, negated });
    }
}

fn network(text: &str) -> crate::net::AddressRange {
    text.parse::<ipnetwork::IpNetwork>().unwrap().into()
}

/// A packet of a pod to the outside, in a chain with these rules and a chain `c` with those.
fn check(policy: Policy, lines: &[&str], called: &[&str], wanted: ChainVerdict) {
    let chain = BaseChain {
        place: ChainRef::Legacy(Family::V4, "FORWARD"),
        policy,
        rules: rules(lines),
        called: [("c".to_owned(), rules(called))].into(),
    };
    let packet = Packet {
        input: "humanz0",
        output: "eth0",
        source: "10.244.3.2".parse().unwrap(),
        destination: "203.0.113.1".parse().unwrap(),
        transport: None,
    };
    assert_eq!(evaluate(&chain, "f", &packet), wanted, "{lines:?}");
}

fn stopped(chain: &str, aimed: bool) -> ChainVerdict {
    ChainVerdict::DroppedIn { chain: chain.to_owned(), aimed }
}

#[test]
fn the_first_rule_about_the_packet_decides() {
    check(
        Policy::Accept,
        &["iif eth1 drop", "iif humanz0 accept", "drop"],
        &[],
        ChainVerdict::Accepts,
    );
    check(Policy::Accept, &["count", "drop", "accept"], &[], stopped("f", false));
    check(Policy::Drop, &["oif humanz0 accept"], &[], ChainVerdict::DroppedByPolicy);
}

#[test]
fn every_condition_must_hold() {
    check(Policy::Drop, &["iif humanz0 to 10.0.0.0/8 accept"], &[], ChainVerdict::DroppedByPolicy);
    check(Policy::Drop, &["iif humanz0 not to 10.0.0.0/8 accept"], &[], ChainVerdict::Accepts);
    check(Policy::Drop, &["not v6 from 10.244.0.0/16 accept"], &[], ChainVerdict::Accepts);
}

#[test]
fn what_is_for_special_packets_is_not_about_it() {
    check(Policy::Drop, &["special accept"], &[], ChainVerdict::DroppedByPolicy);
    check(Policy::Accept, &["iif humanz0 special drop"], &[], ChainVerdict::Accepts);
    check(Policy::Accept, &["not special drop"], &[], stopped("f", false));
}

#[test]
fn a_port_matters_to_a_packet_that_goes_to_one() {
    let rules = ["tcp drop", "udp port 53 drop", "udp port 10400 accept"];
    let chain = BaseChain {
        place: ChainRef::Legacy(Family::V4, "INPUT"),
        policy: Policy::Drop,
        rules: crate::checks::forward::evaluate::tests::rules(&rules),
        called: Default::default(),
    };
    let to = |port: Option<u16>| Packet {
        input: "eth0",
        output: "",
        source: "192.0.2.7".parse().unwrap(),
        destination: "192.0.2.1".parse().unwrap(),
        transport: port.map(|port| (UDP, port)),
    };
    assert_eq!(evaluate(&chain, "INPUT", &to(Some(10400))), ChainVerdict::Accepts);
    assert_eq!(evaluate(&chain, "INPUT", &to(Some(8472))), ChainVerdict::DroppedByPolicy);
    assert_eq!(evaluate(&chain, "INPUT", &to(Some(53))), stopped("INPUT", false));
    assert_eq!(evaluate(&chain, "INPUT", &to(None)), ChainVerdict::DroppedByPolicy);
}

#[test]
fn a_drop_for_interfaces_or_addresses_is_aimed() {
    check(Policy::Accept, &["iif humanz0 drop"], &[], stopped("f", true));
    check(Policy::Accept, &["not iif lan0 drop"], &[], stopped("f", true));
    check(Policy::Accept, &["oif eth0 jump c"], &["drop"], stopped("c", true));
}

#[test]
fn called_chains_come_back_or_do_not() {
    check(Policy::Drop, &["jump c", "accept"], &["special drop"], ChainVerdict::Accepts);
    check(Policy::Drop, &["jump c", "accept"], &["return", "drop"], ChainVerdict::Accepts);
    check(Policy::Drop, &["goto c", "accept"], &["special drop"], ChainVerdict::DroppedByPolicy);
    check(Policy::Drop, &["goto c"], &["accept"], ChainVerdict::Accepts);
}

#[test]
fn a_rule_that_is_not_understood_may_accept_but_is_not_feared() {
    check(Policy::Drop, &["unknown accept"], &[], ChainVerdict::MayDrop);
    check(Policy::Drop, &["unknown jump c"], &["accept"], ChainVerdict::MayDrop);
    check(Policy::Drop, &["unknown jump c"], &["drop"], ChainVerdict::DroppedByPolicy);
    check(Policy::Accept, &["unknown drop"], &[], ChainVerdict::Accepts);
    check(Policy::Drop, &["jump nowhere"], &[], ChainVerdict::MayDrop);
}

#[test]
fn chains_that_call_each_other_come_to_an_end() {
    check(Policy::Accept, &["jump c"], &["jump c"], ChainVerdict::Accepts);
    // Ten times ten times …, sixteen levels deep.
    check(Policy::Drop, &["jump c"], &["jump c"; 10], ChainVerdict::MayDrop);
}
