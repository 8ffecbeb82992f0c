//! Pure. Which rules a pod has, by direction: pods with one key share a program.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::gather::Gather;
use crate::policy::endpoint::{Endpoint, NamedPort};
use crate::policy::name::ObjectName;
use crate::policy::rule::{Direction, Rule, Rules};
use crate::policy::selector::Selector;
use crate::policy::selector_index::SelectorIndex;
use crate::policy::service::Service;

/// Finds the rules of pods.
#[derive(Debug, Default)]
pub struct ProgramKeys {
    rules: Rules,
    subjects: SelectorIndex<Selector>,
    /// The places in `rules` of each subject.
    by_subject: Vec<Vec<usize>>,
}

/// What a program depends on: direction, places of the rules, and the pod's ports that they ask for by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramKey {
    pub direction: Direction,
    pub places: Vec<usize>,
    pub ports: Vec<NamedPort>,
}

impl ProgramKeys {
    pub fn new(rules: &Rules) -> ProgramKeys {
        let mut by_subject: BTreeMap<&Selector, Vec<usize>> = BTreeMap::new();
        for (place, rule) in rules.iter().enumerate() {
            by_subject.entry(&rule.subject).or_default().push(place);
        }
        ProgramKeys {
            rules: rules.clone(),
            subjects: SelectorIndex::new(by_subject.keys().map(|subject| (*subject).clone())),
            by_subject: by_subject.into_values().collect(),
        }
    }

    /// The keys of a pod's programs, by direction.
    pub fn of(&self, pod: &Endpoint) -> [ProgramKey; 2] {
        let subjects = self.subjects.matching(pod).into_iter();
        let mut places: Vec<usize> =
            subjects.flat_map(|subject| &self.by_subject[subject]).copied().collect();
        places.sort_unstable();
        Direction::BOTH.map(|direction| {
            let is_own = |place: &usize| self.rules.get(*place).direction == direction;
            let places: Vec<usize> = places.iter().copied().filter(is_own).collect();
            let rules = places.iter().map(|place| self.rules.get(*place));
            let ports = match direction {
                Direction::Ingress => asked_for(rules, pod),
                Direction::Egress => Vec::new(),
            };
            ProgramKey { direction, places, ports }
        })
    }

    /// The rules of `key`, in the order in which they are judged.
    pub fn rules(&self, key: &ProgramKey) -> impl Iterator<Item = &Rule> {
        key.places.iter().map(|place| self.rules.get(*place))
    }
}

/// The pod's ports that rules may ask for by name.
fn asked_for<'a>(rules: impl Iterator<Item = &'a Rule>, pod: &Endpoint) -> Vec<NamedPort> {
    let mut ports: Vec<NamedPort> = Vec::new();
    if pod.ports.is_empty() {
        return ports;
    }
    let name = |service: &'a Service| match service {
        Service::Named(_, name) => Some(name),
        _ => None,
    };
    let names: BTreeSet<&ObjectName> =
        rules.flat_map(|rule| rule.services.iter().flatten()).filter_map(name).gather();
    ports.extend(pod.ports.iter().filter(|port| names.contains(&port.name)).cloned());
    ports.sort_unstable();
    ports
}
