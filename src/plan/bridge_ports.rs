//! Pure. The pods' links to be reattached to the bridge, and how many ports it has.

use crate::net::{IfName, Mac, Object, Problem, ProblemKind};
use crate::netlink::link::Link;
use crate::plan::local_macs::is_of_host;
use crate::plan::pod::{BridgePort, is_of_network};

/// A link that lost its bridge, because the bridge was deleted or the link detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reattach {
    /// The host's end of the pod's veth.
    pub link: IfName,
    pub index: u32,
    pub bridge: IfName,
    /// The link's alias.
    pub owner: String,
    /// From its alias.
    pub port: BridgePort,
    /// The MAC that is pinned to it.
    pub pin: Option<Mac>,
}

/// The links among `found` that belong to pods of `network` and are ports of no bridge, to be
/// reattached to `bridge`. A link that somebody attached to another bridge stays there.
pub fn changes(network: &str, bridge: &IfName, found: &[Link]) -> Vec<Reattach> {
    let lost = found
        .iter()
        .filter(|link| link.master.is_none() && is_of_network(link.alias.as_deref(), network));
    let reattach = |link: &Link| {
        let port = BridgePort::of_alias(link.alias.as_deref().unwrap_or_default());
        Reattach {
            link: link.name.clone(),
            index: link.index,
            bridge: bridge.clone(),
            owner: link.alias.clone().unwrap_or_default(),
            // A release before gave a pod the MAC of another's port if it asked for that.
            pin: port.mac.filter(|mac| !is_of_host(found, *mac)),
            port,
        }
    };
    lost.map(reattach).collect()
}

/// A link of a pod that is plugged in and down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPortUp {
    /// The host's end of the pod's veth.
    pub link: IfName,
    pub index: u32,
    /// The link's alias.
    pub owner: String,
}

/// The ports of the bridge with that index among `found` that belong to pods of `network` and are down,
/// to be set up. One that the plugin is just making may be among them.
pub fn down(network: &str, bridge: u32, found: &[Link]) -> Vec<SetPortUp> {
    let is_down = |link: &&Link| {
        let of_pod = is_of_network(link.alias.as_deref(), network);
        link.master == Some(bridge) && !link.up && of_pod
    };
    let set_up = |link: &Link| SetPortUp {
        link: link.name.clone(),
        index: link.index,
        owner: link.alias.clone().unwrap_or_default(),
    };
    found.iter().filter(is_down).map(set_up).collect()
}

/// The most ports of one bridge, and so pods of a host: the kernel numbers them with 10 bits, from 1
/// (`BR_MAX_PORTS` of net/bridge/br_private.h). The next one gets `EXFULL`.
///
/// Several bridges with a veth between them would take more pods, at 2.5 us more for each round trip
/// between two of them (8 us within one), and `portIsolation` would end at that veth.
pub const MOST: usize = 1023;

/// From this number on the operator is warned.
const MANY: usize = MOST * 95 / 100;

/// No pod fits on `bridge`.
pub fn full(bridge: &IfName) -> Problem {
    let what = format!(
        "bridge {bridge} is full: the kernel gives a bridge 1,023 ports, and each pod takes one"
    );
    Problem::new(ProblemKind::BridgePorts, Object::Bridge(bridge.clone()), what).with_fix(
        "humanz-agent pods # delete some of this host, or limit them (maxPods of the kubelet)",
    )
}

/// What is wrong with a bridge with `count` ports; nothing while there are plenty left.
pub fn crowded(bridge: &IfName, count: usize) -> Option<Problem> {
    let what = || {
        format!(
            "bridge {bridge} has less than a twentieth of its 1,023 ports left, and each pod takes \
             one"
        )
    };
    let subject = || Object::Bridge(bridge.clone());
    match count {
        MOST.. => Some(full(bridge)),
        MANY.. => Some(
            Problem::new(ProblemKind::BridgePortsLow, subject(), what())
                .with_fix("humanz-agent pods # limit those of this host (maxPods of the kubelet)"),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The links to be reattached, of links with these aliases and masters.
    fn lost(found: &[(&str, Option<u32>)]) -> Vec<Reattach> {
        let link = |(index, (alias, master)): (usize, &(&str, Option<u32>))| Link {
            index: u32::try_from(index).unwrap(),
            name: format!("hz{index}").parse().unwrap(),
            kind: Some("veth".into()),
            mac: Some(Mac([0x0a, 0x56, 0, 0, 0, u8::try_from(index).unwrap()])),
            mtu: 1500,
            up: true,
            oper_up: true,
            carrier: true,
            master: *master,
            peer_index: None,
            alias: Some((*alias).into()),
            group: 0,
            port: None,
            delays_ports: false,
            vxlan: None,
        };
        let links: Vec<Link> = found.iter().enumerate().map(link).collect();
        changes("humanz", &"humanz0".parse().unwrap(), &links)
    }

    /// The indexes of those to be reattached.
    fn check(found: &[(&str, Option<u32>)], expected: &[u32]) {
        let lost = lost(found);
        assert_eq!(lost.iter().map(|link| link.index).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_link_gets_the_port_settings_of_its_alias() {
        let lost = lost(&[
            ("humanz humanz c1 eth0 port=isolated,mac=0a580af40102 a/b", None),
            ("humanz humanz c2 eth0 a/b", None),
        ]);
        let mac = Some("0a:58:0a:f4:01:02".parse().unwrap());
        assert_eq!(lost[0].port, BridgePort { hairpin: false, isolated: true, mac });
        assert_eq!((lost[0].pin, lost[1].pin), (mac, None));
        assert_eq!(lost[1].port, BridgePort::default());
    }

    #[test]
    fn the_mac_of_another_link_is_pinned_to_none() {
        let lost = lost(&[
            ("humanz humanz c1 eth0 port=mac=0a5600000001 a/thief", None),
            ("humanz humanz c2 eth0 a/b", None),
        ]);
        assert!(lost[0].port.mac.is_some(), "the port stays locked");
        assert_eq!(lost[0].pin, None);
    }

    #[test]
    fn pods_without_a_bridge_get_it_back() {
        check(&[("humanz humanz c1 eth0", None), ("humanz humanz c2 eth0 a/b", None)], &[0, 1]);
    }

    #[test]
    fn ports_stay_where_they_are() {
        check(&[("humanz humanz c1 eth0", Some(7))], &[]);
    }

    #[test]
    fn links_of_others_are_left_alone() {
        check(&[("humanz other c1 eth0", None), ("vm 3", None), ("humanz bridge", None)], &[]);
    }

    #[test]
    fn a_bridge_is_crowded_before_it_is_full() {
        let found = |count| crowded(&"humanz0".parse().unwrap(), count);
        let kind = |count| found(count).map(|problem| problem.kind);
        assert_eq!((kind(0), kind(970)), (None, None));
        assert_eq!(kind(971), Some(ProblemKind::BridgePortsLow));
        assert_eq!(found(971), found(1022), "the same problem, whatever the number of pods");
        assert_eq!(kind(1023), Some(ProblemKind::BridgePorts));
    }
}
