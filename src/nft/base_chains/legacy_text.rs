//! Pure. Rules as iptables prints them (`-S`) and takes them.

use std::collections::BTreeMap;

use crate::net::{AddressRange, Family, IfName};
use crate::nft::base_chains::chain::{BaseChain, ChainRef};
use crate::nft::base_chains::direction::HookDirection;
use crate::nft::base_chains::rule::{ChainRule, PacketAddress, RuleMatch};
use crate::nft::base_chains::xt;
use crate::nft::{ChainPolicy, Verdict};

/// The chain `name` of the table that the program listed.
pub fn chain(family: Family, name: &'static str, listed: &str) -> BaseChain {
    let lines: Vec<Vec<String>> = listed.lines().map(words).collect();
    let mut chains: BTreeMap<String, Vec<ChainRule>> = BTreeMap::new();
    let mut policy = ChainPolicy::Accept;
    for line in &lines {
        match &strs(line)[..] {
            ["-P", chain, "DROP"] if *chain == name => policy = ChainPolicy::Drop,
            ["-N", name] => drop(chains.entry((*name).to_owned()).or_default()),
            ["-A", name, rule @ ..] => {
                chains.entry((*name).to_owned()).or_default().push(chain_rule(rule));
            }
            _ => {}
        }
    }
    let rules = chains.remove(name).unwrap_or_default();
    BaseChain { place: ChainRef::Legacy(family, name), policy, rules, called: chains }
}

/// Our rule, as arguments behind the chain's name.
pub fn rule(direction: HookDirection, bridge: &IfName) -> Vec<String> {
    let (option, comment) = (direction.option(), direction.comment());
    let words = [option, bridge.as_str(), "-m", "comment", "--comment", &comment, "-j", "ACCEPT"];
    words.map(str::to_owned).to_vec()
}

/// Extensions of which all that matters is understood.
const UNDERSTOOD: [&str; 5] = ["comment", "state", "conntrack", "udp", "multiport"];

fn chain_rule(words: &[&str]) -> ChainRule {
    let mut rule =
        ChainRule { handle: None, matches: Vec::new(), verdict: Verdict::Continue, comment: None };
    let (mut negated, mut understood) = (false, true);
    let mut words = words.iter().copied();
    while let Some(option) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        let found = match option {
            "!" => {
                negated = true;
                continue;
            }
            "-j" | "-g" => {
                rule.verdict = verdict(option, value());
                break;
            }
            "-m" => {
                let name = value();
                understood = UNDERSTOOD.contains(&name) || xt::SPECIAL.contains(&name);
                (!understood).then(RuleMatch::unknown)
            }
            "--comment" => {
                rule.comment = words.next().map(str::to_owned);
                None
            }
            "-i" => Some(interface(HookDirection::In, value())),
            "-o" => Some(interface(HookDirection::Out, value())),
            "-s" => Some(address(PacketAddress::Source, value())),
            "-d" => Some(address(PacketAddress::Destination, value())),
            "-p" => protocol(value()),
            "--dport" | "--dports" => Some(ports(value())),
            "--ctstate" | "--state" => {
                let fits = value().split(',').any(|state| state == "NEW") != negated;
                negated = false;
                (!fits).then(RuleMatch::never)
            }
            // Its values are passed over.
            option if option.starts_with('-') && understood => Some(RuleMatch::never()),
            _ => None,
        };
        rule.matches.extend(found.map(|found| found.negated(negated)));
        negated = false;
    }
    rule
}

fn verdict(option: &str, target: &str) -> Verdict {
    match (option, target) {
        (_, "ACCEPT") => Verdict::Accept,
        (_, "DROP" | "REJECT") => Verdict::Drop,
        (_, "RETURN") => Verdict::Return,
        ("-g", target) => Verdict::Goto(target.to_owned()),
        (_, "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS" | "CT" | "NFQUEUE" | "AUDIT") => {
            Verdict::Continue
        }
        (_, target) => Verdict::Jump(target.to_owned()),
    }
}

/// `-i cni+` means every name that starts so.
fn interface(direction: HookDirection, name: &str) -> RuleMatch {
    match name.strip_suffix('+') {
        Some(start) => RuleMatch::interfaces(direction, start),
        None => RuleMatch::interface(direction, name),
    }
}

fn protocol(name: &str) -> Option<RuleMatch> {
    let number = match name {
        "all" => return None,
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "ipv6-icmp" | "icmpv6" => 58,
        "sctp" => 132,
        name => match name.parse() {
            Ok(number) => number,
            Err(_) => return Some(RuleMatch::never()),
        },
    };
    Some(RuleMatch::protocol(number))
}

/// `53`, `100:200`, `53,100:200`.
fn ports(text: &str) -> RuleMatch {
    let range = |text: &str| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let ranges = text.split(',').map(range).collect::<Option<Vec<_>>>();
    ranges.map_or_else(RuleMatch::unknown, |ranges| RuleMatch::ports(&ranges))
}

fn address(end: PacketAddress, network: &str) -> RuleMatch {
    match network.parse::<ipnetwork::IpNetwork>() {
        Ok(network) => RuleMatch::address(end, &[AddressRange::from(network)]),
        Err(_) => RuleMatch::unknown(),
    }
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// The words of a line; in double quotes a backslash takes the next character as it is.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().extend(letters.next()),
            ' ' if !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule_of(line: &str) -> ChainRule {
        let chain = chain(Family::V4, "FORWARD", line);
        let [rule] = &chain.rules[..] else { panic!("{line}: {:?}", chain.rules) };
        rule.clone()
    }

    fn check(line: &str, matches: &[RuleMatch], verdict: Verdict) {
        let rule = rule_of(line);
        assert_eq!((&rule.matches[..], rule.verdict), (matches, verdict), "{line}");
    }

    fn from(network: &str) -> RuleMatch {
        address(PacketAddress::Source, network)
    }

    #[test]
    fn the_policy_is_read() {
        assert_eq!(chain(Family::V4, "FORWARD", "-P FORWARD DROP\n").policy, ChainPolicy::Drop);
        assert_eq!(chain(Family::V4, "FORWARD", "-P FORWARD ACCEPT\n").policy, ChainPolicy::Accept);
        assert_eq!(chain(Family::V4, "FORWARD", "").policy, ChainPolicy::Accept);
    }

    #[test]
    fn a_rule_of_ours_is_read_back() {
        let line = r#"-A FORWARD -i humanz0 -m comment --comment "humanz: from pods" -j ACCEPT"#;
        check(line, &[RuleMatch::interface(HookDirection::In, "humanz0")], Verdict::Accept);
        assert_eq!(rule_of(line).comment.as_deref(), Some("humanz: from pods"));
        let given = rule(HookDirection::In, &"humanz0".parse().unwrap());
        assert_eq!(words(line)[2..], given);
    }

    #[test]
    fn a_drop_without_matches_has_none() {
        check("-A FORWARD -j DROP", &[], Verdict::Drop);
        let reject = "-A FORWARD -j REJECT --reject-with icmp-host-prohibited";
        check(reject, &[], Verdict::Drop);
    }

    #[test]
    fn interfaces_and_addresses_are_understood() {
        let not_cni = RuleMatch::interfaces(HookDirection::In, "cni").negated(true);
        check("-A FORWARD ! -i cni+ -j ACCEPT", &[not_cni], Verdict::Accept);
        let matches =
            [from("10.0.0.0/8"), RuleMatch::interface(HookDirection::Out, "eth0").negated(true)];
        check("-A FORWARD -s 10.0.0.0/8 ! -o eth0 -j DROP", &matches, Verdict::Drop);
    }

    #[test]
    fn the_state_of_a_new_connection_is_known() {
        let start = "-A FORWARD -m conntrack --ctstate";
        let never = [RuleMatch::never()];
        check(&format!("{start} RELATED,ESTABLISHED -j ACCEPT"), &never, Verdict::Accept);
        let jump = Verdict::Jump("KUBE-SERVICES".to_owned());
        check(&format!("{start} NEW -j KUBE-SERVICES"), &[], jump);
        check("-A FORWARD -m conntrack ! --ctstate NEW -j DROP", &never, Verdict::Drop);
    }

    #[test]
    fn protocols_and_ports_are_read_and_marks_are_never_set() {
        let line = "-A FORWARD -i humanz0 -p tcp -m tcp --dport 22 -j ACCEPT";
        let matches = [
            RuleMatch::interface(HookDirection::In, "humanz0"),
            RuleMatch::protocol(6),
            RuleMatch::ports(&[(22, 22)]),
        ];
        check(line, &matches, Verdict::Accept);
        let line = "-A FORWARD -p udp -m multiport --dports 53,8472:8473 -j ACCEPT";
        let matches = [RuleMatch::protocol(17), RuleMatch::ports(&[(53, 53), (8472, 8473)])];
        check(line, &matches, Verdict::Accept);
        let line = "-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT";
        check(line, &[RuleMatch::never()], Verdict::Accept);
    }

    #[test]
    fn other_extensions_are_unknown() {
        let line = "-A FORWARD -m set --match-set good src -j ACCEPT";
        check(line, &[RuleMatch::unknown()], Verdict::Accept);
    }

    #[test]
    fn other_chains_are_kept_by_their_names() {
        let listed = "-P FORWARD ACCEPT\n-N WALL\n-A FORWARD -j WALL\n-A WALL -j DROP";
        let chain = chain(Family::V4, "FORWARD", listed);
        assert_eq!(chain.rules[0].verdict, Verdict::Jump("WALL".to_owned()));
        assert_eq!(chain.called["WALL"][0].verdict, Verdict::Drop);
    }

    #[test]
    fn quotes_in_a_comment_do_not_break_the_line() {
        let line = r#"-A FORWARD -m comment --comment "a \"b\" -j ACCEPT" -j DROP"#;
        check(line, &[], Verdict::Drop);
        assert_eq!(rule_of(line).comment.as_deref(), Some("a \"b\" -j ACCEPT"));
    }
}
