//! Pure. What the table holds of one pod's address, for the plugin where no agent answers.

use std::net::IpAddr;

use crate::net::Family;
use crate::net::gather::Gather;
use crate::nft::{
    Chain, Data, Element, ElementChange, FoundTable, Set, Shape, TableEdit, Type, Value, Verdict,
};
use crate::policy::compile::name::{EPOCH_SET, JUDGED_CHAIN, numbered};

/// The sets and maps in which an address stands, each with the element of a pod without rules.
pub fn places(address: IpAddr) -> Vec<(Set, Element)> {
    let family = Family::of(address);
    let key = Element::key([Value::address(address)]);
    let open = Element { data: Some(Data::Verdict(Verdict::Return.into())), ..key.clone() };
    let pair = Element::key([Value::address(address), Value::address(address)]);
    let elements = [open.clone(), open, key, pair];
    sets(family).into_iter().zip(elements).collect()
}

/// The maps to programs, to a pod and from it; pods without rules; each pod with itself. Without elements.
///
/// An element that leads to a program makes the kernel walk through all programs: 0.9 ms with 250. Numbers of
/// programs here, and a map from these to the programs, would save that (measured on Linux 6.18: 0.95 → 0.02 ms
/// a pod). But nft(8) 1.0.6 aborts where it lists a rule that looks up what another lookup found, and with it
/// every listing of the host's rules.
pub fn sets(family: Family) -> [Set; 4] {
    let kind = Type::address(family);
    let set = |name, shape| Set { name: numbered(name, family), shape, elements: [].into() };
    [
        set("in", Shape::verdicts([kind])),
        set("out", Shape::verdicts([kind])),
        set("open", Shape::set([kind])),
        set("self", Shape::set([kind, kind])),
    ]
}

/// The table lets something through to `address`: it is in no quarantine.
pub fn has_pod(table: &FoundTable, address: IpAddr) -> bool {
    let name = numbered("in", Family::of(address));
    let mut sets = table.sets.iter().filter(|set| set.name == name);
    sets.any(|set| set.elements.iter().any(|it| *it.key == [Value::address(address)]))
}

/// The set of the present epoch. Where it has no mark the agent begins a new one.
pub fn epoch() -> Set {
    Set { name: EPOCH_SET.to_owned(), shape: Shape::set([Type::Mark]), elements: [].into() }
}

/// Every connection is judged with each packet, until the agent begins a new epoch. The table of an earlier version
/// has no such chain.
pub fn nothing_judged() -> [TableEdit; 2] {
    let judged = Chain { name: JUDGED_CHAIN.to_owned(), base: None, rules: Vec::new() };
    [TableEdit::AddChain(judged), TableEdit::Flush(JUDGED_CHAIN.to_owned())]
}

/// What opens pods with these addresses.
pub fn opened(addresses: &[IpAddr]) -> Vec<ElementChange> {
    let added = |(set, element): (Set, Element)| {
        let (set, shape) = (set.name, set.shape);
        ElementChange { set, shape, added: [element].into(), removed: [].into() }
    };
    addresses.iter().flat_map(|address| places(*address)).map(added).collect()
}

pub fn removed(set: &Set, elements: impl IntoIterator<Item = Element>) -> ElementChange {
    let (set, shape) = (set.name.clone(), set.shape.clone());
    ElementChange { set, shape, added: [].into(), removed: elements.into_iter().gather() }
}
