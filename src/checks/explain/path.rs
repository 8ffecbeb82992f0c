//! Pure. What was found on the path between two addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::checks::explain::policy::PathPolicies;
use crate::cni::config::GuardConf;
use crate::net::subnet::Pool;
use crate::net::{Family, IfName, Mac, PerFamily};
use crate::netlink::address::Address;
use crate::netlink::connections::Connection;
use crate::netlink::fdb::{BridgeEntry, Destination};
use crate::netlink::link::Link;
use crate::netlink::neighbour::{NeighbourState, NudState};
use crate::netlink::route::RouteLookup;
use crate::nft::FoundSet;
use crate::nft::base_chains::HookChains;
use crate::plan::guard::DropReason;

/// Packets from one address to another, both of one family.
#[derive(Debug)]
pub struct Path {
    /// The sender.
    pub from: PathEnd,
    /// The receiver.
    pub to: PathEnd,
    /// Protocol (IANA's number) and port, if they are known.
    pub transport: Option<(u8, u16)>,
    /// This host, with the bridge of the sender; of the receiver if the sender is no pod of this host.
    pub host: PathHost,
    /// With the bridge of the receiver, if its network has another one.
    pub far: Option<Box<PathHost>>,
    /// What it does with packets to `to`.
    pub there: Lookup,
    /// What it does with packets to `from`.
    pub back: Lookup,
    /// Connections from one to the other that the kernel follows; `None` if it follows none.
    pub connections: Option<Vec<Connection>>,
    /// What policies say; `None` if they are off.
    pub policies: Option<PathPolicies>,
    /// What an echo said.
    pub echo: Option<EchoResult>,
    /// Who listens at the port of `to`; `None` if that cannot be known here.
    pub listener: Option<PortListener>,
}

/// Who takes in what comes to a port of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortListener {
    Socket,
    /// No socket, and nothing in the pod sends the packets elsewhere.
    None,
    /// No socket; but the pod has firewall rules of its own, which may lead to another port.
    Rules,
}

/// One end.
#[derive(Debug)]
pub struct PathEnd {
    pub address: IpAddr,
    /// Its name, for people.
    pub name: String,
    pub place: EndPlace,
}

/// Where an end is.
#[derive(Debug)]
pub enum EndPlace {
    /// In a pod of this host.
    Pod(Box<TracedPod>),
    /// This host itself.
    ThisHost,
    /// Behind another host of the network, or that host itself.
    RemoteHost(RemoteEnd),
    /// Anywhere else.
    Outside,
}

/// A pod of this host.
#[derive(Debug)]
pub struct TracedPod {
    /// The network whose store it is in.
    pub network: String,
    /// The path of its network namespace; empty if it is not known.
    pub netns: String,
    pub ifname: String,
    /// The name of the host's end; that of a pod that was taken over is found by its address.
    pub port_name: IfName,
    /// The host's end.
    pub port: Option<Link>,
    /// Frames that the guard at the port dropped, by reason; `None` if there is no guard.
    pub guard: Option<BTreeMap<DropReason, u64>>,
    /// Its namespace is there no more, and would be seen from here. The link may go a moment later.
    pub is_gone: bool,
    /// Its address at another interface of ours, by which it sends to the other end.
    pub leaves_from: Option<IpAddr>,
    /// What its namespace looks like; an error is why it could not be looked at.
    pub inside: Result<PodNetns, String>,
}

/// The inside of a pod.
#[derive(Debug)]
pub struct PodNetns {
    pub link: Option<Link>,
    /// Addresses of the interface.
    pub addresses: Vec<IpNetwork>,
    /// The way to the other end.
    pub way: Result<Option<RouteLookup>, String>,
    /// Neighbours on the interface.
    pub neighbours: Vec<NeighbourState>,
}

/// Another host of the network.
#[derive(Clone, Debug)]
pub struct RemoteEnd {
    /// Its name.
    pub host: String,
    /// Its pod subnet with the address in it; `None` if the address is the host's own.
    pub subnet: Option<IpNetwork>,
    /// Its own addresses.
    pub addresses: PerFamily<IpAddr>,
    /// Bytes that a packet to it may have, as it said.
    pub mtu: Option<u32>,
    /// A route of ours to the subnet is there.
    pub has_route: bool,
}

/// This host.
#[derive(Debug)]
pub struct PathHost {
    pub bridge_name: IfName,
    pub bridge: Option<Link>,
    /// What the bridge knows of MACs: its own, those of its ports, and those behind them.
    pub entries: Vec<BridgeEntry>,
    /// This host's pod subnets.
    pub subnets: PerFamily<IpNetwork>,
    /// Where the pods of all hosts have their addresses.
    pub pools: PerFamily<IpNetwork>,
    /// All links, by index.
    pub links: BTreeMap<u32, Link>,
    /// All addresses.
    pub addresses: Vec<Address>,
    /// The sysctl that turns forwarding on, and its value.
    pub forwarding: (&'static str, Option<String>),
    /// The reverse path filter of each link by name, the larger of its own and that of all. Of IPv4
    /// alone.
    pub reverse_path: BTreeMap<IfName, u8>,
    /// Pods have guards, which send what goes from pod to pod to this host.
    pub guards: GuardConf,
    /// Packets from pod to pod on the bridge are shown to firewalls.
    pub bridged: bool,
    /// Chains at the hook `forward`; an error is why they could not be looked at.
    pub forward: Result<HookChains, String>,
    /// Chains at the hook `input`.
    pub input: Result<HookChains, String>,
    /// The UDP port of the host's tunnels.
    pub tunnel_port: u16,
    /// The table of tunnels, if it is there; an error is why it could not be looked at.
    pub tunnel_table: Result<Option<TunnelTable>, String>,
    /// What leaves the pools is to be masqueraded, and whether the table that does it is there.
    pub masquerades: Option<bool>,
}

/// The table that decides which packets of tunnels are taken in, and which pods cannot send.
#[derive(Debug)]
pub struct TunnelTable {
    pub sets: Vec<FoundSet>,
    /// Comments of its rules, with the packets that each has counted.
    pub counts: Vec<(String, u64)>,
    /// Where the pods of all hosts have their addresses.
    pub pools: PerFamily<Pool>,
}

/// What this host does with packets to one address.
#[derive(Debug)]
pub struct Lookup {
    pub way: Result<Option<RouteLookup>, String>,
    /// Packets from the other end are let in on it; an error is the kernel's.
    pub entering: Result<(), String>,
    /// Neighbours on the way's link.
    pub neighbours: Vec<NeighbourState>,
    /// The link is a tunnel.
    pub tunnel: Option<PathTunnel>,
    /// The link is the WireGuard device: the host that the packet is encrypted to, if it is one; an error is why
    /// that is not known.
    pub encrypted: Option<Result<Option<EncryptedHop>, String>>,
}

/// A host as the WireGuard device knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptedHop {
    /// Where it is reached.
    pub endpoint: Option<SocketAddr>,
    /// `None`: there was no handshake.
    pub handshake_age: Option<Duration>,
}

/// A tunnel of this host.
#[derive(Debug)]
pub struct PathTunnel {
    /// Its neighbour table.
    pub known: Vec<NeighbourState>,
    pub destinations: Vec<Destination>,
    /// The way of the outer packets.
    pub way: Result<Option<RouteLookup>, String>,
    /// Neighbours on that way's link.
    pub neighbours: Vec<NeighbourState>,
}

/// Echoes from one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EchoResult {
    /// The sending host.
    pub by: String,
    /// A small one: how long the answer took; `None` if there was none.
    pub small: Result<Option<Duration>, String>,
    /// As large as the way is known to take: its bytes, and whether it was answered.
    pub large: Option<(u32, bool)>,
}

impl Path {
    /// The family of both addresses.
    pub fn family(&self) -> Family {
        Family::of(self.to.address)
    }

    /// Both are pods of this host, the sender finds the other on its own link, and no guard leads what
    /// it sends to the host.
    pub fn is_bridged(&self) -> bool {
        let (Some(from), Some(_)) = (self.from.pod(), self.to.pod()) else { return false };
        if self.far.is_some() || self.host.guards.routes && from.guard.is_some() {
            return false;
        }
        let way = from.inside.as_ref().ok().and_then(|inside| inside.way.as_ref().ok());
        way.is_none_or(|way| way.is_none_or(|way| way.gateway.is_none()))
    }
}

impl PathEnd {
    /// This host, with the bridge of this end.
    pub fn host<'a>(&self, path: &'a Path) -> &'a PathHost {
        let is_far = std::ptr::eq(self, &path.to);
        path.far.as_deref().filter(|_| is_far).unwrap_or(&path.host)
    }

    /// The pod, if it is one of this host's.
    pub fn pod(&self) -> Option<&TracedPod> {
        match &self.place {
            EndPlace::Pod(pod) => Some(pod),
            _ => None,
        }
    }

    /// The other host.
    pub fn remote(&self) -> Option<&RemoteEnd> {
        match &self.place {
            EndPlace::RemoteHost(remote) => Some(remote),
            _ => None,
        }
    }
}

impl TracedPod {
    /// An earlier plugin attached it: the store has neither its network namespace nor its veth.
    pub fn is_taken_over(&self) -> bool {
        self.netns.is_empty()
    }
}

impl PathHost {
    /// The link of that number, for people.
    pub fn name(&self, index: Option<u32>) -> String {
        let link = index.and_then(|index| self.links.get(&index));
        match (link, index) {
            (Some(link), _) => link.name.to_string(),
            (None, Some(index)) => format!("link {index}"),
            (None, None) => "no link".to_owned(),
        }
    }
}

impl PathTunnel {
    /// The MAC of the other end that has the address `next` in the tunnel.
    pub fn inner(&self, next: IpAddr) -> Option<Mac> {
        let known = self.known.iter().find(|known| known.address == next)?;
        known.mac.filter(|_| known.state != NudState::Failed)
    }
}

impl Lookup {
    /// The link that packets go out by.
    pub fn device(&self) -> Option<u32> {
        self.way.as_ref().ok().copied().flatten()?.device
    }
}
