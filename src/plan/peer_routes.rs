//! Pure. The routes of this host to the pods of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnetwork::IpNetwork;

use crate::lease::Resolved;
use crate::lease::peers::Peer;
use crate::lease::records::{self, NodeName, Tunnel};
use crate::lease::tunnels::{TunnelFault, tunnels};
use crate::net::gather::Gather;
use crate::net::{Family, Object, PerFamily, Problem, ProblemKind, subnet};
use crate::plan::encryption::EncryptedPeer;
use crate::plan::routes::{NextHop, Routes};
use crate::plan::tunnel::TunnelPeer;

/// A prefix that this host has on one of its own segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connected {
    pub prefix: IpNetwork,
    /// Index of the interface.
    pub device: u32,
    pub up: bool,
}

/// How this host reaches the pods of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalBackend {
    /// Through a route via the host, which must be on the same segment.
    Direct,
    /// Through a tunnel.
    Vxlan,
    /// Through a route to hosts on the same segment, through a tunnel to the others.
    Auto,
}

impl From<LocalBackend> for records::Backend {
    fn from(backend: LocalBackend) -> records::Backend {
        match backend {
            LocalBackend::Direct => records::Backend::Direct,
            LocalBackend::Vxlan => records::Backend::Vxlan,
            LocalBackend::Auto => records::Backend::Auto,
        }
    }
}

/// What this host needs to route to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalHost {
    pub backend: LocalBackend,
    pub connected: Vec<Connected>,
    /// Its node addresses.
    pub own: PerFamily<IpAddr>,
    /// Those of them that are present on an interface that is up.
    pub underlay: PerFamily<IpAddr>,
    /// Its tunnel, if it has one.
    pub tunnel: Option<Tunnel>,
    pub encryption: LocalEncryption,
}

/// What this host sends to pods of others in clear text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalEncryption {
    /// Everything.
    Off,
    /// What is for hosts without a key.
    Preferred,
    /// Nothing.
    Strict,
}

/// The routes to the pods of all other hosts.
#[derive(Debug, Default)]
pub struct PeerRoutes {
    /// To hosts on a segment of this host.
    pub direct: Routes,
    /// Through a tunnel.
    pub remotes: Vec<TunnelPeer>,
    /// Hosts that packets are encrypted to.
    pub encrypted: Vec<EncryptedPeer>,
    /// Hosts that packets are sent to in clear text, although one of the two hosts encrypts.
    pub clear: Vec<ClearPeer>,
    pub unreachable: Vec<UnreachableSubnet>,
    /// Tunnels that are not used.
    pub faults: Vec<TunnelFault>,
    /// The addresses of hosts whose pods of that family are not reached directly: they have no route to
    /// a pod of this host except through a tunnel.
    pub tunnel_only_nodes: BTreeSet<IpAddr>,
}

impl PeerRoutes {
    /// Some hosts are reached through a tunnel, encrypted or not.
    pub fn is_tunneled(&self) -> bool {
        !self.remotes.is_empty() || !self.encrypted.is_empty()
    }

    /// The subnets of hosts whose names are not resolved (yet): routes found earlier stay valid.
    pub fn unresolved(&self) -> BTreeSet<IpNetwork> {
        use UnreachableReason::{LookUpPending, Unresolved};
        let unknown = |way: &&UnreachableSubnet| matches!(way.reason, LookUpPending | Unresolved);
        self.unreachable.iter().filter(unknown).map(|way| way.subnet).gather()
    }
}

/// A host that packets are sent to in clear text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClearPeer {
    pub host: NodeName,
    /// It encrypts, and this host does not.
    pub encrypts: bool,
}

impl ClearPeer {
    pub fn problem(&self) -> Problem {
        let ClearPeer { host, encrypts } = self;
        let (what, fix) = match encrypts {
            true => (
                format!(
                    "host {host} encrypts and this host does not: packets to its pods are clear text, \
                     and lost if it takes in none"
                ),
                "humanz-agent config # set ENCRYPTION=wireguard on this host".to_owned(),
            ),
            false => (
                format!(
                    "pods of host {host} are reached in clear text: it publishes no WireGuard key of \
                     its own (ENCRYPTION_STRICT=false)"
                ),
                format!("humanz-agent nodes show {host} # set ENCRYPTION=wireguard there"),
            ),
        };
        Problem::new(ProblemKind::ClearText, Object::Host(host.clone()), what).with_fix(fix)
    }
}

/// A pod subnet that cannot be reached, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreachableSubnet {
    pub host: NodeName,
    pub subnet: IpNetwork,
    pub reason: UnreachableReason,
}

/// Why a pod subnet cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnreachableReason {
    /// The host has no address of the subnet's family.
    NoAddress,
    /// The host published no address, and the first look-up of its name has not ended.
    LookUpPending,
    /// The host published no address, and its name does not resolve.
    Unresolved,
    /// The address is behind a router, and this host has no tunnels.
    NotOnLink(IpAddr),
    /// The address is behind a router, and the host has no tunnel.
    NoTunnel(IpAddr),
    /// The link to the address is down.
    LinkDown(IpAddr),
    /// This host has no address of that family to send from.
    NoUnderlay(IpAddr),
    /// This host's own address for the others, the first, is not there to send from.
    OwnMissing(IpAddr, IpAddr),
    /// The address is one of this host's own.
    OwnAddress(IpAddr),
    /// The host has no WireGuard key of its own, and this host sends nothing in clear text.
    NoKey,
}

impl UnreachableReason {
    /// The host may be behind a router.
    fn is_far(&self) -> bool {
        use UnreachableReason::{NoKey, NoTunnel, NoUnderlay, NotOnLink, OwnMissing};
        matches!(self, NotOnLink(_) | NoTunnel(_) | NoUnderlay(_) | OwnMissing(..) | NoKey)
    }
}

impl UnreachableSubnet {
    /// Whether it is reached is known in a moment.
    pub fn is_pending(&self) -> bool {
        self.reason == UnreachableReason::LookUpPending
    }

    pub fn problem(&self) -> Problem {
        use UnreachableReason as Reason;
        let UnreachableSubnet { host, subnet, reason } = self;
        let show = |fix: &str| format!("humanz-agent nodes show {host} # {fix}");
        let (why, fix) = match reason {
            Reason::NoAddress => {
                let family = Family::of(subnet.ip());
                (format!("the host has no {family} address"), show("set NODE_IP there"))
            }
            Reason::LookUpPending => (
                format!("it published no address and the name {host} is being looked up"),
                "cat /etc/resolv.conf # wait for its name servers".to_owned(),
            ),
            Reason::Unresolved => (
                format!("it published no address and the name {host} does not resolve"),
                format!("getent hosts {host} # add it to DNS or /etc/hosts"),
            ),
            Reason::NotOnLink(address) => (
                format!("{address} is not on a segment of this host, and BACKEND=direct"),
                "humanz-agent config # set BACKEND=auto on both hosts".to_owned(),
            ),
            Reason::NoTunnel(address) => (
                format!("{address} is not on a segment of this host, and the host has no tunnel"),
                show("set BACKEND=auto there (and update humanz)"),
            ),
            Reason::LinkDown(address) => (
                format!("the link to {address} is down"),
                "ip link # shows which it is: set it up".to_owned(),
            ),
            Reason::NoUnderlay(address) => {
                let family = Family::of(*address);
                (
                    format!("this host has no {family} address to send to {address} from"),
                    "ip link; ip address # set its uplink up".to_owned(),
                )
            }
            Reason::OwnMissing(own, address) => (
                format!(
                    "this host's node address is {own} (NODE_IP, if that is set), which no \
                     interface that is up has, and packets to {address} would come from it"
                ),
                "ip address # set its uplink up, or NODE_IP to an address it has".to_owned(),
            ),
            Reason::OwnAddress(address) => (
                format!("its address {address} belongs to this host: two hosts claim one address"),
                "ip address # check NODE_IP on both".to_owned(),
            ),
            Reason::NoKey => (
                "it publishes no WireGuard key of its own, and this host sends nothing in clear text"
                    .to_owned(),
                show("set ENCRYPTION=wireguard there (or ENCRYPTION_STRICT=false here until then)"),
            ),
        };
        let what = format!("pods of host {host} ({subnet}) cannot be reached: {why}");
        Problem::new(ProblemKind::HostUnreachable, Object::Host(host.clone()), what).with_fix(fix)
    }
}

/// The routes to the pods of all `peers`.
///
/// `resolved` serves hosts that run the original Python agent and publish no address.
pub fn peer_routes(
    peers: &BTreeMap<NodeName, Peer>,
    resolved: &Resolved,
    here: &LocalHost,
) -> PeerRoutes {
    let mut peer_routes = PeerRoutes::default();
    let mut usable = vec![None; peers.len()];
    if let Some(own) = here.tunnel {
        (usable, peer_routes.faults) = tunnels(peers, own);
    }
    let mut direct = Vec::with_capacity(peers.len());
    for ((host, peer), tunnel) in peers.iter().zip(usable) {
        let addresses = addresses(host, peer, resolved);
        if peer_routes.are_clear(host, peer, addresses, here) {
            let there = RemoteHost { addresses, backend: &peer.backend, tunnel };
            direct.extend(peer_routes.add_clear(host, peer, &there, here));
        }
    }
    peer_routes.direct = direct.into_iter().collect();
    peer_routes
}

/// The node addresses of a host. A name without any has been looked up in vain.
fn addresses<'a>(
    host: &NodeName,
    peer: &'a Peer,
    resolved: &'a Resolved,
) -> Result<&'a PerFamily<IpAddr>, UnreachableReason> {
    if !peer.python {
        return Ok(&peer.addresses);
    }
    let addresses = resolved.get(host).ok_or(UnreachableReason::LookUpPending)?;
    if addresses.is_empty() { Err(UnreachableReason::Unresolved) } else { Ok(addresses) }
}

impl PeerRoutes {
    /// No pod subnet of the host is reached, for one reason.
    fn cut_off(
        &mut self,
        host: &NodeName,
        peer: &Peer,
        addresses: Result<&PerFamily<IpAddr>, UnreachableReason>,
        reason: UnreachableReason,
    ) {
        self.tunnel_only_nodes.extend(addresses.into_iter().flat_map(|all| all.iter().copied()));
        let subnets = peer.pod_subnets();
        self.unreachable.extend(subnets.map(|subnet| UnreachableSubnet {
            host: host.clone(),
            subnet,
            reason,
        }));
    }

    /// Whether packets to the pods of `host` are sent in clear text; otherwise, adds how they are
    /// encrypted, or why they are not sent.
    fn are_clear(
        &mut self,
        host: &NodeName,
        peer: &Peer,
        addresses: Result<&PerFamily<IpAddr>, UnreachableReason>,
        here: &LocalHost,
    ) -> bool {
        if here.encryption == LocalEncryption::Off && peer.wireguard.is_none() {
            return true;
        }
        match encrypted(host, peer, addresses, here) {
            Encrypted::Yes(encrypted) => {
                self.tunnel_only_nodes.extend(encrypted.addresses.iter().copied());
                self.encrypted.push(encrypted);
                false
            }
            Encrypted::No(reason) => {
                self.cut_off(host, peer, addresses, reason);
                false
            }
            Encrypted::Clear => {
                let encrypts = here.encryption == LocalEncryption::Off;
                self.clear.push(ClearPeer { host: host.clone(), encrypts });
                true
            }
        }
    }

    /// Adds the tunnels to the pods of `host`, or why there is no way; returns the direct routes.
    fn add_clear(
        &mut self,
        host: &NodeName,
        peer: &Peer,
        there: &RemoteHost,
        here: &LocalHost,
    ) -> Vec<(IpNetwork, NextHop)> {
        let mut direct = Vec::new();
        // Also of a family in which it has no pods: what is not near gets no packet with the address of a pod.
        for family in Family::BOTH {
            let tunnel_only = match way(family, there, here) {
                Ok(way) => matches!(way, PeerRoute::Tunnel(..)),
                Err(reason) => reason.is_far(),
            };
            let address = there.addresses.ok().and_then(|addresses| addresses.get(family));
            self.tunnel_only_nodes.extend(address.filter(|_| tunnel_only));
        }
        for subnet in peer.pod_subnets() {
            let way = way(subnet::family(subnet), there, here);
            match way {
                Ok(PeerRoute::Direct(hop)) => direct.push((subnet, hop)),
                Ok(PeerRoute::Tunnel(address, Tunnel { mac, port, .. })) => {
                    let mtu_bytes = peer.mtu;
                    self.remotes.push(TunnelPeer { subnet, address, mac, port, mtu_bytes });
                }
                Err(reason) => {
                    let host = host.clone();
                    self.unreachable.push(UnreachableSubnet { host, subnet, reason });
                }
            }
        }
        direct
    }
}

enum Encrypted {
    Yes(EncryptedPeer),
    /// It is not reached, rather than in clear text.
    No(UnreachableReason),
    Clear,
}

/// Whether packets to the host are encrypted: if both hosts can. By IPv4, whatever the pods have, if both have
/// it: a host has one key, and a key is reached at one address.
fn encrypted(
    host: &NodeName,
    peer: &Peer,
    addresses: Result<&PerFamily<IpAddr>, UnreachableReason>,
    here: &LocalHost,
) -> Encrypted {
    let end = match (here.encryption, peer.wireguard) {
        (LocalEncryption::Off, _) | (LocalEncryption::Preferred, None) => return Encrypted::Clear,
        (LocalEncryption::Strict, None) => return Encrypted::No(UnreachableReason::NoKey),
        (_, Some(end)) => end,
    };
    let addresses = match addresses {
        Ok(addresses) => addresses,
        Err(reason) => return Encrypted::No(reason),
    };
    match underlay(Family::V4, addresses, here) {
        Ok(address) => Encrypted::Yes(EncryptedPeer {
            key: end.public_key,
            address,
            addresses: *addresses,
            port: end.port.get(),
            rotation_port: end.rotation_port.map(NonZeroU16::get),
            next: end.next,
            host: host.clone(),
            alive: peer.alive,
            subnets: peer.pod_subnets().collect(),
            mtu_bytes: peer.mtu,
        }),
        Err(reason) => Encrypted::No(reason),
    }
}

struct RemoteHost<'a> {
    addresses: Result<&'a PerFamily<IpAddr>, UnreachableReason>,
    backend: &'a records::Backend,
    tunnel: Option<Tunnel>,
}

enum PeerRoute {
    Direct(NextHop),
    Tunnel(IpAddr, Tunnel),
}

/// The route to a host's pods of a family: direct or through its tunnel, as both hosts want it and can;
/// direct if there is no other.
fn way(
    family: Family,
    there: &RemoteHost<'_>,
    here: &LocalHost,
) -> Result<PeerRoute, UnreachableReason> {
    let addresses = there.addresses?;
    let direct = next_hop(family, addresses, here);
    let Some(tunnel) = there.tunnel else { return direct.map(PeerRoute::Direct) };
    let rather_direct =
        here.backend == LocalBackend::Auto && *there.backend != records::Backend::Vxlan;
    match direct {
        Ok(hop) if rather_direct => return Ok(PeerRoute::Direct(hop)),
        // During an outage the location of the host does not change.
        Err(reason @ (UnreachableReason::LinkDown(_) | UnreachableReason::OwnAddress(_)))
            if rather_direct =>
        {
            return Err(reason);
        }
        _ => {}
    }
    match (underlay(family, addresses, here), direct) {
        (Ok(address), _) => Ok(PeerRoute::Tunnel(address, tunnel)),
        (Err(_), Ok(hop)) => Ok(PeerRoute::Direct(hop)),
        (Err(reason), Err(_)) => Err(reason),
    }
}

fn next_hop(
    family: Family,
    addresses: &PerFamily<IpAddr>,
    here: &LocalHost,
) -> Result<NextHop, UnreachableReason> {
    let via = *addresses.get(family).ok_or(UnreachableReason::NoAddress)?;
    if here.own.get(family) == Some(&via) {
        return Err(UnreachableReason::OwnAddress(via));
    }
    let on_link = || here.connected.iter().filter(|connected| connected.prefix.contains(via));
    let nearest = on_link().filter(|connected| connected.up);
    let nearest = nearest.max_by_key(|connected| connected.prefix.prefix());
    let why_not = || match here.tunnel {
        _ if on_link().next().is_some() => UnreachableReason::LinkDown(via),
        None => UnreachableReason::NotOnLink(via),
        Some(_) => UnreachableReason::NoTunnel(via),
    };
    nearest.map(|connected| NextHop::direct(via, connected.device)).ok_or_else(why_not)
}

/// The other host's address for outer packets: of the pods' family if both hosts have one, else of the
/// other.
fn underlay(
    pods: Family,
    addresses: &PerFamily<IpAddr>,
    here: &LocalHost,
) -> Result<IpAddr, UnreachableReason> {
    let mut reason = UnreachableReason::NoAddress;
    let [v4, v6] = Family::BOTH;
    for family in if pods == v4 { [v4, v6] } else { [v6, v4] } {
        let Some(theirs) = addresses.get(family).copied() else { continue };
        if here.own.get(family) == Some(&theirs) {
            return Err(UnreachableReason::OwnAddress(theirs));
        }
        match (here.own.get(family), here.underlay.get(family)) {
            (_, Some(_)) => return Ok(theirs),
            // The address is only temporarily missing: do not switch to the other family.
            (Some(own), None) => return Err(UnreachableReason::OwnMissing(*own, theirs)),
            (None, None) => reason = UnreachableReason::NoUnderlay(theirs),
        }
    }
    Err(reason)
}

#[cfg(test)]
mod tests;
