//! Pure. Which program each pod has: pods of the same rules share one.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::compile::basis::TableBasis;
use crate::policy::compile::program::{PodVerdict, Program, ProgramWriter};
use crate::policy::endpoint::{Endpoint, NamedPort};
use crate::policy::name::ObjectName;
use crate::policy::rule::{Direction, Rule, Rules};
use crate::policy::selector::Selector;
use crate::policy::selector_index::SelectorIndex;
use crate::policy::service::Service;

/// The programs in use.
#[derive(Debug, Default)]
pub struct Programs {
    rules: Rules,
    subjects: SelectorIndex<Selector>,
    /// The places in `rules` of each subject.
    by_subject: Vec<Vec<usize>>,
    used: BTreeMap<ProgramKey, UsedProgram>,
}

/// What a program depends on: direction, places of the rules, and the pod's ports that they ask for by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramKey(Direction, Vec<usize>, Vec<NamedPort>);

#[derive(Debug)]
struct UsedProgram {
    program: Program,
    users: usize,
}

impl Programs {
    pub fn new(rules: &Rules) -> Programs {
        let mut by_subject: BTreeMap<&Selector, Vec<usize>> = BTreeMap::new();
        for (place, rule) in rules.iter().enumerate() {
            by_subject.entry(&rule.subject).or_default().push(place);
        }
        Programs {
            rules: rules.clone(),
            subjects: SelectorIndex::new(by_subject.keys().map(|subject| (*subject).clone())),
            by_subject: by_subject.into_values().collect(),
            used: BTreeMap::new(),
        }
    }

    /// The keys of a pod's programs, by direction.
    pub fn keys(&self, pod: &Endpoint) -> [ProgramKey; 2] {
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
            ProgramKey(direction, places, ports)
        })
    }

    /// One user more; the program if it is the first.
    pub fn add(&mut self, key: &ProgramKey, basis: &TableBasis) -> Option<&Program> {
        if let Some(used) = self.used.get_mut(key) {
            used.users += 1;
            return None;
        }
        let ProgramKey(direction, places, ports) = key;
        let writer = ProgramWriter {
            direction: *direction,
            ports,
            families: &basis.families,
            log_group: basis.log_group,
            mark_bits: basis.mark_bits.bits(),
        };
        let rules = places.iter().map(|place| self.rules.get(*place)).collect();
        let program = writer.program(rules);
        Some(&self.used.entry(key.clone()).or_insert(UsedProgram { program, users: 1 }).program)
    }

    /// One user less; the program if it was the last.
    pub fn remove(&mut self, key: &ProgramKey) -> Option<Program> {
        let used = self.used.get_mut(key)?;
        used.users -= 1;
        if used.users > 0 {
            return None;
        }
        self.used.remove(key).map(|used| used.program)
    }

    /// What a verdict map holds for an address of a pod with this program, which is in use.
    pub fn verdict(&self, key: &ProgramKey) -> &PodVerdict {
        self.used.get(key).map_or(&PodVerdict::OPEN, |used| &used.program.verdict)
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
        rules.flat_map(|rule| rule.services.iter().flatten()).filter_map(name).collect();
    ports.extend(pod.ports.iter().filter(|port| names.contains(&port.name)).cloned());
    ports.sort_unstable();
    ports
}
