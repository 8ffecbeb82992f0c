//! Pure. Which VLANs a pod's bridge port should be in.

use std::fmt;
use std::ops::RangeInclusive;

use crate::cni::config::VlanConf;
use crate::netlink::bridge_vlan::{PortVlans, VlanMembership};

/// One step, of VLANs that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanChange {
    Add(RangeInclusive<u16>, VlanMembership),
    Remove(RangeInclusive<u16>),
}

/// The VLANs of a port that is in `found` now, as a new port is in the bridge's default VLAN.
pub fn wanted(conf: &VlanConf, found: &PortVlans) -> PortVlans {
    if !conf.is_any() {
        return found.clone();
    }
    let mut wanted = PortVlans::new();
    for (vlan, membership) in found.iter().filter(|(_, membership)| membership.untagged) {
        if conf.keeps_default {
            let pvid = membership.pvid && conf.access.is_none();
            wanted.insert(*vlan, VlanMembership { pvid, ..*membership });
        }
    }
    for vlan in &conf.trunk {
        wanted.entry(*vlan).or_default();
    }
    if let Some(access) = conf.access {
        wanted.insert(access, VlanMembership { pvid: true, untagged: true });
    }
    wanted
}

/// The steps from `found` to `wanted`. The kernel takes a `pvid` in no range.
pub fn changes(wanted: &PortVlans, found: &PortVlans) -> Vec<VlanChange> {
    let gone = found.keys().filter(|vlan| !wanted.contains_key(vlan));
    let gone = ranges(gone.map(|vlan| (*vlan, VlanMembership::default())));
    // A VLAN that stops to be the pvid does so as another one becomes it.
    let differs = |(vlan, wanted): &(&u16, &VlanMembership)| match found.get(vlan) {
        Some(found) => found.untagged != wanted.untagged || !found.pvid && wanted.pvid,
        None => true,
    };
    let missing = wanted.iter().filter(differs).map(|(vlan, membership)| (*vlan, *membership));
    let add = ranges(missing).into_iter().map(|(range, how)| VlanChange::Add(range, how));
    let remove = gone.into_iter().map(|(range, _)| VlanChange::Remove(range));
    add.chain(remove).collect()
}

/// Neighbouring VLANs that are alike together; a `pvid` stands alone.
fn ranges(
    vlans: impl Iterator<Item = (u16, VlanMembership)>,
) -> Vec<(RangeInclusive<u16>, VlanMembership)> {
    let mut ranges: Vec<(RangeInclusive<u16>, VlanMembership)> = Vec::new();
    for (vlan, membership) in vlans {
        match ranges.last_mut() {
            Some((range, last))
                if *last == membership && !membership.pvid && range.end() + 1 == vlan =>
            {
                *range = *range.start()..=vlan;
            }
            _ => ranges.push((vlan..=vlan, membership)),
        }
    }
    ranges
}

/// VLANs as `bridge vlan` shows them, in one line.
pub struct ShownVlans<'a>(pub &'a PortVlans);

impl fmt::Display for ShownVlans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let all = ranges(self.0.iter().map(|(vlan, membership)| (*vlan, *membership)));
        for (place, (range, membership)) in all.iter().enumerate() {
            f.write_str(if place > 0 { ", " } else { "" })?;
            write!(f, "{}", range.start())?;
            if range.start() != range.end() {
                write!(f, "-{}", range.end())?;
            }
            f.write_str(if membership.pvid { " PVID" } else { "" })?;
            f.write_str(if membership.untagged { " untagged" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PVID: VlanMembership = VlanMembership { pvid: true, untagged: true };
    const UNTAGGED: VlanMembership = VlanMembership { pvid: false, untagged: true };
    const TAGGED: VlanMembership = VlanMembership { pvid: false, untagged: false };

    fn conf(access: Option<u16>, trunk: &[u16], keeps_default: bool) -> VlanConf {
        VlanConf { access, trunk: trunk.iter().copied().collect(), keeps_default, gateway: None }
    }

    /// What a port of `found` is in afterwards by `changes`, as the kernel carries them out.
    fn carried_out(changes: &[VlanChange], found: &PortVlans) -> PortVlans {
        let mut vlans = found.clone();
        for change in changes {
            match change {
                VlanChange::Add(range, how) => {
                    for vlan in range.clone() {
                        if how.pvid {
                            assert_eq!(range.start(), range.end(), "a pvid is no range");
                            vlans.values_mut().for_each(|other| other.pvid = false);
                        }
                        vlans.insert(vlan, *how);
                    }
                }
                VlanChange::Remove(range) => vlans.retain(|vlan, _| !range.contains(vlan)),
            }
        }
        vlans
    }

    #[test]
    fn every_port_becomes_what_it_should_be_in_a_few_steps() {
        let new = PortVlans::from([(1, PVID)]);
        for (conf, expected) in [
            (conf(Some(100), &[], false), "100 PVID untagged"),
            (conf(Some(100), &[], true), "1 untagged, 100 PVID untagged"),
            (conf(Some(1), &[], false), "1 PVID untagged"),
            (conf(None, &[200, 201, 202, 300], true), "1 PVID untagged, 200-202, 300"),
            (conf(None, &[200, 201], false), "200-201"),
            (conf(None, &[1, 2], true), "1 PVID untagged, 2"),
            (conf(None, &[1, 2], false), "1-2"),
            (conf(Some(5), &[4, 6], false), "4, 5 PVID untagged, 6"),
            (conf(None, &[], false), "1 PVID untagged"),
        ] {
            let wanted = wanted(&conf, &new);
            assert_eq!(ShownVlans(&wanted).to_string(), expected, "{conf:?}");
            let changes = changes(&wanted, &new);
            assert!(changes.len() <= 4, "{changes:?}");
            assert_eq!(carried_out(&changes, &new), wanted, "{conf:?}: {changes:?}");
        }
    }

    #[test]
    fn a_port_as_it_should_be_needs_no_change_and_a_foreign_vlan_is_one() {
        let conf = conf(Some(100), &[], false);
        let right = PortVlans::from([(100, PVID)]);
        assert_eq!(wanted(&conf, &right), right);
        for wrong in [
            PortVlans::new(),
            PortVlans::from([(100, TAGGED)]),
            PortVlans::from([(100, UNTAGGED)]),
            PortVlans::from([(100, PVID), (200, TAGGED)]),
            PortVlans::from([(1, UNTAGGED), (100, PVID)]),
        ] {
            assert_ne!(wanted(&conf, &wrong), wrong);
            let changes = changes(&wanted(&conf, &wrong), &wrong);
            assert_eq!(carried_out(&changes, &wrong), right, "{wrong:?}: {changes:?}");
        }
    }
}
