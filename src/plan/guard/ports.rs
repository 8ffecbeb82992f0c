//! Pure. The ports of a network's pods, as the host has them: for guards that no configuration of a
//! runtime describes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::ipam::StoreEntry;
use crate::net::Mac;
use crate::net::gather::Gather;
use crate::netlink::link::Link;
use crate::netlink::neighbour::{NeighbourState, NudState};
use crate::plan::guard::layout::Guard;
use crate::plan::pod::{BridgePort, LinkIdentity, is_of_network};

/// What is known of a host's pods, for guards that no configuration of a runtime describes.
#[derive(Debug)]
pub struct FoundPorts<'a> {
    pub links: &'a [Link],
    pub entries: &'a [StoreEntry],
    /// MACs pinned to ports, with the index of the port.
    pub pinned: &'a [(Mac, u32)],
    /// On the bridge.
    pub neighbours: &'a [NeighbourState],
}

/// A port of the bridge that belongs to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPort<'a> {
    pub link: &'a Link,
    pub mac: Mac,
    pub addresses: Vec<IpAddr>,
    /// The MAC is pinned to the port, and the bridge learns none there.
    pub is_fixed: bool,
    /// Those of its addresses without a permanent neighbour entry.
    pub unset: Vec<IpAddr>,
}

impl PodPort<'_> {
    /// Its guard in a network that allows `allowed` and whose host `routes` between pods.
    pub fn guard(&self, allowed: &[IpNetwork], routes: bool) -> Guard {
        let alias = self.link.alias.as_deref().unwrap_or_default();
        let routes = routes && !BridgePort::of_alias(alias).isolated;
        Guard {
            device: self.link.name.clone(),
            mac: self.mac,
            addresses: self.addresses.clone(),
            allowed: allowed.to_vec(),
            routed_by: self.link.mac.filter(|_| routes),
            dscp: None,
            shaped: None,
        }
    }
}

/// The ports of `network` on the bridge `bridge` that are up (others belong to an ADD), and those links whose addresses are not known.
///
/// A pod's MAC is the pinned one. Of a port that an older release attached there is none: then it is
/// the one that the host has used so far, unless that is somebody else's; else the one that follows
/// from the first address. It is never that of the
/// bridge or of a port itself: a release before pinned those, too, if a pod asked for one.
pub fn ports<'a>(
    network: &str,
    bridge: &Link,
    found: &FoundPorts<'a>,
) -> (Vec<PodPort<'a>>, Vec<&'a Link>) {
    let of_network = |link: &&Link| {
        link.up
            && link.master == Some(bridge.index)
            && is_of_network(link.alias.as_deref(), network)
    };
    let derived: BTreeSet<Mac> = found
        .entries
        .iter()
        .filter_map(|entry| entry.addresses.first())
        .map(|first| Mac::of_address(*first))
        .gather();
    let (mut ports, mut unknown) = (Vec::new(), Vec::new());
    let of_bridge = |link: &&Link| link.index == bridge.index || link.master == Some(bridge.index);
    let of_host: BTreeSet<Mac> =
        found.links.iter().filter(of_bridge).filter_map(|link| link.mac).gather();
    for link in found.links.iter().filter(of_network) {
        let owner = |entry: &&StoreEntry| {
            let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
            LinkIdentity { network, container_id, ifname }.host_ifname() == link.name
        };
        let is_own = |(mac, port): &&(Mac, u32)| *port == link.index && !of_host.contains(mac);
        let pinned = found.pinned.iter().find(is_own).map(|(mac, _)| *mac);
        let addresses = match found.entries.iter().find(owner) {
            Some(entry) => entry.addresses.clone(),
            None => pinned.map(|mac| permanent(found.neighbours, mac)).unwrap_or_default(),
        };
        let Some(first) = addresses.first() else {
            unknown.push(link);
            continue;
        };
        let own = Mac::of_address(*first);
        let used = found.neighbours.iter().find(|neighbour| neighbour.address == *first);
        let used = used.and_then(|neighbour| neighbour.mac);
        let used = used.filter(|mac| !derived.contains(mac) && !of_host.contains(mac));
        let is_fixed = pinned.is_some() && link.port.is_some_and(|port| port.fixed);
        let mac = pinned.or(used).unwrap_or(own);
        let set = permanent(found.neighbours, mac);
        let unset = addresses.iter().copied().filter(|address| !set.contains(address)).collect();
        ports.push(PodPort { link, mac, addresses, is_fixed, unset });
    }
    (ports, unknown)
}

/// The addresses that were said to have this MAC for good.
fn permanent(neighbours: &[NeighbourState], mac: Mac) -> Vec<IpAddr> {
    let of = |neighbour: &&NeighbourState| {
        neighbour.mac == Some(mac) && neighbour.state == NudState::Permanent
    };
    neighbours.iter().filter(of).map(|neighbour| neighbour.address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::link::PortFlags;

    const ASKED: Mac = Mac([2, 0, 0, 0, 0, 7]);
    const OF_BRIDGE: Mac = Mac([0x0a, 0x5a, 0, 0, 0, 1]);
    const OF_PORT: Mac = Mac([0x0a, 0x56, 0, 0, 0, 2]);
    const OF_OTHER_PORT: Mac = Mac([0x0a, 0x56, 0, 0, 0, 3]);

    fn link(index: u32, mac: Mac, alias: &str) -> Link {
        let flags = PortFlags { hairpin: true, isolated: false, locked: false, fixed: true };
        Link {
            index,
            name: format!("hz{index}").parse().unwrap(),
            kind: Some("veth".to_owned()),
            mac: Some(mac),
            mtu: 1500,
            up: true,
            oper_up: true,
            carrier: true,
            master: (index > 1).then_some(1),
            peer_index: None,
            alias: Some(alias.to_owned()),
            group: 0,
            port: (index > 1).then_some(flags),
            delays_ports: false,
            vxlan: None,
        }
    }

    /// The MAC that the guard of a pod's port lets pass, and whether it is as it should be: `pinned` to the port, and
    /// what the host `used` for its address.
    fn check(pinned: Option<Mac>, used: Mac, expected: (Mac, bool)) {
        let address: IpAddr = "10.1.2.3".parse().unwrap();
        let pod = LinkIdentity { network: "net", container_id: "c1", ifname: "eth0" };
        let mut port = link(2, OF_PORT, &pod.alias(None));
        port.name = pod.host_ifname();
        let links = [
            link(1, OF_BRIDGE, "humanz bridge"),
            port,
            link(3, OF_OTHER_PORT, "humanz net c2 eth0"),
        ];
        let entry = format!(
            r#"{{"schema":1,"containerID":"c1","ifname":"eth0","addresses":["{address}"],"bootId":"b","time":1}}"#
        );
        let entries: Vec<StoreEntry> = vec![serde_json::from_str(&entry).unwrap()];
        let pinned: Vec<(Mac, u32)> = pinned.map(|mac| (mac, 2)).into_iter().collect();
        let state = NudState::Permanent;
        let neighbours = [NeighbourState { address, mac: Some(used), state }];
        let found = FoundPorts {
            links: &links,
            entries: &entries,
            pinned: &pinned,
            neighbours: &neighbours,
        };
        let (ports, _) = ports("net", &links[0], &found);
        assert_eq!((ports[0].mac, ports[0].is_fixed), expected, "{pinned:?}, {used}");
    }

    #[test]
    fn a_pod_keeps_the_mac_that_it_asked_for_unless_it_is_that_of_the_bridge_or_of_a_port() {
        check(Some(ASKED), ASKED, (ASKED, true));
        check(None, ASKED, (ASKED, false));
        let derived = Mac::of_address("10.1.2.3".parse().unwrap());
        for stolen in [OF_BRIDGE, OF_PORT, OF_OTHER_PORT] {
            check(Some(stolen), stolen, (derived, false));
            check(None, stolen, (derived, false));
        }
    }
}
