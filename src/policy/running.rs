//! Pure. Which connections that run a change of rules cuts, as far as the host of one of their ends can say.

use std::net::IpAddr;

use crate::netlink::connections::Connection;
use crate::policy::partial::{Knowledge, PartialDecision};
use crate::policy::rule::{Direction, Rule};
use crate::policy::tuple::Tuple;

/// Rules and what is known of pods, before a change and after it.
#[derive(Clone, Copy, Debug)]
pub struct RuleChange<'a> {
    pub before: Knowledge<'a>,
    pub after: Knowledge<'a>,
}

/// What the change does to a connection at its ends on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOutcome<'a> {
    Lives,
    /// By this rule.
    Cut(Direction, &'a Rule),
    /// It is cut, or not, if this rule matches, which this host cannot know.
    NotKnown(Direction, &'a Rule),
}

impl<'a> RuleChange<'a> {
    /// `None`: no end is a pod of this host, or the connection is over or denied already.
    pub fn outcome(&self, connection: &Connection) -> Option<ConnectionOutcome<'a>> {
        if connection.is_over() {
            return None;
        }
        let tuple = Tuple::of(connection);
        let ends: Vec<Direction> = Direction::BOTH
            .into_iter()
            .filter(|direction| self.is_here(end(&tuple, *direction)))
            .collect();
        let is_denied = |direction: &Direction| match self.before.end(&tuple, *direction) {
            PartialDecision::Known(decision) => !decision.allowed,
            PartialDecision::DependsOn(_) => false,
        };
        if ends.is_empty() || ends.iter().any(is_denied) {
            return None;
        }
        let outcomes = ends.into_iter().map(|direction| self.at(&tuple, direction));
        // A certain cut comes before a possible one.
        Some(outcomes.max_by_key(|outcome| outcome.weight()).unwrap_or(ConnectionOutcome::Lives))
    }

    /// An end is neither a pod of this host nor the host itself: where that is another host's pod, that
    /// host judges it.
    pub fn leads_away(&self, connection: &Connection) -> bool {
        let tuple = Tuple::of(connection);
        let is_away = |address| !self.is_here(address) && !self.after.own.contains(&address);
        Direction::BOTH.iter().any(|direction| is_away(end(&tuple, *direction)))
    }

    fn is_here(&self, address: IpAddr) -> bool {
        self.after.pods.iter().any(|pod| pod.addresses.contains(&address))
    }

    fn at(&self, tuple: &Tuple, direction: Direction) -> ConnectionOutcome<'a> {
        let after = self.after.end(tuple, direction);
        if after == self.before.end(tuple, direction) {
            return ConnectionOutcome::Lives;
        }
        match after {
            PartialDecision::DependsOn(rule) => ConnectionOutcome::NotKnown(direction, rule),
            PartialDecision::Known(decision) => match decision.denying_rule() {
                Some(rule) => ConnectionOutcome::Cut(direction, rule),
                None => ConnectionOutcome::Lives,
            },
        }
    }
}

impl ConnectionOutcome<'_> {
    fn weight(&self) -> u8 {
        match self {
            ConnectionOutcome::Lives => 0,
            ConnectionOutcome::NotKnown(..) => 1,
            ConnectionOutcome::Cut(..) => 2,
        }
    }
}

/// The address that is judged in `direction`.
fn end(tuple: &Tuple, direction: Direction) -> IpAddr {
    match direction {
        Direction::Ingress => tuple.destination,
        Direction::Egress => tuple.source,
    }
}
