//! Pure. Rules as iptables prints them (`-S FORWARD`) and takes them.

use std::collections::BTreeSet;

use super::chain::{Direction, ForwardChain, ForwardRule, Place, Sense};
use crate::linux::nft::Policy;
use crate::net::{Family, IfName};

/// The chain that the program listed.
pub fn chain(family: Family, listed: &str) -> ForwardChain {
    let lines: Vec<Vec<String>> = listed.lines().map(words).collect();
    let policy = lines.iter().find_map(|line| match &strs(line)[..] {
        ["-P", "FORWARD", policy] => Some(*policy == "DROP"),
        _ => None,
    });
    let policy = if policy == Some(true) { Policy::Drop } else { Policy::Accept };
    let rules = lines.iter().filter_map(|line| match &strs(line)[..] {
        ["-A", "FORWARD", rule @ ..] => Some(forward_rule(rule)),
        _ => None,
    });
    let rules = rules.collect();
    ForwardChain { place: Place::Legacy(family), policy, rules, interfaces: BTreeSet::new() }
}

/// Our rule, as arguments behind the chain's name.
pub fn rule(direction: Direction, bridge: &IfName) -> Vec<String> {
    let (option, comment) = (direction.option(), direction.comment());
    let words = [option, bridge.as_str(), "-m", "comment", "--comment", &comment, "-j", "ACCEPT"];
    words.map(str::to_owned).to_vec()
}

fn forward_rule(words: &[&str]) -> ForwardRule {
    let at = words.windows(3).position(|three| matches!(three, ["-m", "comment", "--comment"]));
    let comment = at.and_then(|at| words.get(at + 3)).map(|text| (*text).to_owned());
    let mut rest = words.to_vec();
    if let Some(at) = at {
        rest.drain(at..words.len().min(at + 4));
    }
    let sense = match rest[..] {
        ["-i", name, "-j", "ACCEPT"] => accepts(Direction::In, name),
        ["-o", name, "-j", "ACCEPT"] => accepts(Direction::Out, name),
        ["-j", "DROP"] | ["-j", "REJECT", ..] => Sense::StopsAll,
        _ => Sense::Other,
    };
    ForwardRule { handle: None, sense, comment }
}

/// `-i cni+` means every name that starts so.
fn accepts(direction: Direction, name: &str) -> Sense {
    match name.ends_with('+') {
        true => Sense::Other,
        false => Sense::Accepts(direction, name.to_owned()),
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

    fn check(line: &str, sense: Sense, comment: Option<&str>) {
        let chain = chain(Family::V4, line);
        let wanted = ForwardRule { handle: None, sense, comment: comment.map(str::to_owned) };
        assert_eq!(chain.rules, [wanted], "{line}");
    }

    fn accepts(direction: Direction) -> Sense {
        Sense::Accepts(direction, "humanz0".to_owned())
    }

    #[test]
    fn the_policy_is_read() {
        assert_eq!(chain(Family::V4, "-P FORWARD DROP\n").policy, Policy::Drop);
        assert_eq!(chain(Family::V4, "-P FORWARD ACCEPT\n").policy, Policy::Accept);
        assert_eq!(chain(Family::V4, "").policy, Policy::Accept);
    }

    #[test]
    fn a_rule_of_ours_is_read_back() {
        let line = r#"-A FORWARD -i humanz0 -m comment --comment "humanz: from pods" -j ACCEPT"#;
        check(line, accepts(Direction::In), Some("humanz: from pods"));
        let given = rule(Direction::In, &"humanz0".parse().unwrap());
        assert_eq!(words(line)[2..], given);
    }

    #[test]
    fn a_rule_made_by_hand_counts_too() {
        check("-A FORWARD -o humanz0 -j ACCEPT", accepts(Direction::Out), None);
        check(
            "-A FORWARD -o humanz0 -m comment --comment mine -j ACCEPT",
            accepts(Direction::Out),
            Some("mine"),
        );
    }

    #[test]
    fn a_drop_without_condition_stops_all() {
        check("-A FORWARD -j DROP", Sense::StopsAll, None);
        check("-A FORWARD -j REJECT --reject-with icmp-host-prohibited", Sense::StopsAll, None);
    }

    #[test]
    fn conditions_make_it_something_else() {
        for line in [
            "-A FORWARD -i humanz0 -p tcp -j ACCEPT",
            "-A FORWARD ! -i humanz0 -j ACCEPT",
            "-A FORWARD -i humanz+ -j ACCEPT",
            "-A FORWARD -i eth0 -j DROP",
            "-A FORWARD -j DOCKER-USER",
        ] {
            check(line, Sense::Other, None);
        }
    }

    #[test]
    fn quotes_in_a_comment_do_not_break_the_line() {
        let line = r#"-A FORWARD -m comment --comment "a \"b\" -j ACCEPT" -j DROP"#;
        check(line, Sense::StopsAll, Some("a \"b\" -j ACCEPT"));
    }
}
