//! Pure. What has the mark of humanz.

use crate::netlink::link::Link;
use crate::plan::firewall::AGENT_TABLE;
use crate::plan::pod;

/// The links of humanz among `found`: those of pods first, then bridges and tunnels.
pub fn links(found: &[Link]) -> Vec<&Link> {
    let (pods, others): (Vec<&Link>, Vec<&Link>) =
        found.iter().filter(|link| is_marked(link)).partition(|link| is_of_pod(link));
    pods.into_iter().chain(others).collect()
}

/// The attached pods, from the aliases of `found`: `network container interface namespace/pod`, with a
/// word `port=…` before the pod if its port settings are not the default (see [`pod::BridgePort`]).
pub fn attached(found: &[Link]) -> Vec<&str> {
    let owner = |link| owner(link).filter(|_| is_of_pod(link));
    found.iter().filter_map(owner).collect()
}

/// A table of the family `inet` with this name is the agent's, a network's, or that of host ports.
pub fn is_table(name: &str) -> bool {
    let rest = name.strip_prefix(AGENT_TABLE);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '-']))
}

fn is_marked(link: &Link) -> bool {
    owner(link).is_some()
}

/// The host's end of a pod.
pub fn is_of_pod(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth") && owner(link).is_some_and(|o| o.contains(' '))
}

/// What follows the mark in the alias.
fn owner(link: &Link) -> Option<&str> {
    link.alias.as_deref()?.strip_prefix(pod::MARK)?.strip_prefix(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, kind: &str, alias: &str) -> Link {
        Link {
            index,
            name: format!("l{index}").parse().unwrap(),
            kind: Some(kind.to_owned()),
            mac: None,
            mtu: 1500,
            up: true,
            oper_up: true,
            carrier: true,
            master: None,
            peer_index: None,
            alias: (!alias.is_empty()).then(|| alias.to_owned()),
            group: 0,
            port: None,
            delays_ports: false,
            vxlan: None,
        }
    }

    #[test]
    fn only_links_with_the_mark_are_ours_and_pods_come_first() {
        let found = [
            link(1, "bridge", "humanz bridge"),
            link(2, "bridge", ""),
            link(3, "veth", "humanz net c1 eth0 port=isolated default/web"),
            link(4, "veth", "humanzoid net c1 eth0"),
            link(5, "vxlan", "humanz tunnel"),
            link(6, "veth", "of somebody"),
        ];
        let ours: Vec<u32> = links(&found).iter().map(|link| link.index).collect();
        assert_eq!(ours, [3, 1, 5]);
        assert_eq!(attached(&found), ["net c1 eth0 port=isolated default/web"]);
    }

    #[test]
    fn foreign_tables_are_not_ours() {
        for (name, ours) in [
            ("humanz", true),
            ("humanz_web", true),
            ("humanz-hostports", true),
            ("humanzoid", false),
            ("filter", false),
        ] {
            assert_eq!(is_table(name), ours, "{name}");
        }
    }
}
