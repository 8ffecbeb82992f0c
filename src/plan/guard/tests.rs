//! Pure. Guards, and what is repaired.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::Guard;
use super::sets::{MAC, ND6, OWN4, SHAPED};
use super::*;
use crate::net::hash;
use crate::nft::frame::edit::FrameEdit;
use crate::nft::frame::{FoundFrameChain, FoundFrameRule, FoundFrames, FrameChain};
use crate::nft::{Element, ElementChange};
use crate::plan::profiles::Shaped;

const INDEX: u32 = 7;

fn guard() -> Guard {
    Guard {
        device: "hz1".parse().unwrap(),
        mac: "0a:58:0a:f4:01:02".parse().unwrap(),
        addresses: vec!["10.244.1.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        allowed: Vec::new(),
        routed_by: Some("0a:58:0a:f4:01:01".parse().unwrap()),
        dscp: None,
        shaped: None,
    }
}

/// As the kernel would give it back.
fn found(guards: &[(Guard, u32)]) -> FoundFrames {
    let mut found = FoundFrames::default();
    for (guard, index) in guards {
        let shared = guard.shared();
        for set in shared.sets {
            let elements = guard.elements(*index).remove(&set.name).unwrap_or_default();
            found.elements.entry(set.name).or_default().extend(elements);
        }
        let chains = shared.chains.into_iter().chain([guard.chain()]);
        found.chains.extend(chains.map(|chain| (chain.name.clone(), of_kernel(&chain))));
    }
    found
}

fn of_kernel(chain: &FrameChain) -> FoundFrameChain {
    let rules = chain.rules.iter().map(|rule| FoundFrameRule {
        fingerprint: Some(rule.fingerprint()),
        comment: Some(rule.comment.clone()),
    });
    FoundFrameChain { is_base: chain.device.is_some(), references: 0, rules: rules.collect() }
}

fn texts(guard: &Guard) -> Vec<String> {
    let shared = guard.shared().chains.pop().unwrap();
    shared.rules.iter().map(ToString::to_string).collect()
}

fn changed(guard: &Guard, found: &FoundFrames) -> Vec<GuardChange> {
    changes([(guard.clone(), INDEX)].iter(), &BTreeMap::new(), Some(found))
}

/// Whoever changes a rule raises the version: pods of both releases are on a host during an upgrade.
#[test]
fn the_shared_rules_of_a_version_stay_as_they_are() {
    let allowed = ["10.9.0.0/16", "fd09::/64", "224.0.0.18/32", "ff02::12/128"];
    let allowed = allowed.map(|network| network.parse().unwrap()).to_vec();
    let chains = [guard(), Guard { allowed, routed_by: None, ..guard() }].map(|guard| {
        let texts = texts(&guard);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        (guard.shared().chains.pop().unwrap().name, texts.len(), hash::stable(&texts))
    });
    let names = [
        ("routed-2", 23, 6485325549916674173),
        ("bridged-2-3967c0f90a35a2f1", 35, 14360881786213394204),
    ];
    assert_eq!(chains, names.map(|(name, rules, hash)| (name.to_owned(), rules, hash)));
}

/// These have no version in their names: what changes gets another name.
#[test]
fn sets_and_chains_without_a_version_stay_as_they_are() {
    let shared = guard().shared();
    let sets = shared.sets.iter().map(|set| format!("{} {:?}", set.name, set.shape));
    let chains = shared.chains.iter().filter(|chain| chain.name.starts_with("drop-"));
    let rules = chains
        .flat_map(|chain| chain.rules.iter().map(move |rule| format!("{} {rule}", chain.name)));
    let texts: Vec<String> = sets.chain(rules).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!((texts.len(), hash::stable(&texts)), (29, 16_078_985_694_855_648_478), "{texts:#?}");
}

#[test]
fn a_guard_that_is_whole_needs_nothing() {
    let (guard, device) = (guard(), guard().device);
    let kernel = found(&[(guard.clone(), INDEX)]);
    assert_eq!(changed(&guard, &kernel), []);
    let nothing = changes([(guard.clone(), INDEX)].iter(), &BTreeMap::new(), None);
    assert!(
        matches!(&nothing[..], [GuardChange::Shared(_), GuardChange::Add(_, _)]),
        "{nothing:?}"
    );
    let repaired = [GuardChange::Replace(device, vec![FrameEdit::Chain(guard.chain())])];
    for rules in [Vec::new(), vec![FoundFrameRule { fingerprint: None, comment: None }]] {
        let mut broken = kernel.clone();
        broken.chains.get_mut("hz1").unwrap().rules = rules;
        assert_eq!(changed(&guard, &broken), repaired);
    }
    let dormant = FoundFrames { is_dormant: true, ..kernel.clone() };
    assert!(matches!(&changed(&guard, &dormant)[..], [GuardChange::Shared(_)]));
    for name in ["routed-2", "drop-mac"] {
        let mut broken = kernel.clone();
        broken.chains.get_mut(name).unwrap().rules.pop();
        assert!(matches!(&changed(&guard, &broken)[..], [GuardChange::Shared(_)]), "{name}");
    }
}

#[test]
fn elements_that_are_too_many_or_missing_are_repaired() {
    let guard = guard();
    let mut kernel = found(&[(guard.clone(), INDEX)]);
    let other = Guard { addresses: vec!["10.244.1.9".parse().unwrap()], ..guard.clone() };
    let foreign = other.elements(INDEX)[OWN4].clone();
    let of_others = other.elements(8)[OWN4].clone();
    let own4 = kernel.elements.get_mut(OWN4).unwrap();
    own4.extend(foreign.iter().chain(&of_others).cloned());
    let missing = std::mem::take(kernel.elements.get_mut(MAC).unwrap());
    let [GuardChange::Replace(_, edits)] = &changed(&guard, &kernel)[..] else {
        panic!("one change")
    };
    let change = |edit: &FrameEdit| match edit {
        FrameEdit::Elements(ElementChange { set, added, removed, .. }) => {
            Some((set.clone(), added.clone(), removed.clone()))
        }
        _ => None,
    };
    let edits: Vec<(String, BTreeSet<Element>, BTreeSet<Element>)> =
        edits.iter().filter_map(change).collect();
    let wanted =
        [(OWN4.to_owned(), BTreeSet::new(), foreign), (MAC.to_owned(), missing, BTreeSet::new())];
    assert_eq!(edits, wanted);
}

#[test]
fn guards_of_other_networks_stay() {
    let other = Guard { device: "hz2".parse().unwrap(), ..guard() };
    let kernel = found(&[(guard(), INDEX), (other, 8)]);
    let gone = BTreeMap::from([("hz2".to_owned(), 8), ("hz3".to_owned(), 9)]);
    let removed = changes([].iter(), &gone, Some(&kernel));
    let [GuardChange::Remove(name, edits)] = &removed[..] else { panic!("{removed:?}") };
    assert_eq!((name.as_str(), edits.len()), ("hz2", 6));
}

#[test]
fn what_pods_left_is_what_is_of_no_device() {
    let other = Guard { device: "hz2".parse().unwrap(), ..guard() };
    let kernel = found(&[(guard(), INDEX), (other, 8)]);
    let alive = |pairs: &[(u32, &str)]| -> BTreeMap<u32, IfName> {
        pairs.iter().map(|(index, name)| (*index, name.parse().unwrap())).collect()
    };
    let both = alive(&[(INDEX, "hz1"), (8, "hz2")]);
    assert_eq!((left(&kernel, &both), leftovers(&kernel, &both)), (0, Vec::new()));
    let one = alive(&[(INDEX, "hz1")]);
    assert_eq!((left(&kernel, &one), leftovers(&kernel, &one).len()), (1, 6));
    // Another pod of the same name: its chain is its own, and the elements are not.
    let again = alive(&[(INDEX, "hz1"), (9, "hz2")]);
    assert_eq!((left(&kernel, &again), leftovers(&kernel, &again).len()), (1, 5));
}

/// Those that every network may need stay.
#[test]
fn shared_chains_without_a_jump_to_them_are_left_over() {
    let allowed = vec!["10.9.0.0/16".parse().unwrap()];
    let former = Guard { device: "hz2".parse().unwrap(), allowed, ..guard() };
    let name = former.shared().chains.pop().unwrap().name;
    let mut kernel = found(&[(guard(), INDEX), (former, 8)]);
    let alive: BTreeMap<u32, IfName> =
        [(INDEX, "hz1"), (8, "hz2")].map(|(index, name)| (index, name.parse().unwrap())).into();
    let refer = |kernel: &mut FoundFrames, references| {
        kernel.chains.get_mut(&name).unwrap().references = references;
    };
    refer(&mut kernel, 1);
    assert_eq!(leftovers(&kernel, &alive), Vec::new());
    // That of its last pod goes in the same transaction.
    let removed = |edits: Vec<FrameEdit>| edits.contains(&FrameEdit::RemoveChain(name.clone()));
    let gone = BTreeMap::from([(INDEX, "hz1".parse().unwrap())]);
    assert!(removed(leftovers(&kernel, &gone)));
    refer(&mut kernel, 2);
    assert!(!removed(leftovers(&kernel, &gone)), "a rule of somebody else leads to it");
    refer(&mut kernel, 0);
    assert_eq!(leftovers(&kernel, &alive), [FrameEdit::RemoveChain(name.clone())]);
    assert_eq!(leftovers(&found(&[(guard(), INDEX)]), &alive), Vec::new());
}

#[test]
fn packets_are_marked_before_they_are_judged_and_a_chain_of_that_goes_with_its_last_pod() {
    let marking = Guard { dscp: Some(46.try_into().unwrap()), ..guard() };
    assert_eq!(marking.chain().rules[0].to_string(), "goto dscp-46-routed-2");
    let rules = ["@ll,96,16 0x0800 ip dscp set 46", "@ll,96,16 0x86dd ip6 dscp set 46"];
    assert_eq!(texts(&marking), [&rules[..], &["goto routed-2"]].concat());
    let kernel = found(&[(guard(), INDEX)]);
    let [GuardChange::Shared(_), GuardChange::Replace(..)] = &changed(&marking, &kernel)[..] else {
        panic!("{:?}", changed(&marking, &kernel))
    };
    let mut kernel = found(&[(marking.clone(), INDEX)]);
    assert_eq!(changed(&marking, &kernel), []);
    let [GuardChange::Replace(..)] = &changed(&guard(), &kernel)[..] else { panic!("one change") };
    let alive = BTreeMap::from([(INDEX, "hz1".parse().unwrap())]);
    kernel.chains.get_mut("dscp-46-routed-2").unwrap().references = 1;
    assert_eq!(leftovers(&kernel, &alive), []);
    kernel.chains.get_mut("dscp-46-routed-2").unwrap().references = 0;
    let gone = FrameEdit::RemoveChain("dscp-46-routed-2".to_owned());
    assert_eq!(leftovers(&kernel, &alive), [gone]);
}

#[test]
fn what_a_limited_pod_sends_goes_through_its_class_and_what_others_need_is_not_changed_by_that() {
    let shaped = Guard { shaped: Some(Shaped { class: 5, device: 9 }), ..guard() };
    assert_eq!(shaped.chain().rules[0].to_string(), "goto shaped-2");
    let through = "meta priority fwd to iif map @shaped";
    assert_eq!(texts(&shaped).iter().filter(|rule| rule.ends_with(through)).count(), 5);
    assert_eq!(texts(&shaped).len(), texts(&guard()).len());
    let bridged = Guard { routed_by: None, ..shaped.clone() };
    assert_eq!(bridged.chain().rules[0].to_string(), "goto bridged-2");
    let kernel = found(&[(shaped.clone(), INDEX)]);
    assert_eq!(changed(&shaped, &kernel), []);
    let other = Guard { shaped: Some(Shaped { class: 6, device: 9 }), ..guard() };
    assert!(matches!(&changed(&other, &kernel)[..], [GuardChange::Replace(..)]));
    // Its element goes with the limit.
    let [GuardChange::Shared(_), GuardChange::Replace(_, edits)] = &changed(&guard(), &kernel)[..]
    else {
        panic!("{:?}", changed(&guard(), &kernel))
    };
    let is_removal = |edit: &FrameEdit| matches!(edit, FrameEdit::Elements(change) if change.set == SHAPED && change.removed.len() == 1);
    assert!(edits.iter().any(is_removal), "{edits:?}");
    assert!(guard().shared().sets.iter().all(|set| set.name != SHAPED));
}

#[test]
fn a_pod_without_ipv6_has_no_elements_for_it() {
    let v4 = Guard { addresses: guard().addresses[..1].to_vec(), ..guard() };
    assert!(v4.elements(INDEX)[ND6].is_empty());
    assert_eq!(guard().elements(INDEX)[ND6].len(), 2);
}

#[test]
fn unicast_goes_to_the_host_or_as_it_was_sent() {
    let set = "ether daddr set iif map @port meta pkttype set host accept";
    assert_eq!(texts(&guard()).iter().filter(|rule| rule.ends_with(set)).count(), 5);
    let bridged = Guard { routed_by: None, ..guard() };
    assert!(texts(&bridged).iter().all(|rule| !rule.contains("daddr set")));
}

#[test]
fn allowed_networks_are_sources_and_allowed_groups_destinations() {
    let allowed = ["10.9.0.0/16", "224.0.0.18/32"].map(|network| network.parse().unwrap());
    let text = texts(&Guard { allowed: allowed.to_vec(), ..guard() }).join("\n");
    assert!(text.contains("@nh,96,32 & 0xffff0000 == 0x0a090000"), "{text}");
    assert!(text.contains("@nh,128,32 0xe0000012 accept"), "{text}");
}
