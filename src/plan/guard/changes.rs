//! Pure. What must change so that each pod has its guard.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::gather::Gather;
use crate::net::{IfName, Mac, Object};
use crate::netlink::neighbour::Neighbour;
use crate::nft::frame::edit::FrameEdit;
use crate::nft::frame::{FoundFrameRule, FoundFrames, FrameTable};
use crate::nft::{Element, ElementChange, Set, Value};
use crate::plan::guard::layout::{
    Elements, Guard, TABLE, element_edits, is_dispensable, leads_to, shared_edits,
};
use crate::plan::guard::reason::DropReason;
use crate::plan::guard::sets::{MAC, sets, shaped};
use crate::plan::{Describe, Line};

/// So many pods that went without their elements being removed are cleaned up at once; fewer ones wait for the next full check. To remove
/// elements and chains makes whoever closes a netfilter socket at that moment wait, such as an ADD.
pub const LEFTOVERS: usize = 256;

/// The change of one guard, or of what all of them need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardChange {
    Shared(Vec<FrameEdit>),
    Add(IfName, Vec<FrameEdit>),
    Replace(IfName, Vec<FrameEdit>),
    /// Its device shall have none.
    Remove(String, Vec<FrameEdit>),
    /// The MAC is pinned to the port with this index, and no other is learned there; or no longer.
    Fix(IfName, u32, Option<Mac>),
    /// On the bridge with this index an address has the MAC of the pod for good.
    SetNeighbour(IfName, u32, Neighbour),
}

/// All sets, for [`crate::nft::Nft::frames`].
pub fn all_sets() -> Vec<Set> {
    let counters = DropReason::ALL.map(DropReason::counters);
    sets().into_iter().chain(counters).chain([shaped()]).collect()
}

/// The changes that turn `found` into `wanted`, guards with the indexes of their devices. Of `found`
/// only what is of those devices is changed, and of those that are `unwanted`, by name: the others
/// belong to other networks.
pub fn changes<'a>(
    wanted: impl Iterator<Item = &'a (Guard, u32)> + Clone,
    unwanted: &BTreeMap<String, u32>,
    found: Option<&FoundFrames>,
) -> Vec<GuardChange> {
    let none = FoundFrames::default();
    let found = found.unwrap_or(&none);
    let broken =
        broken(wanted.clone(), found).map(|table| GuardChange::Shared(shared_edits(&table)));
    let kept = wanted.filter_map(|(guard, index)| {
        let (device, chain) = (guard.device.clone(), found.chains.get(guard.device.as_str()));
        let elements = of_device(found, *index);
        let edits = || guard.edits(*index, &elements);
        match chain {
            None => Some(GuardChange::Add(device, edits())),
            Some(_) if guard.chain().is_whole(chain) && elements == guard.elements(*index) => None,
            Some(_) => Some(GuardChange::Replace(device, edits())),
        }
    });
    let removed = unwanted.iter().filter(|(name, _)| found.chains.contains_key(*name));
    let removed = removed.map(|(name, index)| {
        let mut edits = vec![FrameEdit::RemoveChain(name.clone())];
        edits.extend(element_edits(&of_device(found, *index), &Elements::new()));
        GuardChange::Remove(name.clone(), edits)
    });
    broken.into_iter().chain(kept).chain(removed).collect()
}

/// What is left of devices that are gone, `alive` are the others: their chains, where the kernel keeps
/// them, and elements; and shared chains without a jump to them.
pub fn leftovers(found: &FoundFrames, alive: &BTreeMap<u32, IfName>) -> Vec<FrameEdit> {
    let chains = dead_chains(found, alive).cloned().map(FrameEdit::RemoveChain);
    let elements = all_sets().into_iter().filter_map(|set| {
        let is_left =
            |element: &&Element| index(element).is_none_or(|index| !alive.contains_key(&index));
        let removed: BTreeSet<Element> =
            found.elements.get(&set.name)?.iter().filter(is_left).cloned().gather();
        let Set { name, shape, .. } = set;
        let change = ElementChange { set: name, shape, added: BTreeSet::new(), removed };
        (!change.removed.is_empty()).then_some(FrameEdit::Elements(change))
    });
    chains.chain(unused_chains(found, alive)).chain(elements).collect()
}

/// Shared chains for rights that no pod has any more.
fn unused_chains(found: &FoundFrames, alive: &BTreeMap<u32, IfName>) -> Vec<FrameEdit> {
    let dead: Vec<&String> = dead_chains(found, alive).collect();
    let is_unused = |name: &&String| {
        let goto = Some(leads_to((*name).clone()).fingerprint());
        let from = |dead: &&&String| found.chains[**dead].rules.iter();
        let leading = |rule: &&FoundFrameRule| rule.fingerprint == goto;
        let by_dead = dead.iter().map(|dead| from(&dead).filter(leading).count()).sum::<usize>();
        is_dispensable(name) && found.chains[*name].references == by_dead
    };
    found.chains.keys().filter(is_unused).cloned().map(FrameEdit::RemoveChain).collect()
}

/// The names of chains whose device is gone.
fn dead_chains<'a>(
    found: &'a FoundFrames,
    alive: &BTreeMap<u32, IfName>,
) -> impl Iterator<Item = &'a String> {
    let names: BTreeSet<&str> = alive.values().map(IfName::as_str).gather();
    let base = found.chains.iter().filter(|(_, chain)| chain.is_base).map(|(name, _)| name);
    base.filter(move |name| !names.contains(name.as_str()))
}

/// How many pods have left something.
pub fn left(found: &FoundFrames, alive: &BTreeMap<u32, IfName>) -> usize {
    let elements = found.elements.get(MAC).into_iter().flatten();
    let elements = elements.filter_map(index).filter(|index| !alive.contains_key(index)).count();
    elements.max(dead_chains(found, alive).count())
}

/// What guards share and is not as it should be.
fn broken<'a>(
    wanted: impl Iterator<Item = &'a (Guard, u32)>,
    found: &FoundFrames,
) -> Option<FrameTable> {
    let mut shared = FrameTable::default();
    for (guard, _) in wanted {
        if shared.chains.iter().any(|chain| guard.leads_to(&chain.name)) {
            continue;
        }
        let FrameTable { sets, chains } = guard.shared();
        let new = sets.into_iter().filter(|set| !shared.sets.contains(set));
        let new: Vec<Set> = new.collect();
        shared.sets.extend(new);
        for chain in chains {
            if !shared.chains.contains(&chain) {
                shared.chains.push(chain);
            }
        }
    }
    let is_dormant = found.is_dormant && !shared.chains.is_empty();
    let is_whole = !is_dormant
        && shared.sets.iter().all(|set| found.elements.contains_key(&set.name))
        && shared.chains.iter().all(|chain| chain.is_whole(found.chains.get(&chain.name)));
    (!is_whole).then_some(shared)
}

/// The elements of one device.
pub fn of_device(found: &FoundFrames, wanted: u32) -> Elements {
    let of = |set: Set| {
        let elements = found.elements.get(&set.name)?.iter();
        let own = elements.filter(|element| index(element) == Some(wanted)).cloned();
        Some((set.name, own.gather::<BTreeSet<Element>>()))
    };
    let of_pods = sets().into_iter().filter_map(of);
    // A map that no pod needed before is there, and has nothing of this one.
    of_pods.chain(of(shaped()).filter(|(_, own)| !own.is_empty())).gather()
}

fn index(element: &Element) -> Option<u32> {
    match element.key.first() {
        Some(Value::InterfaceIndex(index)) => Some(*index),
        _ => None,
    }
}

/// The table with the guards of all networks.
pub struct GuardTable;

impl Describe for GuardTable {
    fn line(&self) -> Line {
        Line::removed(Object::named(format!("nft table netdev {TABLE}")))
    }
}

impl Describe for GuardChange {
    fn line(&self) -> Line {
        let object = |name: &str| Object::Guard(name.to_owned());
        match self {
            GuardChange::Shared(_) => Line::added(Object::named("rules that guards of pods share")),
            GuardChange::Add(device, _) => Line::added(object(device.as_str())),
            GuardChange::Replace(device, _) => Line::changed(object(device.as_str())),
            GuardChange::Remove(name, _) => Line::removed(object(name)),
            GuardChange::Fix(name, _, Some(mac)) => {
                Line::changed(object(name.as_str())).with(format!(": port fixed to MAC {mac}"))
            }
            GuardChange::Fix(name, _, None) => {
                Line::changed(object(name.as_str())).with(": port learns MACs")
            }
            GuardChange::SetNeighbour(name, _, Neighbour { address, mac }) => {
                Line::changed(object(name.as_str())).with(format!(": {address} has MAC {mac}"))
            }
        }
    }
}
