//! Pure. Whether other people's firewalls let pod traffic through, and what to do if not.
//!
//! A packet must pass every base chain at a hook, so an `accept` in our own table does not help
//! against a drop in another (Docker sets the policy of iptables' FORWARD to DROP). Where the
//! chain is iptables' own, our rules go to its head; everything else is its owner's to change.

use std::fmt;

use crate::linux::forward::{
    Action, Direction, Edit, ForwardChain, ForwardError, ForwardRule, FoundForward, MARK, Place,
    Sense, Stop,
};
use crate::linux::nft::ChainPlace;
use crate::net::IfName;
use crate::plan::{Describe, Line};

/// What lets pod traffic through.
#[derive(Debug, Default)]
pub struct ForwardPlan {
    /// Rules to insert into iptables' chains, and useless ones to remove before.
    pub edits: Vec<Edit>,
    /// What somebody else must change.
    pub obstacles: Vec<Obstacle>,
}

/// A chain that stops pod traffic, or may do so, and that humanz does not touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The chain.
    pub place: Place,
    /// The bridge whose traffic it stops.
    pub bridge: IfName,
    /// Why nothing was done.
    pub reason: Reason,
}

/// Why an obstacle is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its policy drops, and no rule of its table names the bridge.
    Policy,
    /// One of its rules drops everything, and no rule of its table names the bridge.
    Rule,
    /// It cannot be read: the error, whole.
    Unreadable(String),
}

/// What to do so that packets from and to `bridge` pass the chains found.
///
/// Nothing to do for a chain that stops nothing, and for one that accepts the bridge before it
/// stops anything, whoever made the rule. A drop that depends on something (a port, an address) is
/// its owner's will.
pub fn plan(bridge: &IfName, found: &FoundForward) -> ForwardPlan {
    let mut plan = ForwardPlan::default();
    for chain in &found.chains {
        let Some(stop) = chain.stop() else { continue };
        if chain.place.is_iptables() {
            for direction in Direction::BOTH {
                plan.edits.extend(edits(chain, stop, direction, bridge));
            }
        } else if !chain.interfaces.contains(bridge.as_str()) {
            let reason = match stop {
                Stop::Policy => Reason::Policy,
                Stop::Rule(_) => Reason::Rule,
            };
            let (place, bridge) = (chain.place.clone(), bridge.clone());
            plan.obstacles.push(Obstacle { place, bridge, reason });
        }
    }
    plan.obstacles.extend(found.unreadable.iter().map(|(place, error)| Obstacle {
        place: place.clone(),
        bridge: bridge.clone(),
        reason: Reason::Unreadable(whole(error)),
    }));
    plan
}

/// Takes every rule of ours for `bridge` out again.
pub fn removals(bridge: &IfName, found: &FoundForward) -> Vec<Edit> {
    let both = |chain| {
        Direction::BOTH.into_iter().flat_map(move |direction| remove(chain, direction, bridge))
    };
    found.chains.iter().filter(|chain| chain.place.is_iptables()).flat_map(both).collect()
}

fn edits(chain: &ForwardChain, stop: Stop, direction: Direction, bridge: &IfName) -> Vec<Edit> {
    let before = match stop {
        Stop::Rule(place) => &chain.rules[..place],
        Stop::Policy => &chain.rules[..],
    };
    if before.iter().any(|rule| accepts(rule, direction, bridge)) {
        return Vec::new();
    }
    let mut edits = remove(chain, direction, bridge);
    let place = chain.place.clone();
    edits.push(Edit { place, action: Action::Insert, direction, bridge: bridge.clone() });
    edits
}

fn remove(chain: &ForwardChain, direction: Direction, bridge: &IfName) -> Vec<Edit> {
    let ours = chain.rules.iter().filter(|rule| {
        let marked = rule.comment.as_ref().is_some_and(|comment| comment.starts_with(MARK));
        marked && accepts(rule, direction, bridge)
    });
    let removal = |rule: &ForwardRule| Edit {
        place: chain.place.clone(),
        action: Action::Remove(rule.handle),
        direction,
        bridge: bridge.clone(),
    };
    ours.map(removal).collect()
}

fn accepts(rule: &ForwardRule, direction: Direction, bridge: &IfName) -> bool {
    matches!(&rule.sense, Sense::Accepts(way, name) if *way == direction && name == bridge.as_str())
}

/// The error with its sources.
fn whole(error: &ForwardError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

impl Describe for Edit {
    fn line(&self) -> Line {
        match self.action {
            Action::Insert => Line::added(self.rule()),
            Action::Remove(_) => Line::removed(self.rule()),
        }
    }
}

impl fmt::Display for Obstacle {
    /// One line: which chain stops pod traffic, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Obstacle { place, bridge, reason } = self;
        match reason {
            Reason::Policy => write!(f, "{place}: its policy drops pod traffic; ")?,
            Reason::Rule => write!(f, "{place}: a rule drops all pod traffic; ")?,
            Reason::Unreadable(error) => {
                return write!(f, "{place}: may drop pod traffic and cannot be read: {error}");
            }
        }
        match place {
            Place::Nft(ChainPlace { table, .. }) if table == "firewalld" => write!(
                f,
                "accept it: firewall-cmd --permanent --zone=trusted --add-interface={bridge} && \
                 firewall-cmd --reload"
            ),
            Place::Nft(ChainPlace { family, table, chain }) => write!(
                f,
                "accept it: nft 'insert rule {family} {table} {chain} iifname \"{bridge}\" accept; \
                 insert rule {family} {table} {chain} oifname \"{bridge}\" accept', and likewise in \
                 the file that makes the table"
            ),
            Place::Legacy(_) => write!(f, "accept {bridge} in it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::nft::{Policy, TableFamily};
    use crate::net::Family;

    const IPTABLES: (TableFamily, &str, &str) = (TableFamily::Ip, "filter", "FORWARD");

    fn bridge() -> IfName {
        "humanz0".parse().unwrap()
    }

    fn chain(at: (TableFamily, &str, &str), policy: Policy, rules: &[ForwardRule]) -> ForwardChain {
        let (family, table, chain) = at;
        let (table, chain) = (table.to_owned(), chain.to_owned());
        let place = Place::Nft(ChainPlace { family, table, chain });
        ForwardChain { place, policy, rules: rules.to_vec(), interfaces: Default::default() }
    }

    fn rule(sense: Sense) -> ForwardRule {
        ForwardRule { handle: Some(7), sense, comment: None }
    }

    fn accept(direction: Direction, name: &str) -> ForwardRule {
        rule(Sense::Accepts(direction, name.to_owned()))
    }

    fn ours(direction: Direction) -> ForwardRule {
        ForwardRule { comment: Some(direction.comment()), ..accept(direction, "humanz0") }
    }

    fn check(chain: ForwardChain, wanted: &[&str]) {
        let found = FoundForward { chains: vec![chain], unreadable: Vec::new() };
        let plan = plan(&bridge(), &found);
        let mut lines: Vec<String> =
            plan.edits.iter().map(|edit| edit.line().to_string()).collect();
        lines.extend(plan.obstacles.iter().map(|obstacle| obstacle.to_string()));
        assert_eq!(lines, wanted);
    }

    const INSERT_OUT: &str = "+ rule -o humanz0 -j ACCEPT in iptables chain FORWARD";
    const INSERT_IN: &str = "+ rule -i humanz0 -j ACCEPT in iptables chain FORWARD";
    const REMOVE_IN: &str = "- rule -i humanz0 -j ACCEPT in iptables chain FORWARD";

    #[test]
    fn a_chain_that_stops_nothing_is_left_alone() {
        check(chain(IPTABLES, Policy::Accept, &[rule(Sense::Other)]), &[]);
    }

    #[test]
    fn a_policy_that_drops_gets_both_rules() {
        check(chain(IPTABLES, Policy::Drop, &[]), &[INSERT_OUT, INSERT_IN]);
        let other = accept(Direction::In, "humanz00");
        check(chain(IPTABLES, Policy::Drop, &[other]), &[INSERT_OUT, INSERT_IN]);
    }

    #[test]
    fn a_rule_that_drops_everything_counts_as_a_policy() {
        check(chain(IPTABLES, Policy::Accept, &[rule(Sense::StopsAll)]), &[INSERT_OUT, INSERT_IN]);
    }

    #[test]
    fn ipv6_and_older_tables_have_their_own() {
        let at = (TableFamily::Ip6, "filter", "FORWARD");
        let lines = [
            "+ rule -o humanz0 -j ACCEPT in ip6tables chain FORWARD",
            "+ rule -i humanz0 -j ACCEPT in ip6tables chain FORWARD",
        ];
        check(chain(at, Policy::Drop, &[]), &lines);
        let place = Place::Legacy(Family::V4);
        let lines = [
            "+ rule -o humanz0 -j ACCEPT in iptables-legacy chain FORWARD",
            "+ rule -i humanz0 -j ACCEPT in iptables-legacy chain FORWARD",
        ];
        check(ForwardChain { place, ..chain(IPTABLES, Policy::Drop, &[]) }, &lines);
    }

    #[test]
    fn rules_that_are_there_are_not_inserted_again() {
        let rules = [rule(Sense::Other), ours(Direction::In), ours(Direction::Out)];
        check(chain(IPTABLES, Policy::Drop, &rules), &[]);
    }

    #[test]
    fn rules_of_the_owner_do_as_well() {
        let rules = [accept(Direction::In, "humanz0"), accept(Direction::Out, "humanz0")];
        check(chain(IPTABLES, Policy::Drop, &rules), &[]);
    }

    #[test]
    fn only_the_rule_that_is_gone_comes_back() {
        check(chain(IPTABLES, Policy::Drop, &[ours(Direction::Out)]), &[INSERT_IN]);
    }

    #[test]
    fn a_rule_of_ours_behind_a_drop_is_moved() {
        let rules = [ours(Direction::Out), rule(Sense::StopsAll), ours(Direction::In)];
        check(chain(IPTABLES, Policy::Accept, &rules), &[REMOVE_IN, INSERT_IN]);
    }

    #[test]
    fn a_chain_of_another_owner_is_reported_with_what_to_do() {
        let at = (TableFamily::Inet, "filter", "forward");
        let line = "nft table inet filter, chain forward: its policy drops pod traffic; accept it: \
            nft 'insert rule inet filter forward iifname \"humanz0\" accept; insert rule inet \
            filter forward oifname \"humanz0\" accept', and likewise in the file that makes the \
            table";
        check(chain(at, Policy::Drop, &[]), &[line]);
        let at = (TableFamily::Inet, "firewalld", "filter_FORWARD");
        let line = "nft table inet firewalld, chain filter_FORWARD: a rule drops all pod traffic; \
            accept it: firewall-cmd --permanent --zone=trusted --add-interface=humanz0 && \
            firewall-cmd --reload";
        check(chain(at, Policy::Accept, &[rule(Sense::StopsAll)]), &[line]);
    }

    #[test]
    fn a_table_whose_owner_thought_of_the_bridge_is_not_reported() {
        let at = (TableFamily::Inet, "filter", "forward");
        let interfaces = ["humanz0".to_owned()].into();
        check(ForwardChain { interfaces, ..chain(at, Policy::Drop, &[]) }, &[]);
    }

    #[test]
    fn older_tables_that_cannot_be_read_are_reported() {
        let error = ForwardError::NoProgram { name: "iptables-legacy" };
        let unreadable = vec![(Place::Legacy(Family::V4), error)];
        let plan = plan(&bridge(), &FoundForward { chains: Vec::new(), unreadable });
        let line = "iptables-legacy chain FORWARD: may drop pod traffic and cannot be read: the \
            program iptables-legacy is not installed (package iptables)";
        assert_eq!(plan.obstacles[0].to_string(), line);
    }

    #[test]
    fn cleaning_up_removes_our_rules_and_no_others() {
        let rules = [ours(Direction::In), accept(Direction::Out, "humanz0"), ours(Direction::Out)];
        let chains = vec![chain(IPTABLES, Policy::Accept, &rules)];
        let edits = removals(&bridge(), &FoundForward { chains, unreadable: Vec::new() });
        let lines: Vec<String> = edits.iter().map(|edit| edit.line().to_string()).collect();
        assert_eq!(lines, ["- rule -o humanz0 -j ACCEPT in iptables chain FORWARD", REMOVE_IN]);
    }
}
