//! Pure. The changes of a tunnel device.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, Mac, Object, Problem, ProblemKind};
use crate::netlink::link::Link;
use crate::netlink::vxlan::VxlanInfo;

/// The alias that marks a tunnel device.
pub const ALIAS: &str = "humanz tunnel";

/// The device as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelDevice {
    pub name: IfName,
    /// Published to the other hosts.
    pub mac: Mac,
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// Of this host; its family is that of the outer packets.
    pub local: IpAddr,
    /// Of inner packets.
    pub mtu_bytes: u32,
    /// This host's addresses among its pods, with full prefix length. What is masqueraded into the
    /// tunnel (kube-proxy) gets one of them, to which the other hosts have a route; any other address
    /// of this host they would answer outside the tunnel, from a pod's address.
    pub addresses: Vec<IpNetwork>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelChange {
    /// Index and name.
    Delete(u32, IfName),
    Create(TunnelDevice),
    /// Set our alias.
    Mark(IfName),
    /// Take it out of a bridge, a bond or a VRF.
    Detach(IfName),
    /// Set the local address, and disable learning.
    Set(IfName, IpAddr),
    SetMac(IfName, Mac),
    /// In bytes.
    SetMtu(IfName, u32),
    SetUp(TunnelDevice),
    /// An address that is not wanted.
    RemoveAddress(IfName, IpNetwork),
    AddAddress(IfName, IpNetwork),
}

/// The steps that turn what is found into `wanted`, in the order to take them.
///
/// `found` are the VXLAN devices of the host and the device of that name, `addresses` those of the
/// latter. A VXLAN device of that name without an alias is one of ours that somebody recreated, and one
/// with our identifier, port and MAC is ours whatever its alias; one of ours under another name was
/// renamed, and is in conflict. Identifier, port and family of a device cannot change: it is replaced.
///
/// # Errors
/// [`ProblemKind::ForeignLink`] if the name belongs to somebody else.
pub fn changes(
    wanted: &TunnelDevice,
    found: &[Link],
    addresses: &[IpNetwork],
) -> Result<Vec<TunnelChange>, Box<Problem>> {
    let conflicts = found.iter().filter(|link| is_in_conflict(wanted, link));
    let mut changes: Vec<TunnelChange> = conflicts.map(delete).collect();
    let Some(link) = found.iter().find(|link| link.name == wanted.name) else {
        changes.extend(creation(wanted));
        return Ok(changes);
    };
    refuse_foreign(wanted, link)?;
    let right = link.vxlan.filter(|vxlan| same_kind(wanted, vxlan));
    match right {
        Some(vxlan) => {
            changes.extend(repairs(wanted, link, &vxlan));
            changes.extend(readdress(wanted, addresses));
        }
        None => {
            changes.push(TunnelChange::Delete(link.index, link.name.clone()));
            changes.extend(creation(wanted));
        }
    }
    Ok(changes)
}

/// The steps that remove those of `found` with our alias.
pub fn removals<'a>(found: impl IntoIterator<Item = &'a Link>) -> Vec<TunnelChange> {
    let ours = found.into_iter().filter(|link| link.vxlan.is_some() && is_marked(link));
    ours.map(delete).collect()
}

fn delete(link: &Link) -> TunnelChange {
    TunnelChange::Delete(link.index, link.name.clone())
}

fn creation(wanted: &TunnelDevice) -> Vec<TunnelChange> {
    let mut changes =
        vec![TunnelChange::Create(wanted.clone()), TunnelChange::SetUp(wanted.clone())];
    changes.extend(readdress(wanted, &[]));
    changes
}

fn readdress(wanted: &TunnelDevice, found: &[IpNetwork]) -> Vec<TunnelChange> {
    let name = || wanted.name.clone();
    let stale = found.iter().filter(|address| !wanted.addresses.contains(address));
    let missing = wanted.addresses.iter().filter(|address| !found.contains(address));
    let remove = stale.map(|address| TunnelChange::RemoveAddress(name(), *address));
    remove.chain(missing.map(|address| TunnelChange::AddAddress(name(), *address))).collect()
}

fn is_in_conflict(wanted: &TunnelDevice, link: &Link) -> bool {
    let same_family = |vxlan: &VxlanInfo| family(vxlan) == Some(Family::of(wanted.local));
    let is_ours = is_marked(link) || is_as_made(wanted, link);
    link.name != wanted.name && is_ours && link.vxlan.as_ref().is_some_and(same_family)
}

/// No other program makes a device with our identifier, port and MAC.
fn is_as_made(wanted: &TunnelDevice, link: &Link) -> bool {
    link.mac == Some(wanted.mac) && link.vxlan.is_some_and(|vxlan| same_kind(wanted, &vxlan))
}

fn refuse_foreign(wanted: &TunnelDevice, link: &Link) -> Result<(), Box<Problem>> {
    if is_as_made(wanted, link) {
        return Ok(());
    }
    let what = match (link.kind.as_deref(), link.alias.as_deref()) {
        (Some("vxlan"), None | Some(ALIAS)) => return Ok(()),
        (Some("vxlan"), Some(alias)) => format!("marked as {alias:?}"),
        (Some(kind), _) => format!("a {kind}"),
        (None, _) => "a physical device".to_owned(),
    };
    let what = format!("interface {} exists and is {what}", link.name);
    let problem = Problem::new(ProblemKind::ForeignLink, Object::Tunnel(link.name.clone()), what);
    let fix = format!(
        "ip link show {} # remove or rename it, or set BACKEND=direct, for the tunnel needs its name",
        link.name
    );
    Err(problem.with_fix(fix).into())
}

fn same_kind(wanted: &TunnelDevice, found: &VxlanInfo) -> bool {
    let VxlanInfo { vni, port, checksums, special, .. } = *found;
    (vni, port, checksums, special) == (wanted.vni, wanted.port, true, false)
        && family(found) == Some(Family::of(wanted.local))
}

fn family(vxlan: &VxlanInfo) -> Option<Family> {
    vxlan.local.map(Family::of)
}

/// The link has our alias.
pub fn is_marked(link: &Link) -> bool {
    link.alias.as_deref() == Some(ALIAS)
}

fn repairs(wanted: &TunnelDevice, link: &Link, vxlan: &VxlanInfo) -> Vec<TunnelChange> {
    let name = || wanted.name.clone();
    let mut changes = Vec::new();
    if !is_marked(link) {
        changes.push(TunnelChange::Mark(name()));
    }
    if link.master.is_some() {
        changes.push(TunnelChange::Detach(name()));
    }
    if vxlan.local != Some(wanted.local) || vxlan.learning {
        changes.push(TunnelChange::Set(name(), wanted.local));
    }
    if link.mac != Some(wanted.mac) {
        changes.push(TunnelChange::SetMac(name(), wanted.mac));
    }
    if link.mtu != wanted.mtu_bytes {
        changes.push(TunnelChange::SetMtu(name(), wanted.mtu_bytes));
    }
    if !link.up {
        changes.push(TunnelChange::SetUp(wanted.clone()));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Describe;

    fn wanted() -> TunnelDevice {
        TunnelDevice {
            name: "humanz-vx4".parse().unwrap(),
            mac: "0a:58:0a:f4:01:00".parse().unwrap(),
            vni: 104,
            port: 10400,
            local: "192.0.2.1".parse().unwrap(),
            mtu_bytes: 1450,
            addresses: vec!["10.244.1.1/32".parse().unwrap()],
        }
    }

    fn right() -> Link {
        let TunnelDevice { name, mac, vni, port, local, mtu_bytes, .. } = wanted();
        let vxlan = VxlanInfo {
            vni,
            port,
            local: Some(local),
            learning: false,
            checksums: true,
            special: false,
        };
        Link {
            index: 7,
            name,
            kind: Some("vxlan".to_owned()),
            mac: Some(mac),
            mtu: mtu_bytes,
            up: true,
            oper_up: false,
            carrier: true,
            master: None,
            peer_index: None,
            alias: Some(ALIAS.to_owned()),
            group: 0,
            port: None,
            delays_ports: false,
            vxlan: Some(vxlan),
        }
    }

    fn check(found: &[Link], expected: &[&str]) {
        check_addresses(found, &["10.244.1.1/32"], expected);
    }

    fn check_addresses(found: &[Link], addresses: &[&str], expected: &[&str]) {
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let changes = changes(&wanted(), found, &addresses).unwrap();
        let lines: Vec<String> = changes.iter().map(|change| change.line().to_string()).collect();
        assert_eq!(lines, expected);
    }

    const MADE: [&str; 3] = [
        "+ tunnel humanz-vx4 (vni 104, port 10400, local 192.0.2.1, mac 0a:58:0a:f4:01:00, mtu 1450)",
        "~ tunnel humanz-vx4: up",
        "+ address 10.244.1.1/32 on tunnel humanz-vx4",
    ];

    #[test]
    fn a_correct_device_is_not_changed_and_a_missing_one_created() {
        check(&[right()], &[]);
        check(&[], &MADE);
    }

    #[test]
    fn every_setting_that_can_change_is_set() {
        let mut found = right();
        found.mac = None;
        found.mtu = 1500;
        found.up = false;
        found.alias = None;
        found.vxlan.as_mut().unwrap().learning = true;
        check(
            &[found],
            &[
                "~ tunnel humanz-vx4: alias \"humanz tunnel\"",
                "~ tunnel humanz-vx4: local 192.0.2.1, no learning",
                "~ tunnel humanz-vx4: mac 0a:58:0a:f4:01:00",
                "~ tunnel humanz-vx4: mtu 1450",
                "~ tunnel humanz-vx4: up",
            ],
        );
    }

    #[test]
    fn another_address_of_this_host_is_set_in_place() {
        let mut found = right();
        found.vxlan.as_mut().unwrap().local = "192.0.2.9".parse().ok();
        check(&[found], &["~ tunnel humanz-vx4: local 192.0.2.1, no learning"]);
    }

    #[test]
    fn it_has_the_address_of_its_subnet_and_no_other() {
        check_addresses(&[right()], &[], &[MADE[2]]);
        let stale = "- address 10.244.9.1/32 on tunnel humanz-vx4";
        check_addresses(&[right()], &["10.244.9.1/32"], &[stale, MADE[2]]);
    }

    #[test]
    fn a_device_is_replaced_where_it_cannot_change() {
        let changes: [fn(&mut VxlanInfo); 6] = [
            |vxlan| vxlan.vni = 7,
            |vxlan| vxlan.port = 8472,
            |vxlan| vxlan.local = None,
            |vxlan| vxlan.local = "2001:db8::1".parse().ok(),
            |vxlan| vxlan.checksums = false,
            |vxlan| vxlan.special = true,
        ];
        for change in changes {
            let mut found = right();
            change(found.vxlan.as_mut().unwrap());
            check(&[found], &["- tunnel humanz-vx4", MADE[0], MADE[1], MADE[2]]);
        }
    }

    #[test]
    fn a_renamed_device_is_in_conflict_and_a_foreign_one_is_not() {
        let renamed = Link { name: "foo".parse().unwrap(), ..right() };
        check(std::slice::from_ref(&renamed), &["- tunnel foo", MADE[0], MADE[1], MADE[2]]);
        let foreign = "02:00:00:00:00:01".parse().ok();
        check(&[Link { alias: None, mac: foreign, ..renamed }], &MADE);
    }

    #[test]
    fn a_device_of_ours_with_another_alias_is_ours() {
        let edited = Link { alias: Some("mine".to_owned()), ..right() };
        check(std::slice::from_ref(&edited), &["~ tunnel humanz-vx4: alias \"humanz tunnel\""]);
        let renamed = Link { name: "foo".parse().unwrap(), ..edited.clone() };
        check(&[renamed], &["- tunnel foo", MADE[0], MADE[1], MADE[2]]);
        let other_mac = Link { mac: "02:00:00:00:00:01".parse().ok(), ..edited };
        assert!(changes(&wanted(), &[other_mac], &[]).is_err());
    }

    #[test]
    fn a_device_that_somebody_put_into_a_bridge_is_taken_out() {
        check(&[Link { master: Some(3), ..right() }], &["~ tunnel humanz-vx4: nomaster"]);
    }

    #[test]
    fn the_device_of_the_other_family_stays() {
        let mut other = Link { name: "humanz-vx6".parse().unwrap(), ..right() };
        other.vxlan.as_mut().unwrap().local = "2001:db8::1".parse().ok();
        check(&[other, right()], &[]);
    }

    #[test]
    fn a_foreign_device_is_refused_with_its_kind() {
        for (kind, alias, what) in [
            (Some("dummy"), None, "a dummy"),
            (None, None, "a physical device"),
            (Some("vxlan"), Some("mine"), "marked as \"mine\""),
        ] {
            let (kind, alias) = (kind.map(str::to_owned), alias.map(str::to_owned));
            let mac = "02:00:00:00:00:01".parse().ok();
            let found = [Link { kind, alias, mac, ..right() }];
            let error = changes(&wanted(), &found, &[]).unwrap_err();
            assert_eq!(error.kind, ProblemKind::ForeignLink);
            assert_eq!(error.what, format!("interface humanz-vx4 exists and is {what}"));
        }
    }

    #[test]
    fn only_devices_with_our_alias_are_removed() {
        let lines = |found: &[Link]| removals(found).len();
        assert_eq!(lines(&[right()]), 1);
        assert_eq!(lines(&[Link { alias: None, ..right() }]), 0);
        assert_eq!(lines(&[Link { vxlan: None, ..right() }]), 0);
    }
}
