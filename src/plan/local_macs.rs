//! Pure. The MACs of a bridge and of its pods' ports, for which the bridge hands frames to the host. The guard gives
//! what a pod sends that of its own port: whoever gets the frames for it gets all of that, unseen by any rule.

use crate::net::{IfName, Mac};
use crate::netlink::fdb::{BridgeEntry, EntryKind};
use crate::netlink::link::Link;
use crate::plan::ownership::is_of_pod;

/// A bridge sends frames for the MAC of one of its links elsewhere, or everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostMac {
    /// A pod's port, or the bridge itself.
    pub link: IfName,
    pub index: u32,
    pub mac: Mac,
    pub is_bridge: bool,
    /// The port that gets them; `None`: there is no entry.
    pub taken_by: Option<IfName>,
}

/// What `bridge`, one of `links`, has lost of its own `entries`.
///
/// A port has the same entry in each of its VLANs and outside of them; who takes one takes the latter.
pub fn lost(bridge: u32, links: &[Link], entries: &[BridgeEntry]) -> Vec<LostMac> {
    let is_concerned =
        |link: &&Link| link.index == bridge || (link.master == Some(bridge) && is_of_pod(link));
    let lost = |link: &Link| {
        let mac = link.mac?;
        let found = entry_of(entries, mac);
        let name = |index: u32| links.iter().find(|link| link.index == index);
        (found.map(|entry| entry.kind) != Some(EntryKind::Local)).then(|| LostMac {
            link: link.name.clone(),
            index: link.index,
            mac,
            is_bridge: link.index == bridge,
            taken_by: found.and_then(|entry| Some(name(entry.link)?.name.clone())),
        })
    };
    links.iter().filter(is_concerned).filter_map(lost).collect()
}

/// The entry of a MAC outside of VLANs.
pub fn entry_of(entries: &[BridgeEntry], mac: Mac) -> Option<&BridgeEntry> {
    entries.iter().find(|entry| entry.mac == mac && entry.vlan.is_none())
}

/// `mac` is that of one of these links of the host: no pod has it.
pub fn is_of_host(links: &[Link], mac: Mac) -> bool {
    links.iter().any(|link| link.mac == Some(mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(last: u8) -> Mac {
        Mac([0x0a, 0x56, 0, 0, 0, last])
    }

    /// A bridge (1) with the ports of two pods (2, 3) and one of somebody else (4); the last byte of each MAC is its
    /// index.
    fn links() -> Vec<Link> {
        let link = |index: u8, kind: &str, alias: &str| Link {
            index: index.into(),
            name: format!("l{index}").parse().unwrap(),
            kind: Some(kind.to_owned()),
            mac: Some(mac(index)),
            mtu: 1500,
            up: true,
            oper_up: true,
            carrier: true,
            master: (index > 1).then_some(1),
            peer_index: None,
            alias: Some(alias.to_owned()),
            group: 0,
            port: None,
            delays_ports: false,
            vxlan: None,
        };
        vec![
            link(1, "bridge", "humanz bridge"),
            link(2, "veth", "humanz humanz a eth0"),
            link(3, "veth", "humanz other b eth0"),
            link(4, "veth", "of somebody"),
        ]
    }

    fn entry(of: u8, link: u32, kind: EntryKind) -> BridgeEntry {
        BridgeEntry { mac: mac(of), link, kind, vlan: None }
    }

    /// With these entries in place of the ones that the kernel makes: the links that have lost their MAC, and the link that
    /// has it.
    fn check(changed: &[BridgeEntry], expected: &[(&str, Option<&str>)]) {
        let is_changed = |of: u8| changed.iter().any(|entry| entry.mac == mac(of));
        let own = (1..=4).filter(|of| !is_changed(*of));
        let mut entries: Vec<BridgeEntry> =
            own.map(|of| entry(of, of.into(), EntryKind::Local)).collect();
        entries.extend(changed.iter().copied().filter(|entry| entry.link != 0));
        let lost = lost(1, &links(), &entries);
        let text = |lost: &LostMac| {
            (lost.link.to_string(), lost.taken_by.as_ref().map(ToString::to_string))
        };
        let expected: Vec<_> =
            expected.iter().map(|(link, by)| ((*link).to_owned(), by.map(str::to_owned))).collect();
        assert_eq!(lost.iter().map(text).collect::<Vec<_>>(), expected);
        assert!(lost.iter().all(|lost| lost.is_bridge == (lost.index == 1)));
    }

    #[test]
    fn what_the_kernel_makes_is_whole() {
        check(&[], &[]);
    }

    #[test]
    fn a_mac_that_is_pinned_to_another_port_is_lost_to_it() {
        check(&[entry(2, 3, EntryKind::Pinned)], &[("l2", Some("l3"))]);
        check(&[entry(1, 3, EntryKind::Pinned)], &[("l1", Some("l3"))]);
        check(&[entry(3, 4, EntryKind::Learned)], &[("l3", Some("l4"))]);
    }

    /// Link 0 stands for no entry.
    #[test]
    fn a_mac_without_an_entry_is_lost() {
        check(&[entry(2, 0, EntryKind::Local)], &[("l2", None)]);
    }

    #[test]
    fn two_ports_with_one_mac_have_one_entry() {
        check(&[entry(2, 3, EntryKind::Local)], &[]);
    }

    #[test]
    fn ports_of_others_are_left_alone() {
        check(&[entry(4, 2, EntryKind::Pinned)], &[]);
    }

    #[test]
    fn the_entry_in_a_vlan_is_not_looked_at() {
        let in_vlan = |kind| BridgeEntry { vlan: Some(7), ..entry(2, 3, kind) };
        let own = entry(2, 2, EntryKind::Local);
        check(&[in_vlan(EntryKind::Learned), own], &[]);
        check(&[in_vlan(EntryKind::Local), entry(2, 3, EntryKind::Pinned)], &[("l2", Some("l3"))]);
    }

    #[test]
    fn a_mac_of_any_link_is_the_hosts() {
        assert!(is_of_host(&links(), mac(4)));
        assert!(!is_of_host(&links(), mac(5)));
    }
}
