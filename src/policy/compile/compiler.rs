//! Pure. The table made part by part: what did not change stays the part that it was.
//!
//! Programs depend on the rules, maps on the pods and their programs, sets of peers on what selectors find
//! among members and pods. A compiler without memory gives the same table as one that has made others
//! before, but for the room in sets that once held more; it only takes longer.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::net::Family;
use crate::nft::{Action, Chain, Field, NftRule, Set, Verdict};
use crate::policy::compile::address;
use crate::policy::compile::basis::TableBasis;
use crate::policy::compile::counts::UserCounts;
use crate::policy::compile::forms::{
    FOREIGN_ERROR, NO_CONNECTION, QUARANTINE, denial, drop_all, plain,
};
use crate::policy::compile::hooks::hooks;
use crate::policy::compile::name::{FOREIGN, UNKNOWN, UNTRACKED, numbered};
use crate::policy::compile::peers::PeerSelectors;
use crate::policy::compile::pod_maps::PodMaps;
use crate::policy::compile::program::Program;
use crate::policy::compile::program_keys::ProgramKey;
use crate::policy::compile::programs::Programs;
use crate::policy::compile::sets::SetSource;
use crate::policy::compile::table::{HostPolicy, PolicyTable};
use crate::policy::endpoint::Endpoint;

/// Makes the tables of a host, one after the other.
#[derive(Debug, Default)]
pub struct Compiler {
    basis: Option<TableBasis>,
    networks: Option<Vec<IpNetwork>>,
    programs: Programs,
    peers: PeerSelectors,
    maps: PodMaps,
    /// By address in memory.
    pods: BTreeMap<usize, CompiledPod>,
    updates: u64,
    users: PartUsers,
    table: PolicyTable,
}

/// A pod that the table has.
#[derive(Debug)]
struct CompiledPod {
    pod: Arc<Endpoint>,
    programs: [ProgramKey; 2],
    /// The last update that had it.
    seen: u64,
}

/// How many programs use each chain, counter and set, and how many deny by a set.
#[derive(Debug, Default)]
struct PartUsers {
    chains: UserCounts,
    counters: UserCounts,
    sets: UserCounts,
    denying: UserCounts,
}

/// The table of a host.
pub fn compile(host: &HostPolicy<'_>) -> PolicyTable {
    let mut compiler = Compiler::default();
    compiler.compile(host);
    compiler.into_table()
}

impl Compiler {
    /// The table of a host.
    pub fn compile(&mut self, host: &HostPolicy<'_>) -> &PolicyTable {
        let networks = host.networks();
        let basis = TableBasis::of(host, &networks);
        if self.basis.as_ref() == Some(&basis) {
            self.update(host, networks);
        } else {
            let before = std::mem::replace(self, Compiler::new(basis));
            self.update(host, networks);
            self.table.share(&before.table);
        }
        &self.table
    }

    pub fn table(&self) -> &PolicyTable {
        &self.table
    }

    pub fn into_table(self) -> PolicyTable {
        self.table
    }

    /// Without any pods.
    fn new(basis: TableBasis) -> Compiler {
        let mut compiler = Compiler {
            programs: Programs::new(&basis.rules),
            peers: PeerSelectors::new(&basis.rules),
            ..Compiler::default()
        };
        compiler.table.mark_bits = basis.mark_bits;
        for family in &basis.families {
            address::sets(*family).into_iter().for_each(|set| compiler.put_set(set));
            judges(*family).into_iter().for_each(|chain| compiler.put_chain(chain));
        }
        drops(&basis).into_iter().for_each(|chain| compiler.put_chain(chain));
        let counters = [UNKNOWN, UNTRACKED, FOREIGN].map(str::to_owned);
        compiler.table.counters = Arc::new(counters.into());
        compiler.basis = Some(basis);
        compiler
    }

    fn update(&mut self, host: &HostPolicy<'_>, networks: Vec<IpNetwork>) {
        if self.networks.as_ref() != Some(&networks) {
            let families = self.basis.as_ref().map_or(&[][..], |basis| &basis.families);
            let (called, to_own_node) = hooks(&networks, families);
            called.into_iter().chain(to_own_node).for_each(|chain| self.put_chain(chain));
            self.networks = Some(networks);
        }
        self.peers.take(host.known, host.subnets, host.own);
        self.update_pods(host.pods);
        let (removed, added) = self.maps.changed_elements();
        for (set, element) in &removed {
            self.set_mut(set).elements.remove(element);
        }
        for (set, element) in added {
            self.set_mut(&set).elements.insert(element);
        }
        for set in self.peers.changed_sets() {
            // What a set holds may be the same after all.
            if self.table.sets.get(&set.name).is_none_or(|before| **before != set) {
                self.put_set(set);
            }
        }
    }

    fn update_pods(&mut self, pods: &[&Arc<Endpoint>]) {
        self.updates += 1;
        let mut new = Vec::new();
        for pod in pods {
            let id = Arc::as_ptr(pod) as usize;
            match self.pods.get_mut(&id) {
                Some(compiled) => compiled.seen = self.updates,
                None => {
                    self.peers.add_pod(pod);
                    new.push((id, Arc::clone(pod)));
                }
            }
        }
        let is_gone = |(_, compiled): &(&usize, &CompiledPod)| compiled.seen != self.updates;
        let gone: Vec<usize> = self.pods.iter().filter(is_gone).map(|(id, _)| *id).collect();
        for compiled in gone.iter().filter_map(|id| self.pods.get(id)) {
            self.peers.remove_pod(&compiled.pod);
        }
        new.extend(self.take_outgrown());
        for (id, pod) in new {
            let compiled = self.add_pod(pod);
            self.pods.insert(id, compiled);
        }
        for compiled in gone.iter().filter_map(|id| self.pods.remove(id)).collect::<Vec<_>>() {
            self.remove_pod(&compiled);
        }
    }

    /// The pods that stay and whose programs look into sets which need another size: they are to get others.
    fn take_outgrown(&mut self) -> Vec<(usize, Arc<Endpoint>)> {
        let resized = self.peers.resized();
        if resized.is_empty() {
            return Vec::new();
        }
        let programs = self.programs.using(&resized);
        let uses = |(_, compiled): &(&usize, &CompiledPod)| {
            compiled.programs.iter().any(|key| programs.contains(key))
        };
        let ids: Vec<usize> = self.pods.iter().filter(uses).map(|(id, _)| *id).collect();
        let taken = ids.into_iter().filter_map(|id| Some((id, self.pods.remove(&id)?)));
        let taken: Vec<(usize, CompiledPod)> = taken.collect();
        taken.iter().for_each(|(_, compiled)| self.remove_pod(compiled));
        let stays = |(_, compiled): &(usize, CompiledPod)| compiled.seen == self.updates;
        taken.into_iter().filter(stays).map(|(id, compiled)| (id, compiled.pod)).collect()
    }

    fn add_pod(&mut self, pod: Arc<Endpoint>) -> CompiledPod {
        let programs = self.programs.keys(&pod);
        let verdicts = programs.each_ref().map(|key| {
            self.use_program(key);
            self.programs.verdict(key).clone()
        });
        self.maps.add(&pod, &verdicts);
        CompiledPod { pod, programs, seen: self.updates }
    }

    fn remove_pod(&mut self, CompiledPod { pod, programs, .. }: &CompiledPod) {
        let verdicts = programs.each_ref().map(|key| self.programs.verdict(key).clone());
        self.maps.remove(pod, &verdicts);
        for key in programs {
            if let Some(program) = self.programs.remove(key) {
                self.drop_program(&program);
            }
        }
    }

    fn use_program(&mut self, key: &ProgramKey) {
        let Some(basis) = &self.basis else { return };
        let Compiler { programs, users, table, peers, .. } = self;
        let Some(program) = programs.add(key, basis, peers) else { return };
        for chain in program.chains.iter().filter(|chain| users.chains.add(&chain.name)) {
            table.chains.insert(chain.name.clone(), Arc::new(chain.clone()));
        }
        let counters = program.counters.iter().filter(|counter| users.counters.add(counter));
        let counters: Vec<_> = counters.cloned().collect();
        if !counters.is_empty() {
            Arc::make_mut(&mut table.counters).extend(counters);
        }
        let denying = program.sets.denying.iter().filter(|set| users.denying.add(set));
        table.denying.extend(denying.cloned());
        for (name, source) in program.sets.by_name.iter().filter(|(name, _)| users.sets.add(name)) {
            match source {
                SetSource::Found(selector, keys) => peers.add_set(name, selector, keys),
                SetSource::Fixed(set) => {
                    table.sets.insert(name.clone(), Arc::new(set.clone()));
                }
            }
        }
    }

    fn drop_program(&mut self, program: &Program) {
        let Compiler { users, table, peers, .. } = self;
        for chain in program.chains.iter().filter(|chain| users.chains.remove(&chain.name)) {
            table.chains.remove(&chain.name);
        }
        for counter in program.counters.iter().filter(|counter| users.counters.remove(counter)) {
            Arc::make_mut(&mut table.counters).remove(counter);
        }
        for set in program.sets.denying.iter().filter(|set| users.denying.remove(set)) {
            table.denying.remove(set);
        }
        let sets = program.sets.by_name.iter();
        for (name, source) in sets.filter(|(name, _)| users.sets.remove(name)) {
            table.sets.remove(name);
            if let SetSource::Found(selector, _) = source {
                peers.remove_set(name, selector);
            }
        }
    }

    fn put_set(&mut self, set: Set) {
        self.table.sets.insert(set.name.clone(), Arc::new(set));
    }

    fn put_chain(&mut self, chain: Chain) {
        self.table.chains.insert(chain.name.clone(), Arc::new(chain));
    }

    fn set_mut(&mut self, name: &str) -> &mut Set {
        let set = self.table.sets.get_mut(name).expect("each family of an address has its sets");
        Arc::make_mut(set)
    }
}

/// The chains that look up a connection's pods.
fn judges(family: Family) -> [Chain; 2] {
    let ends = [
        ("from", "out", Field::ConnectionSource(family)),
        ("to", "in", Field::ConnectionDestination(family)),
    ];
    ends.map(|(chain, map, field)| {
        let program = Action::VerdictMap(vec![field], numbered(map, family));
        let unknown = Action::Verdict(Verdict::Goto(UNKNOWN.to_owned()));
        let rules = vec![
            plain("the pod's rules", Vec::new(), program),
            plain("not known yet", Vec::new(), unknown),
        ];
        Chain { name: numbered(chain, family), base: None, rules }
    })
}

/// Where packets of pods in quarantine, those of no connection, and errors about connections of others end.
fn drops(basis: &TableBasis) -> [Chain; 3] {
    let unknown = (basis.log_group, basis.mark_bits.bits());
    let unknown = denial(QUARANTINE, unknown, Vec::new(), UNKNOWN.to_owned());
    let drop = |comment, name: &str| drop_all(comment, basis.log_group, name.to_owned());
    let chain = |name: &str, rules: [NftRule; 2]| Chain {
        name: name.to_owned(),
        base: None,
        rules: rules.into(),
    };
    [
        chain(UNKNOWN, unknown),
        chain(UNTRACKED, drop(NO_CONNECTION, UNTRACKED)),
        chain(FOREIGN, drop(FOREIGN_ERROR, FOREIGN)),
    ]
}
