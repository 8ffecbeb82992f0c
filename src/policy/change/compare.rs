//! Pure. The connections of a host's pods whose verdict a change of rules changes, as far as the host can say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::net::Family;
use crate::net::gather::Gather;
use crate::policy::change::costs::{RuleCosts, TooMany, refuse_looks};
use crate::policy::change::other_ends::{OtherEnd, Surroundings};
use crate::policy::change::services::{
    PodKind, alike, by_family, concerning, in_family, named_ports, services,
};
use crate::policy::endpoint::Endpoint;
use crate::policy::members::{self, Members};
use crate::policy::partial::{Knowledge, PartialDecision};
use crate::policy::rule::{Direction, Origin, Rule, Rules};
use crate::policy::running::RuleChange;
use crate::policy::tuple::{Transport, Tuple};

/// Comparisons of words, addresses and ports, at most: seconds.
const LIMIT: usize = 300_000_000;

/// Verdicts, at most: some 100 MB if all of them change.
const VERDICTS: usize = 500_000;

/// A connection whose verdict changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangedVerdict {
    pub source: String,
    pub destination: String,
    /// With the family where the other one has another answer.
    pub service: String,
    /// After the change; `None`: it depends on whether the rule matches, which this host does not know.
    pub allowed: Option<bool>,
    /// The rule that denies, before or after.
    pub rule: String,
    /// The other end may be a pod of another host, which judges that end.
    pub judged_elsewhere: bool,
}

/// What changes for the pods of `change`.
///
/// # Errors
/// [`TooMany`].
pub fn compare(
    change: &RuleChange<'_>,
    around: &Surroundings<'_>,
) -> Result<BTreeSet<ChangedVerdict>, TooMany> {
    let changed = changed_rules(change.before.rules, change.after.rules);
    let is_concerned = |pod: &Endpoint| changed.iter().any(|it| it.subject.matches_pod(pod));
    let pods = change.after.pods;
    let here = [concerning(change.before.rules, pods)?, concerning(change.after.rules, pods)?];
    let all = here.concat();
    refuse_looks(pods, &all)?;
    let kinds = alike(pods, &all);
    let concerned: Vec<&PodKind<'_>> = kinds.iter().filter(|it| is_concerned(it.first)).collect();
    let is_relevant =
        |rule: &&&Rule| concerned.iter().any(|pod| rule.subject.matches_pod(pod.first));
    let near = [0, 1].map(|at| here[at].iter().filter(is_relevant).copied().collect::<Vec<_>>());
    let relevant = near.concat();
    let others = around.other_ends(&relevant)?;
    let services = services(&relevant, &named_ports(pods, change.after.members));
    let met = others.iter().flat_map(|end| end.addresses.iter().copied()).gather();
    let known = [change.before, change.after].map(|known| members::having(known.members, &met));
    let outside = members::no_more(known[1].clone(), members::peers(change.after.rules.iter()));
    let comparison = VerdictComparison { change, near, here, known, outside, services };
    comparison.refuse_too_many((concerned.len(), kinds.len(), others.len()))?;
    let mut found = BTreeSet::new();
    for pod in &concerned {
        for direction in Direction::BOTH {
            if changed
                .iter()
                .any(|it| it.direction == direction && it.subject.matches_pod(pod.first))
            {
                kinds.iter().for_each(|kind| comparison.with_pod(pod, kind, direction, &mut found));
                others
                    .iter()
                    .for_each(|end| comparison.with_other(pod, end, direction, &mut found));
            }
        }
    }
    Ok(found)
}

/// Those of the objects that differ.
fn changed_rules<'a>(before: &'a Rules, after: &'a Rules) -> Vec<&'a Rule> {
    let mut objects: BTreeMap<Origin, [Vec<&Rule>; 2]> = BTreeMap::new();
    for (at, rules) in [before, after].into_iter().enumerate() {
        for rule in rules.iter() {
            objects.entry(rule.origin.object()).or_default()[at].push(rule);
        }
    }
    let differs = |[before, after]: &[Vec<&'a Rule>; 2]| before != after;
    objects.into_values().filter(differs).flatten().flatten().collect()
}

/// What stays the same for every connection.
struct VerdictComparison<'a> {
    change: &'a RuleChange<'a>,
    /// Before and after, the rules of the pods for which anything changes …
    near: [Vec<&'a Rule>; 2],
    /// … and of all pods of this host.
    here: [Vec<&'a Rule>; 2],
    /// Before and after, what selectors find of the other ends.
    known: [Members; 2],
    /// For what is no pod: it is none that a new rule finds.
    outside: Members,
    services: Vec<(String, Transport)>,
}

/// One connection to judge.
struct Tried<'a> {
    tuple: Tuple,
    direction: Direction,
    /// Its ends that are pods of this host.
    pods: &'a [Endpoint],
    is_both: bool,
    /// The other end may be a pod.
    may_be_pod: bool,
}

impl VerdictComparison<'_> {
    /// Before anything is tried.
    fn refuse_too_many(
        &self,
        (concerned, kinds, others): (usize, usize, usize),
    ) -> Result<(), TooMany> {
        let costs = RuleCosts::new(&self.outside, self.change.after.pods);
        let of = |rules: &[Vec<&Rule>; 2]| costs.rules(rules.iter().flatten().copied());
        let tried = concerned.saturating_mul(self.services.len() * Family::BOTH.len());
        let ends = (kinds + others).saturating_mul(of(&self.near) + 1);
        let ends = ends.saturating_add(kinds.saturating_mul(of(&self.here) + 1));
        let verdicts = tried.saturating_mul(kinds + others);
        if verdicts > VERDICTS || tried.saturating_mul(ends) > LIMIT {
            return Err(TooMany(format!(
                "{concerned} kinds of pods, {} kinds of other ends, {} ports",
                kinds + others,
                self.services.len()
            )));
        }
        Ok(())
    }

    fn with_pod(
        &self,
        pod: &PodKind<'_>,
        other: &PodKind<'_>,
        direction: Direction,
        found: &mut BTreeSet<ChangedVerdict>,
    ) {
        let is_same = std::ptr::eq(pod.first, other.first);
        let Some(second) = (if is_same { other.second } else { Some(other.first) }) else { return };
        let pods = [pod.first.clone(), second.clone()];
        let names = (pod.name(), other.name());
        self.try_all((&pods, &second.addresses, true), direction, names, true, found);
    }

    fn with_other(
        &self,
        pod: &PodKind<'_>,
        other: &OtherEnd,
        direction: Direction,
        found: &mut BTreeSet<ChangedVerdict>,
    ) {
        let pods = [pod.first.clone()];
        let names = (pod.name(), other.name.clone());
        self.try_all((&pods, &other.addresses, false), direction, names, other.may_be_pod, found);
    }

    fn try_all(
        &self,
        (pods, peers, is_both): (&[Endpoint], &[IpAddr], bool),
        direction: Direction,
        (own, other): (String, String),
        may_be_pod: bool,
        found: &mut BTreeSet<ChangedVerdict>,
    ) {
        let of = |all: &[IpAddr], family| all.iter().copied().find(|it| Family::of(*it) == family);
        let both = |family| Some((family, of(&pods[0].addresses, family)?, of(peers, family)?));
        let families: Vec<_> = Family::BOTH.into_iter().filter_map(both).collect();
        let (from, to) = match direction {
            Direction::Egress => (&own, &other),
            Direction::Ingress => (&other, &own),
        };
        for (service, transport) in &self.services {
            let tried = |(family, here, there): &(Family, IpAddr, IpAddr)| {
                let (source, destination) = match direction {
                    Direction::Egress => (*here, *there),
                    Direction::Ingress => (*there, *here),
                };
                let transport = in_family(*transport, *family)?;
                let tuple = Tuple { source, destination, transport };
                Some((
                    *family,
                    self.changed(&Tried { tuple, direction, pods, is_both, may_be_pod }),
                ))
            };
            for (service, change) in by_family(service, families.iter().filter_map(tried).collect())
            {
                let Some((allowed, rule)) = change else { continue };
                found.insert(ChangedVerdict {
                    source: from.clone(),
                    destination: to.clone(),
                    service,
                    allowed,
                    rule,
                    judged_elsewhere: may_be_pod && !is_both,
                });
            }
        }
    }

    /// What is said of the connection after the change, if that is not what was said before.
    fn changed(&self, tried: &Tried<'_>) -> Option<(Option<bool>, String)> {
        let near = [0, 1].map(|at| self.end(at, &self.near, tried, tried.direction));
        if near[0] == near[1] {
            return None;
        }
        let far = match tried.direction {
            Direction::Ingress => Direction::Egress,
            Direction::Egress => Direction::Ingress,
        };
        let [before, after] = [0, 1].map(|at| {
            let far = tried.is_both.then(|| self.end(at, &self.here, tried, far));
            verdict([Some(&near[at]), far.as_ref()].into_iter().flatten())
        });
        match (before, after) {
            ((Some(false), _), (Some(false), _)) | ((Some(true), _), (Some(true), _)) => None,
            ((_, denied), (Some(true), _)) => Some((Some(true), denied)),
            (_, after) => Some(after),
        }
    }

    /// What the end in `direction` says by these rules, before or after.
    fn end<'b>(
        &'b self,
        at: usize,
        rules: &'b [Vec<&'b Rule>; 2],
        tried: &'b Tried<'_>,
        direction: Direction,
    ) -> PartialDecision<'b> {
        let whole = if at == 0 { self.change.before } else { self.change.after };
        let members = if tried.may_be_pod { &self.known[at] } else { &self.outside };
        let known = Knowledge { members, pods: tried.pods, ..whole };
        known.end_by(rules[at].iter().copied(), &tried.tuple, direction)
    }
}

/// What the ends say together, and the rule that denies or that it depends on.
pub fn verdict<'a>(
    ends: impl Iterator<Item = &'a PartialDecision<'a>> + Clone,
) -> (Option<bool>, String) {
    let denying = ends.clone().find_map(|end| match end {
        PartialDecision::Known(decision) => decision.denying_rule(),
        PartialDecision::DependsOn(_) => None,
    });
    let doubtful = ends.into_iter().find_map(|end| match end {
        PartialDecision::DependsOn(rule) => Some(*rule),
        PartialDecision::Known(_) => None,
    });
    match (denying, doubtful) {
        (Some(rule), _) => (Some(false), rule.to_string()),
        (None, Some(rule)) => (None, rule.to_string()),
        (None, None) => (Some(true), String::new()),
    }
}
