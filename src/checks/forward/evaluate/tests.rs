use crate::checks::forward::evaluate::*;
use crate::net::Family;
use crate::nft::base_chains::{ChainRef, Comparison, HookDirection, PacketAddress, PacketField};

/// Rules as a person writes them: matches and a verdict, `not` before a match that must not hold.
pub fn rules(lines: &[&str]) -> Vec<ChainRule> {
    lines.iter().map(|line| rule(line)).collect()
}

fn rule(line: &str) -> ChainRule {
    let mut words = line.split(' ').peekable();
    let mut matches = Vec::new();
    loop {
        let negated = words.next_if_eq(&"not").is_some();
        let word = words.next().unwrap();
        let mut argument = || words.next().unwrap().to_owned();
        let found = match word {
            "iif" => RuleMatch::interface(HookDirection::In, &argument()),
            "oif" => RuleMatch::interface(HookDirection::Out, &argument()),
            "from" => RuleMatch::address(PacketAddress::Source, &[network(&argument())]),
            "to" => RuleMatch::address(PacketAddress::Destination, &[network(&argument())]),
            "v6" => RuleMatch::new(PacketField::Family, Comparison::Begins(vec![10])),
            "tcp" => RuleMatch::protocol(6),
            "udp" => RuleMatch::protocol(17),
            "port" => {
                let port = argument().parse().unwrap();
                RuleMatch::ports(&[(port, port)])
            }
            "special" => RuleMatch::never(),
            "unknown" => RuleMatch::unknown(),
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
                return ChainRule { handle: None, matches, verdict, comment: None };
            }
        };
        matches.push(found.negated(negated));
    }
}

fn network(text: &str) -> crate::net::AddressRange {
    text.parse::<ipnetwork::IpNetwork>().unwrap().into()
}

/// A packet of a pod to the outside, in a chain with these rules and a chain `c` with those.
fn check(policy: ChainPolicy, lines: &[&str], called: &[&str], wanted: ChainVerdict) {
    let chain = BaseChain {
        place: ChainRef::Legacy(Family::V4, "FORWARD"),
        policy,
        rules: rules(lines),
        called: [("c".to_owned(), rules(called))].into(),
    };
    let packet = FirstPacket {
        input: "humanz0",
        output: "eth0",
        source: "10.244.3.2".parse().unwrap(),
        destination: "203.0.113.1".parse().unwrap(),
        transport: None,
    };
    assert_eq!(evaluate(&chain, &packet), wanted, "{lines:?}");
}

fn dropped(chain: &str, targeted: bool) -> ChainVerdict {
    ChainVerdict::DroppedIn { chain: chain.to_owned(), targeted }
}

#[test]
fn the_first_rule_about_the_packet_decides() {
    check(
        ChainPolicy::Accept,
        &["iif eth1 drop", "iif humanz0 accept", "drop"],
        &[],
        ChainVerdict::Accepts,
    );
    check(ChainPolicy::Accept, &["count", "drop", "accept"], &[], dropped("FORWARD", false));
    check(ChainPolicy::Drop, &["oif humanz0 accept"], &[], ChainVerdict::DroppedByPolicy);
}

#[test]
fn every_condition_must_hold() {
    check(
        ChainPolicy::Drop,
        &["iif humanz0 to 10.0.0.0/8 accept"],
        &[],
        ChainVerdict::DroppedByPolicy,
    );
    check(ChainPolicy::Drop, &["iif humanz0 not to 10.0.0.0/8 accept"], &[], ChainVerdict::Accepts);
    check(ChainPolicy::Drop, &["not v6 from 10.244.0.0/16 accept"], &[], ChainVerdict::Accepts);
}

#[test]
fn a_rule_for_special_packets_does_not_concern_it() {
    check(ChainPolicy::Drop, &["special accept"], &[], ChainVerdict::DroppedByPolicy);
    check(ChainPolicy::Accept, &["iif humanz0 special drop"], &[], ChainVerdict::Accepts);
    check(ChainPolicy::Accept, &["not special drop"], &[], dropped("FORWARD", false));
}

#[test]
fn a_port_matters_to_a_packet_that_goes_to_one() {
    let rules = ["tcp drop", "udp port 53 drop", "udp port 10400 accept"];
    let chain = BaseChain {
        place: ChainRef::Legacy(Family::V4, "INPUT"),
        policy: ChainPolicy::Drop,
        rules: crate::checks::forward::evaluate::tests::rules(&rules),
        called: Default::default(),
    };
    let to = |port: Option<u16>| FirstPacket {
        input: "eth0",
        output: "",
        source: "192.0.2.7".parse().unwrap(),
        destination: "192.0.2.1".parse().unwrap(),
        transport: port.map(|port| (UDP, port)),
    };
    assert_eq!(evaluate(&chain, &to(Some(10400))), ChainVerdict::Accepts);
    assert_eq!(evaluate(&chain, &to(Some(8472))), ChainVerdict::DroppedByPolicy);
    assert_eq!(evaluate(&chain, &to(Some(53))), dropped("INPUT", false));
    assert_eq!(evaluate(&chain, &to(None)), ChainVerdict::DroppedByPolicy);
}

#[test]
fn a_drop_for_interfaces_or_addresses_is_targeted() {
    check(ChainPolicy::Accept, &["iif humanz0 drop"], &[], dropped("FORWARD", true));
    check(ChainPolicy::Accept, &["not iif lan0 drop"], &[], dropped("FORWARD", true));
    check(ChainPolicy::Accept, &["oif eth0 jump c"], &["drop"], dropped("c", true));
}

#[test]
fn called_chains_come_back_or_do_not() {
    check(ChainPolicy::Drop, &["jump c", "accept"], &["special drop"], ChainVerdict::Accepts);
    check(ChainPolicy::Drop, &["jump c", "accept"], &["return", "drop"], ChainVerdict::Accepts);
    check(
        ChainPolicy::Drop,
        &["goto c", "accept"],
        &["special drop"],
        ChainVerdict::DroppedByPolicy,
    );
    check(ChainPolicy::Drop, &["goto c"], &["accept"], ChainVerdict::Accepts);
}

#[test]
fn a_rule_that_is_not_understood_may_accept_and_its_drop_is_ignored() {
    check(ChainPolicy::Drop, &["unknown accept"], &[], ChainVerdict::MayDrop);
    check(ChainPolicy::Drop, &["unknown jump c"], &["accept"], ChainVerdict::MayDrop);
    check(ChainPolicy::Drop, &["unknown jump c"], &["drop"], ChainVerdict::DroppedByPolicy);
    check(ChainPolicy::Accept, &["unknown drop"], &[], ChainVerdict::Accepts);
    check(ChainPolicy::Drop, &["jump nowhere"], &[], ChainVerdict::MayDrop);
}

#[test]
fn chains_that_call_each_other_come_to_an_end() {
    check(ChainPolicy::Accept, &["jump c"], &["jump c"], ChainVerdict::Accepts);
    // Ten times ten times …, sixteen levels deep.
    check(ChainPolicy::Drop, &["jump c"], &["jump c"; 10], ChainVerdict::MayDrop);
}
