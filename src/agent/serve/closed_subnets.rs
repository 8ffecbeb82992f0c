//! Pure. What is closed for new pods, and what may open it.

use std::time::Instant;

use ipnetwork::IpNetwork;

use crate::ipam::Closed;
use crate::net::{PerFamily, subnet};

/// What the IPAM store has closed for new pods, and what of it opens again.
#[derive(Debug)]
pub struct ClosedSubnets {
    /// As the store has it; `None`: it was not read in this life of the agent.
    pub(super) store: Option<StoreClosed>,
    pub(super) opens: Opens,
    /// When to look for pods.
    pub(super) look_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct StoreClosed {
    pub(super) now: Option<Closed>,
    /// When this life of the agent began.
    at_start: Option<Closed>,
}

/// Which closed subnets open as soon as they are not disputed. Until etcd has answered, what an earlier
/// life closed may be another host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// None of them: etcd has not said in this life which are this host's.
    Nothing,
    /// Those that this life closed: etcd has not shown in time that this machine is a copy.
    ClosedInThisLife,
    /// This host's: etcd has said which. Others stay closed until they are this host's again.
    Own,
}

impl ClosedSubnets {
    /// `owns`: the subnets are this host's without etcd.
    pub(super) fn new(owns: bool) -> ClosedSubnets {
        let opens = if owns { Opens::Own } else { Opens::Nothing };
        ClosedSubnets { store: None, opens, look_at: None }
    }

    /// etcd has not shown in time that this machine is a copy.
    pub(super) fn note_no_copy(&mut self) {
        if self.opens == Opens::Nothing {
            self.opens = Opens::ClosedInThisLife;
        }
    }
}

impl StoreClosed {
    pub(super) fn new(closed: Option<Closed>) -> StoreClosed {
        StoreClosed { now: closed.clone(), at_start: closed }
    }

    /// What is to be closed: `disputed`, and of what is closed that which does not open. `why`: what
    /// disputes them.
    pub(super) fn wanted(
        &self,
        opens: Opens,
        own: &PerFamily<IpNetwork>,
        disputed: &[IpNetwork],
        why: Option<String>,
    ) -> Option<Closed> {
        let former = match opens {
            Opens::ClosedInThisLife => self.at_start.as_ref(),
            Opens::Nothing | Opens::Own => self.now.as_ref(),
        };
        let is_own = |closed: &IpNetwork| own.iter().any(|own| subnet::overlap(*own, *closed));
        let stays = |closed: &&IpNetwork| opens != Opens::Own || !is_own(closed);
        let kept = former.iter().flat_map(|closed| &closed.subnets).filter(stays);
        let kept = kept.filter(|closed| !disputed.contains(closed));
        let subnets: Vec<IpNetwork> = disputed.iter().chain(kept).copied().collect();
        let former_why = former.map(|closed| closed.why.clone());
        let why = why.filter(|_| !disputed.is_empty()).or(former_why).unwrap_or_default();
        (!subnets.is_empty()).then_some(Closed { subnets, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "10.244.1.0/24";
    const FORMER: &str = "10.244.9.0/24";

    fn parse(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn store(closed: &[&str]) -> StoreClosed {
        let closed = Closed { subnets: parse(closed), why: "before".to_owned() };
        StoreClosed::new(Some(closed).filter(|closed| !closed.subnets.is_empty()))
    }

    /// The next state of the store, as the agent writes it.
    fn check(
        store: &mut StoreClosed,
        (opens, own): (Opens, &str),
        disputed: &[&str],
        expected: &[&str],
    ) {
        let own = PerFamily { v4: own.parse().ok(), v6: None };
        let why = (!disputed.is_empty()).then(|| "now".to_owned());
        store.now = store.wanted(opens, &own, &parse(disputed), why);
        let subnets = store.now.as_ref().map(|closed| closed.subnets.clone());
        assert_eq!(subnets.unwrap_or_default(), parse(expected));
    }

    #[test]
    fn a_disputed_subnet_is_closed_and_a_former_one_stays_so() {
        for (opens, closed, disputed, expected) in [
            (Opens::Own, vec![], vec![], vec![]),
            (Opens::Own, vec![], vec![OWN], vec![OWN]),
            (Opens::Own, vec![OWN], vec![], vec![]),
            (Opens::Own, vec![FORMER], vec![], vec![FORMER]),
            (Opens::Own, vec![FORMER], vec![OWN], vec![OWN, FORMER]),
            (Opens::Nothing, vec![OWN], vec![], vec![OWN]),
            (Opens::Nothing, vec![OWN], vec![OWN], vec![OWN]),
            (Opens::ClosedInThisLife, vec![OWN], vec![], vec![OWN]),
        ] {
            check(&mut store(&closed), (opens, OWN), &disputed, &expected);
        }
    }

    #[test]
    fn what_was_closed_for_a_possible_copy_opens_without_etcd() {
        let mut store = store(&[FORMER]);
        check(&mut store, (Opens::Nothing, OWN), &[OWN], &[OWN, FORMER]);
        check(&mut store, (Opens::Nothing, OWN), &[], &[OWN, FORMER]);
        check(&mut store, (Opens::ClosedInThisLife, OWN), &[], &[FORMER]);
    }

    #[test]
    fn a_lost_subnet_stays_closed_until_it_is_this_hosts_again() {
        let mut store = store(&[]);
        check(&mut store, (Opens::Nothing, OWN), &[OWN], &[OWN]);
        check(&mut store, (Opens::ClosedInThisLife, OWN), &[], &[]);
        // etcd answers: another host has it, and this host moves.
        check(&mut store, (Opens::ClosedInThisLife, OWN), &[OWN], &[OWN]);
        check(&mut store, (Opens::Own, "10.244.2.0/24"), &[], &[OWN]);
        check(&mut store, (Opens::Own, OWN), &[], &[]);
    }

    #[test]
    fn the_reason_is_the_dispute_and_afterwards_the_last_one() {
        let mut store = store(&[FORMER]);
        let mut reason = |disputed: &[&str]| {
            check(&mut store, (Opens::Nothing, OWN), disputed, &[disputed, &[FORMER]].concat());
            store.now.as_ref().unwrap().why.clone()
        };
        assert_eq!(reason(&[]), "before");
        assert_eq!(reason(&[OWN]), "now");
    }
}
