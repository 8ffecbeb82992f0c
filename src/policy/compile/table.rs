//! Pure. The table of a host, and what it is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::net::subnet;
use crate::nft::{Action, Chain, Element, Match, Ruleset, Set, Shape, Type, Value, Verdict};
use crate::policy::compile::forms::plain;
use crate::policy::compile::mark::MarkBits;
use crate::policy::compile::name::{EPOCH_SET, JUDGED_CHAIN, POLICY_TABLE, STAMP_CHAIN};
use crate::policy::endpoint::Endpoint;
use crate::policy::snapshot::PolicySnapshot;

/// What the table of a host is made of.
#[derive(Clone, Copy, Debug)]
pub struct HostPolicy<'a> {
    /// Its rules, and what the selectors find that these have as peers: a selector that is missing finds
    /// nothing. An address in `subnets` counts only as that of one of `pods`.
    pub known: &'a Arc<PolicySnapshot>,
    /// This host's pods, each once. A pod of this host's subnets that is not among them is in quarantine.
    pub pods: &'a [&'a Arc<Endpoint>],
    /// Of all pods of this host, those in quarantine too; those in `subnets` may be left out.
    pub addresses: &'a BTreeSet<IpAddr>,
    /// Where this host's pods have their addresses, but for those that ask for others.
    pub subnets: &'a [IpNetwork],
    /// This host's own, by which its pods may reach it.
    pub own: &'a BTreeSet<IpAddr>,
    /// The bits of a connection's mark that hold the epoch.
    pub mark_bits: MarkBits,
    /// The netlink group that reports of drops go to.
    pub log_group: u16,
}

/// The table, but for the number of its epoch. Parts that two tables of one compiler have in common are
/// the same values in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTable {
    pub(super) sets: BTreeMap<String, Arc<Set>>,
    pub(super) chains: BTreeMap<String, Arc<Chain>>,
    pub(super) counters: Arc<BTreeSet<String>>,
    pub(super) denying: BTreeSet<String>,
    pub(super) mark_bits: MarkBits,
}

impl HostPolicy<'_> {
    /// What is judged: this host's subnets, and addresses of its pods outside of those.
    pub(super) fn networks(&self) -> Vec<IpNetwork> {
        let is_outside = |address: &&IpAddr| !self.subnets.iter().any(|it| it.contains(**address));
        let outside = self.addresses.iter().filter(is_outside);
        let outside = outside.map(|address| IpNetwork::from(*address));
        let subnets = self.subnets.iter().copied().map(subnet::masked);
        BTreeSet::from_iter(subnets.chain(outside)).into_iter().collect()
    }
}

impl PolicyTable {
    /// The whole table in the epoch with this mark.
    pub fn ruleset(&self, epoch: u32) -> Ruleset {
        let (present, of_epoch) = (self.epoch_set(epoch), self.epoch_chains(epoch));
        let sets = self.sets.values().map(|set| (**set).clone());
        let chains = self.chains.values().map(|chain| (**chain).clone());
        Ruleset {
            table: POLICY_TABLE.to_owned(),
            comment: PolicyTable::COMMENT.to_owned(),
            sets: [present].into_iter().chain(sets).collect(),
            flowtable: None,
            chains: of_epoch.into_iter().chain(chains).collect(),
        }
    }

    pub const COMMENT: &str = "written by humanz: which pods may connect to which";

    /// The set of the epoch with this mark.
    pub fn epoch_set(&self, epoch: u32) -> Set {
        Set {
            name: EPOCH_SET.to_owned(),
            shape: Shape::set([Type::Mark]),
            elements: [Element::key([Value::Bits(epoch)])].into(),
        }
    }

    /// The chain that accepts connections with the mark of the epoch, and the one that gives it to them: where that
    /// ends, the chain ends that the kernel called, and the packet passes.
    pub fn epoch_chains(&self, epoch: u32) -> [Chain; 2] {
        let bits = self.mark_bits.bits();
        let accept = Action::Verdict(Verdict::Accept);
        let marked = vec![Match::ConnectionMark(bits, epoch)];
        let mark = Action::MarkConnection(bits, epoch);
        [
            (JUDGED_CHAIN, vec![plain("judged in this epoch", marked, accept)]),
            (STAMP_CHAIN, vec![plain("judged", Vec::new(), mark)]),
        ]
        .map(|(name, rules)| Chain { name: name.to_owned(), base: None, rules })
    }

    /// By name, but for the set of the epoch.
    pub fn sets(&self) -> &BTreeMap<String, Arc<Set>> {
        &self.sets
    }

    /// By name, but for those of the epoch.
    pub fn chains(&self) -> &BTreeMap<String, Arc<Chain>> {
        &self.chains
    }

    pub fn counters(&self) -> &Arc<BTreeSet<String>> {
        &self.counters
    }

    /// A further element of the set or map of this name may deny what was allowed.
    pub fn denies(&self, set: &str) -> bool {
        self.denying.contains(set)
    }

    pub fn mark_bits(&self) -> MarkBits {
        self.mark_bits
    }

    /// What is as in `before` becomes the same values.
    pub(super) fn share(&mut self, before: &PolicyTable) {
        share(&mut self.sets, &before.sets);
        share(&mut self.chains, &before.chains);
        if self.counters == before.counters {
            self.counters = Arc::clone(&before.counters);
        }
    }
}

fn share<T: PartialEq>(parts: &mut BTreeMap<String, Arc<T>>, before: &BTreeMap<String, Arc<T>>) {
    for (name, part) in parts {
        if let Some(before) = before.get(name).filter(|before| **before == *part) {
            *part = Arc::clone(before);
        }
    }
}
