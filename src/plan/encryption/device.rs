//! Pure. The changes of the WireGuard device.

use ipnetwork::IpNetwork;

use crate::net::{IfName, Object, PrivateKey, Problem, ProblemKind};
use crate::netlink::link::Link;
use crate::netlink::wireguard::{KIND, WireguardInfo};
use crate::plan::tunnel::is_marked;

/// The device as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionDevice {
    pub name: IfName,
    pub key: PrivateKey,
    /// UDP port.
    pub port: u16,
    /// Of inner packets.
    pub mtu_bytes: u32,
    /// This host's addresses among its pods, with full prefix length: what it sends itself comes from one of
    /// them, because other hosts take in nothing else from it.
    pub addresses: Vec<IpNetwork>,
}

/// The device of that name as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundEncryption {
    pub link: Link,
    /// `None`: it is no WireGuard device.
    pub config: Option<WireguardInfo>,
    pub addresses: Vec<IpNetwork>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncryptionChange {
    /// Index and name.
    Delete(u32, IfName),
    /// With this MTU in bytes.
    Create(u32),
    /// Set our alias.
    Mark,
    /// Take it out of a bond or a VRF.
    Detach,
    /// In bytes.
    SetMtu(u32),
    /// Key, and this UDP port.
    Configure(u16),
    SetUp,
    /// An address that is not wanted.
    RemoveAddress(IpNetwork),
    AddAddress(IpNetwork),
}

/// The steps that turn what is found into `wanted`, in the order to take them.
///
/// `others`: further WireGuard devices of this host; one of ours among them was renamed, and has the port.
///
/// # Errors
/// [`ProblemKind::ForeignLink`] if the name belongs to somebody else.
pub fn changes(
    wanted: &EncryptionDevice,
    found: Option<&FoundEncryption>,
    others: &[Link],
) -> Result<Vec<EncryptionChange>, Box<Problem>> {
    let mut changes = removals(others);
    let Some(found) = found else {
        changes.extend([
            EncryptionChange::Create(wanted.mtu_bytes),
            EncryptionChange::Configure(wanted.port),
            EncryptionChange::SetUp,
        ]);
        changes.extend(readdress(wanted, &[]));
        return Ok(changes);
    };
    let Some(config) = &found.config else { return Err(foreign(&found.link).into()) };
    changes.extend(repairs(wanted, &found.link, config));
    changes.extend(readdress(wanted, &found.addresses));
    Ok(changes)
}

/// The steps that remove those of `found` with our alias.
pub fn removals(found: &[Link]) -> Vec<EncryptionChange> {
    let ours = found.iter().filter(|link| link.kind.as_deref() == Some(KIND) && is_marked(link));
    ours.map(|link| EncryptionChange::Delete(link.index, link.name.clone())).collect()
}

fn repairs(
    wanted: &EncryptionDevice,
    link: &Link,
    config: &WireguardInfo,
) -> Vec<EncryptionChange> {
    let mut changes = Vec::new();
    if !is_marked(link) {
        changes.push(EncryptionChange::Mark);
    }
    if link.master.is_some() {
        changes.push(EncryptionChange::Detach);
    }
    if link.mtu != wanted.mtu_bytes {
        changes.push(EncryptionChange::SetMtu(wanted.mtu_bytes));
    }
    let is_right = config.private_key.as_ref() == Some(&wanted.key);
    if !is_right || (config.port, config.mark) != (wanted.port, 0) {
        changes.push(EncryptionChange::Configure(wanted.port));
    }
    if !link.up {
        changes.push(EncryptionChange::SetUp);
    }
    changes
}

fn readdress(wanted: &EncryptionDevice, found: &[IpNetwork]) -> Vec<EncryptionChange> {
    let stale = found.iter().filter(|address| !wanted.addresses.contains(address));
    let missing = wanted.addresses.iter().filter(|address| !found.contains(address));
    let remove = stale.map(|address| EncryptionChange::RemoveAddress(*address));
    remove.chain(missing.map(|address| EncryptionChange::AddAddress(*address))).collect()
}

fn foreign(link: &Link) -> Problem {
    let kind = link.kind.as_deref().unwrap_or("physical device");
    let what = format!("interface {} exists and is a {kind}", link.name);
    let problem = Problem::new(ProblemKind::ForeignLink, Object::Tunnel(link.name.clone()), what);
    problem.with_fix(format!(
        "ip link show {} # remove or rename it, for encryption needs its name",
        link.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Describe;
    use crate::plan::encryption::device_name;
    use crate::plan::tunnel::ALIAS;

    fn wanted() -> EncryptionDevice {
        EncryptionDevice {
            name: device_name(),
            key: PrivateKey::of_random([5; 32]),
            port: 10401,
            mtu_bytes: 1440,
            addresses: vec!["10.244.1.1/32".parse().unwrap()],
        }
    }

    fn right() -> FoundEncryption {
        let EncryptionDevice { name, key, port, mtu_bytes, addresses } = wanted();
        let link = Link {
            index: 7,
            name,
            kind: Some(KIND.to_owned()),
            mac: None,
            mtu: mtu_bytes,
            up: true,
            oper_up: true,
            carrier: true,
            master: None,
            peer_index: None,
            alias: Some(ALIAS.to_owned()),
            group: 0,
            port: None,
            delays_ports: false,
            vxlan: None,
        };
        let config = WireguardInfo { private_key: Some(key), port, ..WireguardInfo::default() };
        FoundEncryption { link, config: Some(config), addresses }
    }

    fn check(found: Option<FoundEncryption>, others: &[Link], expected: &[&str]) {
        let changes = changes(&wanted(), found.as_ref(), others).unwrap();
        let name = device_name();
        let line = |change| (&name, change).line().to_string();
        let lines: Vec<String> = changes.iter().map(line).collect();
        assert_eq!(lines, expected);
        assert!(lines.iter().all(|line| !line.contains("BQUF")), "the key is shown nowhere");
    }

    #[test]
    fn a_device_that_is_right_stays() {
        check(Some(right()), &[], &[]);
    }

    #[test]
    fn a_device_gets_its_key_before_it_is_up() {
        check(
            None,
            &[],
            &[
                "+ tunnel humanz-wg (encrypted, mtu 1440)",
                "~ tunnel humanz-wg: key and port 10401",
                "~ tunnel humanz-wg: up",
                "+ address 10.244.1.1/32 on tunnel humanz-wg",
            ],
        );
    }

    #[test]
    fn what_was_changed_by_hand_is_repaired() {
        let mut found = right();
        found.link = Link { mtu: 1420, up: false, alias: None, master: Some(3), ..found.link };
        found.addresses = vec!["192.0.2.77/24".parse().unwrap()];
        check(
            Some(found),
            &[],
            &[
                "~ tunnel humanz-wg: alias \"humanz tunnel\"",
                "~ tunnel humanz-wg: nomaster",
                "~ tunnel humanz-wg: mtu 1440",
                "~ tunnel humanz-wg: up",
                "- address 192.0.2.77/24 on tunnel humanz-wg",
                "+ address 10.244.1.1/32 on tunnel humanz-wg",
            ],
        );
    }

    #[test]
    fn another_key_port_or_mark_is_replaced() {
        let config = right().config.unwrap();
        for config in [
            WireguardInfo { private_key: None, ..config.clone() },
            WireguardInfo { private_key: Some(PrivateKey::of_random([6; 32])), ..config.clone() },
            WireguardInfo { port: 51820, ..config.clone() },
            WireguardInfo { mark: 1, ..config.clone() },
        ] {
            let found = FoundEncryption { config: Some(config), ..right() };
            check(Some(found), &[], &["~ tunnel humanz-wg: key and port 10401"]);
        }
    }

    #[test]
    fn a_device_of_ours_that_was_renamed_goes_and_others_stay() {
        let renamed = Link { index: 9, name: "wg9".parse().unwrap(), ..right().link };
        let foreign = Link { alias: None, ..renamed.clone() };
        check(Some(right()), &[foreign, renamed], &["- tunnel wg9"]);
    }

    #[test]
    fn a_link_of_another_kind_with_the_name_is_left_alone() {
        let mut found = right();
        found.link.kind = Some("dummy".to_owned());
        found.config = None;
        let refused = changes(&wanted(), Some(&found), &[]).unwrap_err();
        assert!(refused.what.contains("exists and is a dummy"), "{refused}");
    }
}
