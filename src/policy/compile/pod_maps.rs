//! Pure. Which addresses this host's pods have, and what the verdict maps hold for each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::nft::{Data, Element};
use crate::policy::compile::address::places;
use crate::policy::compile::program::PodVerdict;
use crate::policy::endpoint::Endpoint;

/// By address the verdicts of its pods, to it and from it: two pods with one address are a mistake, which
/// puts both in quarantine.
#[derive(Debug, Default)]
pub struct PodMaps {
    owners: BTreeMap<IpAddr, Vec<[PodVerdict; 2]>>,
    /// As the maps have them.
    shown: BTreeMap<IpAddr, [PodVerdict; 2]>,
    changed: BTreeSet<IpAddr>,
}

/// An element of the set or map of this name.
pub type PlacedElement = (String, Element);

impl PodMaps {
    pub fn add(&mut self, pod: &Endpoint, verdicts: &[PodVerdict; 2]) {
        for address in BTreeSet::from_iter(&pod.addresses) {
            self.owners.entry(*address).or_default().push(verdicts.clone());
            self.changed.insert(*address);
        }
    }

    pub fn remove(&mut self, pod: &Endpoint, verdicts: &[PodVerdict; 2]) {
        for address in BTreeSet::from_iter(&pod.addresses) {
            let owners = self.owners.entry(*address).or_default();
            if let Some(place) = owners.iter().position(|of| of == verdicts) {
                owners.swap_remove(place);
            }
            if owners.is_empty() {
                self.owners.remove(address);
            }
            self.changed.insert(*address);
        }
    }

    /// The elements to remove and those to add, since this was asked last.
    pub fn changed_elements(&mut self) -> (Vec<PlacedElement>, Vec<PlacedElement>) {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for address in std::mem::take(&mut self.changed) {
            let now = match self.owners.get(&address).map(Vec::as_slice) {
                Some([verdicts]) => Some(verdicts.clone()),
                _ => None,
            };
            let before = match &now {
                Some(verdicts) => self.shown.insert(address, verdicts.clone()),
                None => self.shown.remove(&address),
            };
            if before != now {
                removed.extend(before.iter().flat_map(|verdicts| elements(address, verdicts)));
                added.extend(now.iter().flat_map(|verdicts| elements(address, verdicts)));
            }
        }
        (removed, added)
    }
}

/// What the table holds of an address: verdicts, whether its pod is one without rules, and the pod's
/// connection with itself.
fn elements(address: IpAddr, verdicts: &[PodVerdict; 2]) -> Vec<PlacedElement> {
    let [to, from] = verdicts;
    let places = places(address);
    let with = |element: Element, of: &PodVerdict| Element {
        data: Some(Data::Verdict(of.verdict.clone().into())),
        ..element
    };
    let placed = places.into_iter().enumerate().filter_map(|(place, (set, element))| match place {
        0 => Some((set.name, with(element, to))),
        1 => Some((set.name, with(element, from))),
        2 if to.decides || from.decides => None,
        _ => Some((set.name, element)),
    });
    placed.collect()
}
