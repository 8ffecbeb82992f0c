//! Pure. Rules as the nftables table that enforces them on one host.
//!
//! A connection is judged by its tuple as connection tracking knows it (where it came from, where it
//! went behind all translation), so that services, hairpins and replies need no rules of their own.
//! A pod's address leads by a verdict map to a program for each direction, which pods of the same rules
//! share; an address that no map holds is dropped: that is a pod's quarantine until its rules are
//! known. What is accepted bears the epoch of the rules in its mark and is not judged again before
//! the next epoch.
//!
//! No set of ranges decides alone whether a packet is judged: the kernel does not find anything in
//! one while it commits it (see [`crate::nft::Nft::replace`]).

pub mod address;

mod conditions;
mod forms;
mod hooks;
mod name;
mod program;
mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, subnet};
use crate::nft::{Action, Chain, Data, Element, Field, Ruleset, Set, Shape, Type, Value, Verdict};
use crate::policy::compile::forms::{QUARANTINE, denial, plain};
pub use crate::policy::compile::forms::{log_prefix, quarantine_prefix};
use crate::policy::compile::hooks::hooks;
use crate::policy::compile::name::numbered;
pub use crate::policy::compile::name::{
    EPOCH_SET, FORWARD_CHAIN, INPUT_CHAIN, POLICY_TABLE, counter,
};
use crate::policy::compile::program::{PodVerdict, Programs};
use crate::policy::compile::sets::Sets;
use crate::policy::endpoint::Endpoint;
use crate::policy::members::Members;
use crate::policy::rule::{Direction, Rules};

/// What the table of a host is made of.
#[derive(Clone, Copy, Debug)]
pub struct HostPolicy<'a> {
    pub rules: &'a Rules,
    /// This host's pods. A pod of this host's subnets that is not among them is in quarantine.
    pub pods: &'a [Endpoint],
    /// Of the selectors that rules have as peers; a selector that is missing finds nothing.
    pub members: &'a Members,
    /// Of all pods of this host, in quarantine too.
    pub addresses: &'a BTreeSet<IpAddr>,
    /// Where this host's pods have their addresses, but for those that ask for others.
    pub subnets: &'a [IpNetwork],
    /// The bits of a connection's mark that hold the epoch.
    pub mark_bits: MarkBits,
    /// The netlink group that reports of drops go to.
    pub log_group: u16,
}

/// Neighbouring bits of a connection's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkBits(u32);

/// The table, but for the number of its epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyTable {
    sets: Vec<Set>,
    /// By the kernel.
    called: [Chain; 2],
    chains: Vec<Chain>,
    counters: BTreeSet<String>,
    denying: BTreeSet<String>,
    mark_bits: MarkBits,
}

/// The table of a host.
pub fn compile(host: &HostPolicy<'_>) -> PolicyTable {
    let networks = host.networks();
    let has = |family: &Family| networks.iter().any(|it| subnet::family(*it) == *family);
    let families: Vec<Family> = Family::BOTH.into_iter().filter(has).collect();
    let mut sets = Sets::new(host.members);
    let mut programs = Programs::new(host.rules, &families, host.log_group);
    let verdicts = host.pods.iter().map(|pod| {
        let verdict = |direction| programs.verdict(direction, pod, &mut sets);
        Direction::BOTH.map(verdict)
    });
    let verdicts: Vec<[PodVerdict; 2]> = verdicts.collect();
    let pods = by_address(host.pods, &verdicts);
    for family in &families {
        pod_sets(*family, &pods).into_iter().for_each(|set| sets.insert(set));
    }
    let judges = families.iter().flat_map(|family| judges(*family));
    let (called, to_own_node) = hooks(&networks, &families, host.mark_bits.0);
    let (programs, mut counters) = programs.finish();
    counters.extend(["unknown", "untracked"].map(str::to_owned));
    let chains = judges.chain(to_own_node).chain([unknown(host)]).chain(programs).collect();
    let (sets, denying) = sets.finish();
    PolicyTable { sets, called, chains, counters, denying, mark_bits: host.mark_bits }
}

impl HostPolicy<'_> {
    /// What is judged: this host's subnets, and addresses of its pods outside of those.
    fn networks(&self) -> Vec<IpNetwork> {
        let is_outside = |address: &&IpAddr| !self.subnets.iter().any(|it| it.contains(**address));
        let known = self.pods.iter().flat_map(|pod| &pod.addresses);
        let outside = self.addresses.iter().chain(known).filter(is_outside);
        let outside = outside.map(|address| IpNetwork::from(*address));
        let subnets = self.subnets.iter().copied().map(subnet::masked);
        BTreeSet::from_iter(subnets.chain(outside)).into_iter().collect()
    }
}

impl MarkBits {
    /// The upper half.
    pub const DEFAULT: MarkBits = MarkBits(0xffff_0000);

    /// `None` unless at least 8 bits that stand beside each other.
    pub fn new(bits: u32) -> Option<MarkBits> {
        let number = bits.checked_shr(bits.trailing_zeros())?;
        (number & number.wrapping_add(1) == 0 && number.count_ones() >= 8).then_some(MarkBits(bits))
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    /// The mark of an epoch; `number` counts round. Never zero, the mark of a new connection.
    pub fn epoch(self, number: u32) -> u32 {
        let shift = self.0.trailing_zeros();
        let count = self.0 >> shift;
        (number % count + 1) << shift
    }

    /// The mark of the epoch after the one with this mark.
    pub fn next(self, mark: u32) -> u32 {
        self.epoch((mark & self.0) >> self.0.trailing_zeros())
    }

    /// `mark` is that of an epoch.
    pub fn is_epoch(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }
}

impl PolicyTable {
    /// The whole table in the epoch with this mark.
    pub fn ruleset(&self, epoch: u32) -> Ruleset {
        let present = Set {
            name: EPOCH_SET.to_owned(),
            shape: Shape::set([Type::Mark]),
            elements: [Element::key([Value::Bits(epoch)])].into(),
        };
        let stamp = [
            plain("judged", Vec::new(), Action::MarkConnection(self.mark_bits.0, epoch)),
            plain("judged", Vec::new(), Action::Verdict(Verdict::Accept)),
        ];
        let stamp = Chain { name: "stamp".to_owned(), base: None, rules: stamp.into() };
        Ruleset {
            table: POLICY_TABLE.to_owned(),
            comment: "written by humanz: which pods may connect to which".to_owned(),
            sets: [present].into_iter().chain(self.sets.iter().cloned()).collect(),
            flowtable: None,
            chains: [stamp]
                .into_iter()
                .chain(self.chains.iter().cloned())
                .chain(self.called.iter().cloned())
                .collect(),
        }
    }

    pub fn counters(&self) -> &BTreeSet<String> {
        &self.counters
    }

    /// A further element of the set or map of this name may deny what was allowed.
    pub fn denies(&self, set: &str) -> bool {
        self.denying.contains(set)
    }

    pub fn mark_bits(&self) -> MarkBits {
        self.mark_bits
    }
}

/// The verdicts of each address: to it, then from it. Two pods with one address are a mistake, which
/// puts both in quarantine.
fn by_address(
    pods: &[Endpoint],
    verdicts: &[[PodVerdict; 2]],
) -> BTreeMap<IpAddr, [PodVerdict; 2]> {
    let mut owned: BTreeMap<IpAddr, Option<[PodVerdict; 2]>> = BTreeMap::new();
    for (pod, verdicts) in pods.iter().zip(verdicts) {
        for address in BTreeSet::from_iter(&pod.addresses) {
            owned
                .entry(*address)
                .and_modify(|verdicts| *verdicts = None)
                .or_insert_with(|| Some(verdicts.clone()));
        }
    }
    let decided = owned.into_iter().filter_map(|(address, verdicts)| Some((address, verdicts?)));
    decided.collect()
}

/// The verdict maps of a family, its pods without rules, and each pod with itself.
fn pod_sets(family: Family, pods: &BTreeMap<IpAddr, [PodVerdict; 2]>) -> Vec<Set> {
    let kind = Type::address(family);
    let pods = || pods.iter().filter(|(address, _)| Family::of(**address) == family);
    let map = |direction: usize, name: &str| {
        let element = |(address, verdicts): (&IpAddr, &[PodVerdict; 2])| Element {
            data: Some(Data::Verdict(verdicts[direction].verdict.clone())),
            ..Element::key([Value::address(*address)])
        };
        let elements = pods().map(element).collect();
        Set { name: numbered(name, family), shape: Shape::verdicts([kind]), elements }
    };
    let open = pods().filter(|(_, verdicts)| verdicts.iter().all(|it| !it.decides));
    let open = open.map(|(address, _)| Element::key([Value::address(*address)])).collect();
    let itself = pods()
        .map(|(address, _)| Element::key([Value::address(*address), Value::address(*address)]));
    let plain = |name, shape, elements| Set { name: numbered(name, family), shape, elements };
    vec![
        map(0, "in"),
        map(1, "out"),
        plain("open", Shape::set([kind]), open),
        plain("self", Shape::set([kind, kind]), itself.collect()),
    ]
}

/// The chains that look up a connection's pods.
fn judges(family: Family) -> [Chain; 2] {
    let ends = [
        ("from", "out", Field::ConnectionSource(family)),
        ("to", "in", Field::ConnectionDestination(family)),
    ];
    ends.map(|(chain, map, field)| {
        let program = Action::VerdictMap(vec![field], numbered(map, family));
        let unknown = Action::Verdict(Verdict::Goto("unknown".to_owned()));
        let rules = vec![
            plain("the pod's rules", Vec::new(), program),
            plain("not known yet", Vec::new(), unknown),
        ];
        Chain { name: numbered(chain, family), base: None, rules }
    })
}

fn unknown(host: &HostPolicy<'_>) -> Chain {
    let rules = denial(QUARANTINE, host.log_group, Vec::new(), "unknown".to_owned());
    Chain { name: "unknown".to_owned(), base: None, rules: rules.into() }
}
