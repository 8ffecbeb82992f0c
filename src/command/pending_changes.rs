//! Pure. The status of a host without an agent: changes that an agent would make are pending.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;

use crate::api::status::{FirewallStatus, PeerStatus};
use crate::lease::Peers;
use crate::lease::peers::Peer;
use crate::net::Object;
use crate::net::gather::Gather;
use crate::plan::firewall::AGENT_TABLE;
use crate::plan::peer_routes::PeerRoutes;
use crate::plan::tunnel::{self, TunnelPeer};
use crate::plan::{Line, Sign};

/// Pending changes by their object. What is only to be removed does no harm.
pub struct PendingChanges<'a>(BTreeMap<&'a Object, &'a Line>);

impl<'a> PendingChanges<'a> {
    /// Of all changes that an agent would make.
    pub fn among(changes: &'a [Line]) -> PendingChanges<'a> {
        let pending = changes.iter().filter(|line| line.sign != Sign::Removed);
        PendingChanges(pending.map(|line| (&line.object, line)).gather())
    }

    /// Hosts whose route or tunnel is pending are not reached. `peer_routes`: how they would be.
    pub fn correct_peers(&self, found: &mut [PeerStatus], peers: &Peers, peer_routes: &PeerRoutes) {
        let remotes: BTreeMap<IpNetwork, &TunnelPeer> =
            peer_routes.remotes.iter().map(|remote| (remote.subnet, remote)).gather();
        let missing = |peer| needed(peer, &remotes).iter().find_map(|object| self.0.get(object));
        let missing =
            peers.by_name.iter().filter_map(|(name, peer)| Some((name.as_str(), missing(peer)?)));
        let missing: BTreeMap<&str, &&Line> = missing.gather();
        for peer in found {
            if let Some(line) = missing.get(peer.name.as_str()) {
                peer.reachable = false;
                peer.fault = Some(format!("not there: {}", line.what()));
            }
        }
    }

    /// A pending table does not let pods through.
    pub fn correct_firewall(&self, firewall: &mut FirewallStatus) {
        if let Some(line) = self.0.get(&Object::Table(AGENT_TABLE.to_owned()))
            && firewall.ok
        {
            let fault = Some(format!("not as it should be: {line}"));
            *firewall = FirewallStatus { ok: false, fault };
        }
    }
}

/// What must be there for a host to be reached. `remotes`: what is behind tunnels.
fn needed(peer: &Peer, remotes: &BTreeMap<IpNetwork, &TunnelPeer>) -> Vec<Object> {
    let tunnels = || peer.pod_subnets().filter_map(|subnet| remotes.get(&subnet));
    let neighbours = tunnels().map(|remote| Object::Neighbour(tunnel::via(remote)));
    let routes = peer.pod_subnets().map(Object::Route);
    let destinations = tunnels().map(|remote| Object::Destination(remote.address));
    neighbours.chain(routes).chain(destinations).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::lease::records::Backend;
    use crate::net::PerFamily;

    fn peer(v4: &str, v6: Option<&str>) -> Peer {
        let subnet = |text: &str| text.parse().unwrap();
        Peer {
            subnets: PerFamily { v4: Some(subnet(v4)), v6: v6.map(subnet) },
            blocks: Vec::new(),
            addresses: PerFamily::default(),
            backend: Backend::Auto,
            tunnel: None,
            wireguard: None,
            mtu: None,
            python: false,
            alive: true,
        }
    }

    fn remote(subnet: &str) -> TunnelPeer {
        TunnelPeer {
            subnet: subnet.parse().unwrap(),
            address: "203.0.113.1".parse().unwrap(),
            mac: "0a:58:0a:f4:14:00".parse().unwrap(),
            port: 10400,
            mtu_bytes: None,
        }
    }

    /// Of a host on the segment and one behind a tunnel, which is reached with `line` pending, and
    /// whether the firewall is right.
    fn check(line: Line, reached: [bool; 2], firewall: bool) {
        let near = ("near".parse().unwrap(), peer("10.244.2.0/24", None));
        let far = ("far".parse().unwrap(), peer("10.244.20.0/24", Some("fd00:0:0:14::/64")));
        let peers = Peers { by_name: [near, far].into(), faults: Vec::new() };
        let remotes = vec![remote("10.244.20.0/24"), remote("fd00:0:0:14::/64")];
        let peer_routes = PeerRoutes { remotes, ..PeerRoutes::default() };
        let found = |name: &str| PeerStatus {
            name: name.to_owned(),
            reachable: true,
            ..PeerStatus::default()
        };
        let mut found = [found("near"), found("far")];
        let mut filter = FirewallStatus { ok: true, fault: None };
        let pending = PendingChanges::among(std::slice::from_ref(&line));
        pending.correct_peers(&mut found, &peers, &peer_routes);
        pending.correct_firewall(&mut filter);
        let found = found.map(|peer| peer.reachable);
        assert_eq!((found, filter.ok), (reached, firewall), "{line}");
    }

    #[test]
    fn a_host_without_its_route_is_not_reached() {
        let route = |text: &str| Object::Route(text.parse().unwrap());
        check(Line::added(route("10.244.2.0/24")), [false, true], true);
        check(Line::changed(route("10.244.20.0/24")), [true, false], true);
        check(Line::removed(route("10.244.2.0/24")), [true, true], true);
        check(Line::added(route("10.244.20.0/25")), [true, true], true);
    }

    #[test]
    fn a_host_without_its_part_of_the_tunnel_is_not_reached() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        check(Line::added(Object::Destination(at("203.0.113.1"))), [true, false], true);
        check(Line::added(Object::Destination(at("203.0.113.12"))), [true, true], true);
        check(Line::added(Object::Neighbour(at("10.244.20.1"))), [true, false], true);
        check(Line::added(Object::Neighbour(at("fe80::858:aff:fef4:1400"))), [true, false], true);
        check(Line::added(Object::Neighbour(at("10.244.2.1"))), [true, true], true);
    }

    #[test]
    fn only_the_table_of_the_host_lets_pods_through() {
        let table = |name: &str| Object::Table(name.to_owned());
        check(Line::added(table("humanz")), [true, true], false);
        check(Line::changed(table("humanz")).with(": dormant"), [true, true], false);
        check(Line::changed(table("humanz-hostports")), [true, true], true);
    }
}
