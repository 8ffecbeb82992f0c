//! Pure. How this host reaches the pods of the others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::lease::peers::Peer;
use crate::lease::records::NodeName;
use crate::net::{Family, PerFamily};
use crate::plan::routes::{NextHop, Routes};

/// A prefix that this host has on one of its own segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connected {
    /// The prefix.
    pub prefix: IpNetwork,
    /// Index of the interface.
    pub device: u32,
}

/// Addresses that the names of hosts without a node record resolve to.
pub type Resolved = BTreeMap<NodeName, PerFamily<IpAddr>>;

/// A pod subnet that cannot be reached, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unreachable {
    /// The host that owns it.
    pub host: NodeName,
    /// The subnet.
    pub subnet: IpNetwork,
    /// What stands in the way.
    pub reason: Reason,
}

/// Why a pod subnet cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The host has no address of the subnet's family.
    NoAddress,
    /// The host published no address, and its name has not been resolved (yet).
    Unresolved,
    /// The address is behind a router.
    NotOnLink(IpAddr),
    /// The address is one of this host's own.
    OwnAddress(IpAddr),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unreachable { host, subnet, reason } = self;
        write!(f, "pods of host {host} ({subnet}) cannot be reached: ")?;
        match reason {
            Reason::NoAddress => {
                let family = Family::of(subnet.ip());
                write!(f, "the host has no {family} address; set NODE_IP there")
            }
            Reason::Unresolved => write!(
                f,
                "it published no address and the name {host} does not resolve; add it to DNS or /etc/hosts"
            ),
            Reason::NotOnLink(address) => write!(
                f,
                "{address} is not on a segment of this host; hosts must share a segment (direct routes only)"
            ),
            Reason::OwnAddress(address) => write!(
                f,
                "its address {address} belongs to this host; two hosts claim one address: check NODE_IP on both"
            ),
        }
    }
}

/// The routes to all `peers`, and what cannot be reached.
///
/// `resolved` serves hosts that run the original Python agent and publish no address; `connected`
/// are this host's segments, `own` its addresses.
pub fn routes(
    peers: &BTreeMap<NodeName, Peer>,
    resolved: &Resolved,
    connected: &[Connected],
    own: &PerFamily<IpAddr>,
) -> (Routes, Vec<Unreachable>) {
    let mut routes = Routes::new();
    let mut unreachable = Vec::new();
    for (host, peer) in peers {
        let by_name = peer.python.then(|| resolved.get(host));
        let addresses = match by_name {
            Some(resolved) => resolved,
            None => Some(&peer.addresses),
        };
        for (family, subnet) in peer.subnets.entries() {
            match next_hop(family, addresses, connected, own) {
                Ok(hop) => {
                    routes.insert(*subnet, hop);
                }
                Err(reason) => {
                    unreachable.push(Unreachable { host: host.clone(), subnet: *subnet, reason });
                }
            }
        }
    }
    (routes, unreachable)
}

fn next_hop(
    family: Family,
    addresses: Option<&PerFamily<IpAddr>>,
    connected: &[Connected],
    own: &PerFamily<IpAddr>,
) -> Result<NextHop, Reason> {
    let addresses = addresses.ok_or(Reason::Unresolved)?;
    let via = *addresses.get(family).ok_or(Reason::NoAddress)?;
    if own.get(family) == Some(&via) {
        return Err(Reason::OwnAddress(via));
    }
    let on_link = connected.iter().filter(|connected| connected.prefix.contains(via));
    let nearest = on_link.max_by_key(|connected| connected.prefix.prefix());
    nearest.map(|connected| NextHop { via, device: connected.device }).ok_or(Reason::NotOnLink(via))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::Backend;

    fn peer(subnet: &str, address: Option<&str>) -> Peer {
        Peer {
            subnets: PerFamily { v4: Some(subnet.parse().unwrap()), v6: None },
            addresses: PerFamily { v4: address.map(|text| text.parse().unwrap()), v6: None },
            backend: Backend::default(),
            tunnel: None,
            mtu: None,
            python: address.is_none(),
            alive: true,
        }
    }

    fn check(peer: Peer, resolved: &[&str], expected: Result<&str, &str>) {
        let host: NodeName = "h2".parse().unwrap();
        let peers = BTreeMap::from([(host.clone(), peer)]);
        let resolve = |text: &&str| PerFamily { v4: Some(text.parse().unwrap()), v6: None };
        let resolved = resolved.iter().map(|text| (host.clone(), resolve(text))).collect();
        let connected = [
            Connected { prefix: "192.0.2.0/24".parse().unwrap(), device: 2 },
            Connected { prefix: "192.0.0.0/16".parse().unwrap(), device: 3 },
        ];
        let own = PerFamily { v4: Some("192.0.2.1".parse().unwrap()), v6: None };
        let (routes, unreachable) = routes(&peers, &resolved, &connected, &own);
        let lines: Vec<String> = unreachable.iter().map(Unreachable::to_string).collect();
        match expected {
            Ok(hop) => {
                let hops: Vec<String> =
                    routes.values().map(|hop| format!("{} dev {}", hop.via, hop.device)).collect();
                assert_eq!((hops, lines), (vec![hop.to_owned()], vec![]));
            }
            Err(line) => assert!(routes.is_empty() && lines[0].contains(line), "{lines:?}"),
        }
    }

    #[test]
    fn a_host_on_the_segment_is_reached_through_the_nearest_interface() {
        check(peer("10.1.2.0/24", Some("192.0.2.2")), &[], Ok("192.0.2.2 dev 2"));
        check(peer("10.1.2.0/24", Some("192.0.3.2")), &[], Ok("192.0.3.2 dev 3"));
    }

    #[test]
    fn a_host_behind_a_router_is_reported() {
        check(
            peer("10.1.2.0/24", Some("198.51.100.2")),
            &[],
            Err("198.51.100.2 is not on a segment"),
        );
    }

    #[test]
    fn a_python_host_is_reached_through_its_name() {
        check(peer("10.1.2.0/24", None), &["192.0.2.7"], Ok("192.0.2.7 dev 2"));
        check(peer("10.1.2.0/24", None), &[], Err("the name h2 does not resolve"));
    }

    #[test]
    fn a_host_without_an_address_of_the_family_is_reported() {
        let mut v6 = peer("10.1.2.0/24", Some("192.0.2.2"));
        v6.subnets = PerFamily { v4: None, v6: Some("fd00::/64".parse().unwrap()) };
        check(v6, &[], Err("no IPv6 address"));
    }

    #[test]
    fn a_host_that_claims_our_address_is_reported() {
        check(peer("10.1.2.0/24", Some("192.0.2.1")), &[], Err("belongs to this host"));
    }
}
