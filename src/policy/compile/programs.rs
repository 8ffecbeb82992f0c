//! Pure. Which program each pod has: pods of the same rules share one.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::compile::basis::TableBasis;
use crate::policy::compile::peers::PeerSelectors;
use crate::policy::compile::program::{PodVerdict, Program, ProgramWriter};
use crate::policy::compile::program_keys::{ProgramKey, ProgramKeys};
use crate::policy::endpoint::Endpoint;
use crate::policy::rule::Rules;

/// The programs in use.
#[derive(Debug, Default)]
pub struct Programs {
    keys: ProgramKeys,
    used: BTreeMap<ProgramKey, UsedProgram>,
}

#[derive(Debug)]
struct UsedProgram {
    program: Program,
    users: usize,
}

impl Programs {
    pub fn new(rules: &Rules) -> Programs {
        Programs { keys: ProgramKeys::new(rules), used: BTreeMap::new() }
    }

    /// The keys of a pod's programs, by direction.
    pub fn keys(&self, pod: &Endpoint) -> [ProgramKey; 2] {
        self.keys.of(pod)
    }

    /// One user more; the program if it is the first.
    pub fn add(
        &mut self,
        key: &ProgramKey,
        basis: &TableBasis,
        peers: &PeerSelectors,
    ) -> Option<&Program> {
        if let Some(used) = self.used.get_mut(key) {
            used.users += 1;
            return None;
        }
        let writer = ProgramWriter {
            direction: key.direction,
            ports: &key.ports,
            families: &basis.families,
            peers,
            log_group: basis.log_group,
            mark_bits: basis.mark_bits.bits(),
        };
        let program = writer.program(self.keys.rules(key).collect());
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

    /// Those that look into any of these sets.
    pub fn using(&self, sets: &BTreeSet<String>) -> Vec<ProgramKey> {
        let uses =
            |used: &UsedProgram| used.program.sets.by_name.keys().any(|it| sets.contains(it));
        self.used.iter().filter(|(_, used)| uses(used)).map(|(key, _)| key.clone()).collect()
    }

    /// What a verdict map holds for an address of a pod with this program, which is in use.
    pub fn verdict(&self, key: &ProgramKey) -> &PodVerdict {
        self.used.get(key).map_or(&PodVerdict::OPEN, |used| &used.program.verdict)
    }
}
