//! Pure. Rules as iptables prints them (`-S`) and takes them.

use std::collections::BTreeMap;

use crate::net::{AddressRange, Family, IfName};
use crate::nft::base_chains::chain::{BaseChain, ChainRef, Direction};
use crate::nft::base_chains::rule::{ChainRule, Criterion, End, Match, NamePattern};
use crate::nft::{Policy, Verdict};

/// The chain `name` of the table that the program listed.
pub fn chain(family: Family, name: &'static str, listed: &str) -> BaseChain {
    let lines: Vec<Vec<String>> = listed.lines().map(words).collect();
    let mut chains: BTreeMap<String, Vec<ChainRule>> = BTreeMap::new();
    let mut policy = Policy::Accept;
    for line in &lines {
        match &strs(line)[..] {
            ["-P", chain, "DROP"] if *chain == name => policy = Policy::Drop,
            ["-N", name] => drop(chains.entry((*name).to_owned()).or_default()),
            ["-A", name, rule @ ..] => {
                chains.entry((*name).to_owned()).or_default().push(forward_rule(rule));
            }
            _ => {}
        }
    }
    let rules = chains.remove(name).unwrap_or_default();
    BaseChain { place: ChainRef::Legacy(family, name), policy, rules, called: chains }
}

/// Our rule, as arguments behind the chain's name.
pub fn rule(direction: Direction, bridge: &IfName) -> Vec<String> {
    let (option, comment) = (direction.option(), direction.comment());
    let words = [option, bridge.as_str(), "-m", "comment", "--comment", &comment, "-j", "ACCEPT"];
    words.map(str::to_owned).to_vec()
}

/// Extensions that ask for nothing, or for something that not every packet is.
const SPECIAL: [&str; 16] = [
    "comment",
    "state",
    "conntrack",
    "tcp",
    "udp",
    "sctp",
    "multiport",
    "icmp",
    "icmp6",
    "mark",
    "connmark",
    "addrtype",
    "physdev",
    "policy",
    "dscp",
    "mac",
];

fn forward_rule(words: &[&str]) -> ChainRule {
    let mut rule =
        ChainRule { handle: None, matches: Vec::new(), verdict: Verdict::Continue, comment: None };
    let (mut negated, mut understood) = (false, true);
    let mut words = words.iter().copied();
    while let Some(option) = words.next() {
        let asks = match option {
            "!" => {
                negated = true;
                continue;
            }
            "-j" | "-g" => {
                rule.verdict = verdict(option, words.next().unwrap_or_default());
                break;
            }
            "-m" => {
                understood = words.next().is_none_or(|name| SPECIAL.contains(&name));
                (!understood).then_some(Criterion::Unknown)
            }
            "--comment" => {
                rule.comment = words.next().map(str::to_owned);
                None
            }
            "-i" => {
                words.next().map(|name| Criterion::Interface(Direction::In, vec![pattern(name)]))
            }
            "-o" => {
                words.next().map(|name| Criterion::Interface(Direction::Out, vec![pattern(name)]))
            }
            "-s" => words.next().map(|network| addresses(End::Source, network)),
            "-d" => words.next().map(|network| addresses(End::Destination, network)),
            "-p" => protocol(words.next().unwrap_or_default()),
            "--dport" | "--dports" => words.next().map(ports),
            "--ctstate" | "--state" => match of_new(words.next().unwrap_or_default()) != negated {
                true => None,
                false => {
                    negated = false;
                    Some(Criterion::Special)
                }
            },
            // Its values are passed over.
            option if option.starts_with('-') && understood => Some(Criterion::Special),
            _ => None,
        };
        rule.matches.extend(asks.map(|asks| Match { asks, negated }));
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
fn pattern(name: &str) -> NamePattern {
    match name.strip_suffix('+') {
        Some(text) => NamePattern { text: text.to_owned(), open: true },
        None => NamePattern::exact(name),
    }
}

fn protocol(name: &str) -> Option<Criterion> {
    let number = match name {
        "all" => return None,
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "ipv6-icmp" | "icmpv6" => 58,
        "sctp" => 132,
        name => match name.parse() {
            Ok(number) => number,
            Err(_) => return Some(Criterion::Special),
        },
    };
    Some(Criterion::Protocol(vec![number]))
}

/// `53`, `100:200`, `53,100:200`.
fn ports(text: &str) -> Criterion {
    let range = |text: &str| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.split(',')
        .map(range)
        .collect::<Option<Vec<_>>>()
        .map_or(Criterion::Unknown, Criterion::Port)
}

fn addresses(end: End, network: &str) -> Criterion {
    match network.parse::<ipnetwork::IpNetwork>() {
        Ok(network) => Criterion::Address(end, vec![AddressRange::from(network)]),
        Err(_) => Criterion::Unknown,
    }
}

fn of_new(states: &str) -> bool {
    states.split(',').any(|state| state == "NEW")
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

    /// Checks the only rule, written as conditions (`!` for negated ones) and verdict.
    fn check(line: &str, wanted: &str, comment: Option<&str>) {
        let chain = chain(Family::V4, "FORWARD", line);
        let [rule] = &chain.rules[..] else { panic!("{line}: {:?}", chain.rules) };
        let conditions = rule.matches.iter().map(|Match { asks, negated }| {
            let not = if *negated { "!" } else { "" };
            match asks {
                Criterion::Interface(direction, names) => {
                    let more = if names[0].open { "+" } else { "" };
                    format!("{not}{} {}{more}, ", direction.option(), names[0].text)
                }
                Criterion::Address(end, ranges) => format!("{not}{end:?} {}, ", ranges[0]),
                asks => format!("{not}{asks:?}, "),
            }
        });
        let found = format!("{}{:?}", conditions.collect::<String>(), rule.verdict);
        assert_eq!(found, wanted, "{line}");
        assert_eq!(rule.comment.as_deref(), comment, "{line}");
    }

    #[test]
    fn the_policy_is_read() {
        assert_eq!(chain(Family::V4, "FORWARD", "-P FORWARD DROP\n").policy, Policy::Drop);
        assert_eq!(chain(Family::V4, "FORWARD", "-P FORWARD ACCEPT\n").policy, Policy::Accept);
        assert_eq!(chain(Family::V4, "FORWARD", "").policy, Policy::Accept);
    }

    #[test]
    fn a_rule_of_ours_is_read_back() {
        let line = r#"-A FORWARD -i humanz0 -m comment --comment "humanz: from pods" -j ACCEPT"#;
        check(line, "-i humanz0, Accept", Some("humanz: from pods"));
        let given = rule(Direction::In, &"humanz0".parse().unwrap());
        assert_eq!(words(line)[2..], given);
    }

    #[test]
    fn a_drop_without_condition_has_none() {
        check("-A FORWARD -j DROP", "Drop", None);
        check("-A FORWARD -j REJECT --reject-with icmp-host-prohibited", "Drop", None);
    }

    #[test]
    fn interfaces_and_addresses_are_understood() {
        check("-A FORWARD ! -i cni+ -j ACCEPT", "!-i cni+, Accept", None);
        check(
            "-A FORWARD -s 10.0.0.0/8 ! -o eth0 -j DROP",
            "Source 10.0.0.0/8, !-o eth0, Drop",
            None,
        );
    }

    #[test]
    fn the_state_of_a_new_connection_is_known() {
        let start = "-A FORWARD -m conntrack --ctstate";
        check(&format!("{start} RELATED,ESTABLISHED -j ACCEPT"), "Special, Accept", None);
        check(&format!("{start} NEW -j KUBE-SERVICES"), "Jump(\"KUBE-SERVICES\")", None);
        check("-A FORWARD -m conntrack ! --ctstate NEW -j DROP", "Special, Drop", None);
    }

    #[test]
    fn protocols_and_ports_are_read_and_marks_are_special() {
        let line = "-A FORWARD -i humanz0 -p tcp -m tcp --dport 22 -j ACCEPT";
        check(line, "-i humanz0, Protocol([6]), Port([(22, 22)]), Accept", None);
        let line = "-A INPUT -p udp -m multiport --dports 53,8472:8473 -j ACCEPT";
        check(
            &line.replace("INPUT", "FORWARD"),
            "Protocol([17]), Port([(53, 53), (8472, 8473)]), Accept",
            None,
        );
        check("-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT", "Special, Accept", None);
    }

    #[test]
    fn other_extensions_are_unknown() {
        let line = "-A FORWARD -m set --match-set good src -j ACCEPT";
        check(line, "Unknown, Accept", None);
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
        check(line, "Drop", Some("a \"b\" -j ACCEPT"));
    }
}
