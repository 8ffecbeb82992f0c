//! Pure. The valid tunnels of other hosts.

use std::collections::{BTreeMap, HashMap};

use crate::lease::peers::Peer;
use crate::lease::records::{NodeName, Tunnel, Vxlan};
use crate::net::{Mac, Object, Problem, ProblemKind};

/// A tunnel of another host that is ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("host {host}: its tunnel is ignored: {flaw}")]
pub struct TunnelFault {
    pub host: NodeName,
    pub flaw: Flaw,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Flaw {
    #[error("VNI {0} is more than 24 bits")]
    VniTooLarge(u32),
    #[error("its VNI is {theirs}, and this host's is {ours}")]
    OtherVni { theirs: u32, ours: u32 },
    #[error("port 0 is invalid")]
    NoPort,
    #[error("its MAC {0} is that of this host")]
    OwnMac(Mac),
    #[error("its MAC {mac} is that of host {owner}")]
    SameMac { mac: Mac, owner: NodeName },
}

impl TunnelFault {
    pub fn problem(&self) -> Problem {
        let TunnelFault { host, flaw } = self;
        let fix = match flaw {
            Flaw::VniTooLarge(_) | Flaw::NoPort => {
                format!("humanz-agent nodes show {host} # set VXLAN_VNI and VXLAN_PORT there")
            }
            Flaw::OtherVni { .. } => {
                "humanz-agent config # set the same VXLAN_VNI on all hosts".to_owned()
            }
            Flaw::OwnMac(_) | Flaw::SameMac { .. } => {
                format!(
                    "humanz-agent nodes show {host} # restart its agent, which then publishes its own MAC"
                )
            }
        };
        let subject = Object::Host(host.clone());
        Problem::new(ProblemKind::OtherHost, subject, self.to_string()).with_fix(fix)
    }
}

/// The valid tunnels of `peers`, in their order, and the faults of the others. `own`: that of this host.
///
/// Of hosts with the same MAC the one whose subnet it is derived from has it ([`Tunnel::of`]), else the
/// first by name. A flaw affects only its host.
pub fn tunnels(
    peers: &BTreeMap<NodeName, Peer>,
    own: Tunnel,
) -> (Vec<Option<Tunnel>>, Vec<TunnelFault>) {
    let with_tunnel = peers.iter().enumerate().filter_map(|(place, (host, peer))| {
        let tunnel = peer.tunnel?;
        Some((place, host, tunnel, is_of_its_subnet(peer, tunnel)))
    });
    let (rightful, others): (Vec<_>, Vec<_>) =
        with_tunnel.partition(|(.., is_of_its_subnet)| *is_of_its_subnet);
    let mut owners: HashMap<Mac, &NodeName> = HashMap::with_capacity(peers.len());
    let mut usable = vec![None; peers.len()];
    let mut faults = Vec::new();
    for (place, host, tunnel, _) in rightful.into_iter().chain(others) {
        match flaw(tunnel, own, &owners) {
            None => {
                owners.insert(tunnel.mac, host);
                usable[place] = Some(tunnel);
            }
            Some(flaw) => faults.push(TunnelFault { host: host.clone(), flaw }),
        }
    }
    (usable, faults)
}

fn is_of_its_subnet(peer: &Peer, tunnel: Tunnel) -> bool {
    let Tunnel { vni, port, .. } = tunnel;
    Tunnel::of(&peer.subnets, Vxlan { vni, port }) == Some(tunnel)
}

fn flaw(tunnel: Tunnel, own: Tunnel, owners: &HashMap<Mac, &NodeName>) -> Option<Flaw> {
    let Tunnel { mac, vni, port } = tunnel;
    if vni > Vxlan::MAX_VNI {
        return Some(Flaw::VniTooLarge(vni));
    }
    if vni != own.vni {
        return Some(Flaw::OtherVni { theirs: vni, ours: own.vni });
    }
    if port == 0 {
        return Some(Flaw::NoPort);
    }
    if mac == own.mac {
        return Some(Flaw::OwnMac(mac));
    }
    owners.get(&mac).map(|owner| Flaw::SameMac { mac, owner: (*owner).clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::Backend;
    use crate::net::PerFamily;

    /// The tunnels and faults at h1 (10.0.1.0/24) of hosts with (name, subnet, MAC, VNI, port).
    fn check(hosts: &[(&str, &str, &str, u32, u16)], usable: &[&str], faults: &[&str]) {
        let peer = |subnet: &str, tunnel| Peer {
            subnets: PerFamily { v4: Some(subnet.parse().unwrap()), v6: None },
            blocks: Vec::new(),
            addresses: PerFamily::default(),
            backend: Backend::Auto,
            tunnel: Some(tunnel),
            wireguard: None,
            mtu: None,
            python: false,
            alive: true,
        };
        let peers = hosts.iter().map(|(name, subnet, mac, vni, port)| {
            let tunnel = Tunnel { mac: mac.parse().unwrap(), vni: *vni, port: *port };
            (name.parse().unwrap(), peer(subnet, tunnel))
        });
        let peers: BTreeMap<NodeName, Peer> = peers.collect();
        let own = PerFamily { v4: Some("10.0.1.0/24".parse().unwrap()), v6: None };
        let own = Tunnel::of(&own, Vxlan { vni: 104, port: 10400 }).unwrap();
        let (found, flawed) = tunnels(&peers, own);
        let found = peers.keys().zip(found).filter(|(_, tunnel)| tunnel.is_some());
        assert_eq!(found.map(|(host, _)| host.as_str()).collect::<Vec<_>>(), usable);
        assert_eq!(flawed.iter().map(ToString::to_string).collect::<Vec<_>>(), faults);
    }

    #[test]
    fn a_tunnel_with_another_port_is_valid() {
        let h2 = ("h2", "10.0.2.0/24", "0a:58:0a:00:02:00", 104, 10400);
        let h3 = ("h3", "10.0.3.0/24", "0a:58:0a:00:03:00", 104, 53);
        check(&[h2, h3], &["h2", "h3"], &[]);
    }

    #[test]
    fn invalid_tunnels_are_reported_and_affect_no_other() {
        check(
            &[
                ("h2", "10.0.2.0/24", "0a:58:0a:00:02:00", 104, 10400),
                ("h3", "10.0.3.0/24", "0a:58:0a:00:03:00", 1 << 24, 10400),
                ("h4", "10.0.4.0/24", "0a:58:0a:00:04:00", 7, 10400),
                ("h5", "10.0.5.0/24", "0a:58:0a:00:05:00", 104, 0),
                ("h6", "10.0.6.0/24", "0a:58:0a:00:01:00", 104, 10400),
            ],
            &["h2"],
            &[
                "host h3: its tunnel is ignored: VNI 16777216 is more than 24 bits",
                "host h4: its tunnel is ignored: its VNI is 7, and this host's is 104",
                "host h5: its tunnel is ignored: port 0 is invalid",
                "host h6: its tunnel is ignored: its MAC 0a:58:0a:00:01:00 is that of this host",
            ],
        );
    }

    #[test]
    fn a_mac_belongs_to_the_host_whose_subnet_it_is_derived_from() {
        check(
            &[
                ("evil", "10.0.9.0/24", "0a:58:0a:00:02:00", 104, 10400),
                ("h2", "10.0.2.0/24", "0a:58:0a:00:02:00", 104, 10400),
            ],
            &["h2"],
            &["host evil: its tunnel is ignored: its MAC 0a:58:0a:00:02:00 is that of host h2"],
        );
        check(
            &[
                ("h2", "10.0.2.0/24", "02:00:00:00:00:01", 104, 10400),
                ("h3", "10.0.3.0/24", "02:00:00:00:00:01", 104, 10400),
            ],
            &["h2"],
            &["host h3: its tunnel is ignored: its MAC 02:00:00:00:00:01 is that of host h2"],
        );
    }
}
