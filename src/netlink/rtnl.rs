//! Links, addresses and routes of one network namespace.

use std::net::IpAddr;

use nix::errno::Errno;

use crate::net::{Family, IfName, Mac, subnet};
use crate::netlink::address::{self, Address};
use crate::netlink::bridge_vlan::{self, PortVlans, VlanDevice};
use crate::netlink::fdb::{self, BridgeEntry, Destination, EntryKind};
use crate::netlink::filter;
use crate::netlink::link::{self, Link, LinkRef};
use crate::netlink::link_settings::{self, LinkSettings};
use crate::netlink::neighbour::{self, Neighbour, NeighbourState};
use crate::netlink::port_queue::{self, PortQueue};
use crate::netlink::qdisc;
use crate::netlink::route::{self, ForeignRoute, Route, RouteLookup};
use crate::netlink::rule::{self, RoutingRule};
use crate::netlink::shaper::{self, ShapedClass};
use crate::netlink::vxlan;
use crate::netlink::{Message, NetlinkError, NetlinkProtocol, NetlinkSocket, Reply};

/// A socket in the network namespace that it was opened in.
pub struct Rtnl {
    socket: NetlinkSocket,
}

impl Rtnl {
    /// Opens it in the namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open() -> Result<Rtnl, NetlinkError> {
        Ok(Rtnl { socket: NetlinkSocket::open(NetlinkProtocol::Route)? })
    }

    /// The port that notifications of changes through this socket bear; see [`NetlinkSocket::port`].
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn port(&self) -> Result<u32, NetlinkError> {
        self.socket.port()
    }

    /// Carries out all messages, sent at once; see [`NetlinkSocket::transact`].
    ///
    /// # Errors
    /// The first refusal.
    pub fn apply(&self, messages: &[Message]) -> Result<(), NetlinkError> {
        self.socket.transact(messages)
    }

    /// Carries out all messages and says for each, in their order, whether it was done: for many
    /// that do not depend on each other. Sent 128 at once.
    ///
    /// # Errors
    /// The talk itself failed; how far it came is not known.
    pub fn apply_each(
        &self,
        messages: &[Message],
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        self.socket.transact_each(messages)
    }

    /// The link of that name.
    ///
    /// # Errors
    /// Any but that there is none.
    pub fn link(&self, name: &IfName) -> Result<Option<Link>, NetlinkError> {
        self.one(&link::get(LinkRef::Name(name)))
    }

    /// The link of that number.
    ///
    /// # Errors
    /// Any but that there is none.
    pub fn link_by_index(&self, index: u32) -> Result<Option<Link>, NetlinkError> {
        self.one(&link::get(LinkRef::Index(index)))
    }

    /// All links, or the ports of one bridge.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn links(&self, master: Option<u32>) -> Result<Vec<Link>, NetlinkError> {
        self.socket.dump(&link::list(master), link::parse)
    }

    /// All bridges.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn bridges(&self) -> Result<Vec<Link>, NetlinkError> {
        self.socket.dump(&link::list_kind("bridge"), link::parse)
    }

    /// All links of a kind.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn links_of_kind(&self, kind: &str) -> Result<Vec<Link>, NetlinkError> {
        let mut links = self.socket.dump(&link::list_kind(kind), link::parse)?;
        links.retain(|link| link.kind.as_deref() == Some(kind));
        Ok(links)
    }

    /// How many ports a bridge has.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn count_ports(&self, bridge: u32) -> Result<usize, NetlinkError> {
        Ok(self.socket.dump(&link::list(Some(bridge)), |_| Ok(Some(())))?.len())
    }

    /// The bridge of that number keeps VLANs apart.
    ///
    /// # Errors
    /// [`NetlinkError`], also if there is none.
    pub fn filters_vlans(&self, bridge: u32) -> Result<bool, NetlinkError> {
        let request = link::get(LinkRef::Index(bridge));
        let found = self.socket.ask(&request, bridge_vlan::parse_filtering)?;
        Ok(found.unwrap_or_default())
    }

    /// The VLANs of the port of that number.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn port_vlans(&self, port: u32) -> Result<PortVlans, NetlinkError> {
        let all = self.socket.dump(&bridge_vlan::list(), bridge_vlan::parse)?;
        Ok(all
            .into_iter()
            .find(|(index, _)| *index == port)
            .map(|(_, vlans)| vlans)
            .unwrap_or_default())
    }

    /// Which VLAN of which link the link of that number is for; `None` if it is no VLAN device.
    ///
    /// # Errors
    /// [`NetlinkError`], also if there is none.
    pub fn vlan_device(&self, index: u32) -> Result<Option<VlanDevice>, NetlinkError> {
        self.socket.ask(&link::get(LinkRef::Index(index)), bridge_vlan::parse_device)
    }

    /// All VXLAN devices.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn vxlans(&self) -> Result<Vec<Link>, NetlinkError> {
        let mut links = self.socket.dump(&link::list_kind(vxlan::KIND), link::parse)?;
        links.retain(|link| link.vxlan.is_some());
        Ok(links)
    }

    /// Where the VXLAN device of that number sends to.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn destinations(&self, index: u32) -> Result<Vec<Destination>, NetlinkError> {
        self.socket.dump(&fdb::list(index), fdb::parse)
    }

    /// The permanent neighbour entries of the link of that number, both families.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn permanent_neighbours(&self, index: u32) -> Result<Vec<Neighbour>, NetlinkError> {
        self.socket.dump(&neighbour::list(index), neighbour::parse)
    }

    /// All that is known of neighbours of the link of that number, both families.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn neighbours(&self, index: u32) -> Result<Vec<NeighbourState>, NetlinkError> {
        self.socket.dump(&neighbour::list(index), neighbour::parse_state)
    }

    /// What is known of the neighbour `address` of the link of that number.
    ///
    /// # Errors
    /// Any but that there is none.
    pub fn neighbour(
        &self,
        index: u32,
        address: IpAddr,
    ) -> Result<Option<NeighbourState>, NetlinkError> {
        absent(self.socket.ask(&neighbour::get(index, address), neighbour::parse_state))
    }

    /// The port of a bridge that `mac` is behind, and whether it is pinned there.
    ///
    /// # Errors
    /// Any but that the bridge does not know it.
    pub fn port_of(&self, bridge: u32, mac: Mac) -> Result<Option<(u32, bool)>, NetlinkError> {
        let found = self.bridge_entry(bridge, mac)?.filter(|entry| entry.kind != EntryKind::Local);
        Ok(found.map(|entry| (entry.link, entry.kind == EntryKind::Pinned)))
    }

    /// The entry of a bridge for `mac` outside of VLANs.
    ///
    /// # Errors
    /// Any but that there is none.
    pub fn bridge_entry(&self, bridge: u32, mac: Mac) -> Result<Option<BridgeEntry>, NetlinkError> {
        absent(self.socket.ask(&fdb::get(bridge, mac), fdb::parse_bridge))
    }

    /// All entries of a bridge, also its own MACs.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn bridge_entries(&self, bridge: u32) -> Result<Vec<BridgeEntry>, NetlinkError> {
        self.socket.dump(&fdb::list_bridge(bridge), fdb::parse_bridge)
    }

    /// The MACs that a bridge has seen or that are pinned, each with the index of the port that it is behind.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn learned(&self, bridge: u32) -> Result<Vec<(Mac, u32)>, NetlinkError> {
        let mut entries = self.bridge_entries(bridge)?;
        entries.retain(|entry| entry.kind != EntryKind::Local);
        Ok(entries.iter().map(|entry| (entry.mac, entry.link)).collect())
    }

    /// Lets no packet for 127.0.0.0/8 in by a port of the bridge of that number.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn drop_loopback_at_ports(&self, bridge: u32) -> Result<(), NetlinkError> {
        for port in self.links(Some(bridge))? {
            let messages = filter::drop_loopback(port.index);
            self.apply(&messages.map(|message| message.tolerating(Errno::ENODEV)))?;
        }
        Ok(())
    }

    /// The MACs that are pinned to ports of a bridge, each with the index of its port.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn pinned(&self, bridge: u32) -> Result<Vec<(Mac, u32)>, NetlinkError> {
        let mut entries = self.bridge_entries(bridge)?;
        entries.retain(|entry| entry.kind == EntryKind::Pinned);
        Ok(entries.iter().map(|entry| (entry.mac, entry.link)).collect())
    }

    /// All addresses, or those of one link.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn addresses(&self, index: Option<u32>) -> Result<Vec<Address>, NetlinkError> {
        self.socket.dump(&address::list(index.unwrap_or(0)), address::parse)
    }

    /// How a link is set.
    ///
    /// # Errors
    /// [`NetlinkError`], also if there is none.
    pub fn link_settings(&self, index: u32) -> Result<LinkSettings, NetlinkError> {
        self.socket.ask(&link::get(LinkRef::Index(index)), link_settings::parse)
    }

    /// The rate that our queue holds a link to, bytes in a second.
    ///
    /// # Errors
    /// Any but that there is none.
    pub fn rate(&self, device: u32) -> Result<Option<u64>, NetlinkError> {
        absent(self.socket.ask(&qdisc::get(device), qdisc::parse))
    }

    /// The rate that the profile's queue holds a link to, bytes in a second.
    ///
    /// # Errors
    /// Any but that there is none.
    pub fn profile_rate(&self, device: u32) -> Result<Option<u64>, NetlinkError> {
        absent(self.socket.ask(&port_queue::get(device), qdisc::parse))
    }

    /// The queues of all links that hold pods to rates.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn port_queues(&self) -> Result<Vec<PortQueue>, NetlinkError> {
        self.socket.dump(&port_queue::list(), port_queue::parse)
    }

    /// The classes of a device that limits pods.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn shaped_classes(&self, device: u32) -> Result<Vec<(u16, ShapedClass)>, NetlinkError> {
        self.socket.dump(&shaper::list(device), shaper::parse)
    }

    /// The routes of a protocol in the main table, both families.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn routes(&self, protocol: u8) -> Result<Vec<Route>, NetlinkError> {
        let parse = |reply: &Reply<'_>| Ok(route::parse(reply)?.map(|route| vec![route]));
        self.both(|family| route::list(family, protocol), of_route, parse)
    }

    /// The routes of every table that are not ours, both families.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn foreign_routes(&self) -> Result<Vec<ForeignRoute>, NetlinkError> {
        let parse = |reply: &Reply<'_>| Ok(route::parse_foreign(reply)?.map(|route| vec![route]));
        self.both(route::list_all, |route| subnet::family(route.destination), parse)
    }

    /// The rules that choose a table, both families.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn rules(&self) -> Result<Vec<RoutingRule>, NetlinkError> {
        self.both(
            rule::list,
            |rule: &RoutingRule| rule.family,
            |reply| Ok(rule::parse(reply)?.map(|rule| vec![rule])),
        )
    }

    /// The routes of every table, both families; one with several next hops is there as often.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn all_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        self.both(route::list_all, of_route, route::parse_paths)
    }

    /// The route that a packet to `address` would take; `None` if there is none.
    ///
    /// # Errors
    /// Any but that there is none.
    pub fn lookup_route(&self, address: IpAddr) -> Result<Option<RouteLookup>, NetlinkError> {
        match self.socket.ask(&route::lookup(address), route::parse_lookup) {
            Err(error)
                if matches!(error.errno(), Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH)) =>
            {
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// Bytes that a packet to `address` may have, as far as the kernel knows; `None` if there is no
    /// route, or it is the namespace's own.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn path_mtu(&self, address: IpAddr) -> Result<Option<u32>, NetlinkError> {
        let Some(route) = self.lookup_route(address)?.filter(|route| !route.local) else {
            return Ok(None);
        };
        let link = route.device.map(|device| self.link_by_index(device)).transpose()?;
        Ok(route.mtu.or(link.flatten().map(|link| link.mtu)))
    }

    /// The route that a packet from `source` to `address` takes that comes in by the link `input`.
    ///
    /// # Errors
    /// Also that it is not forwarded: see [`route::lookup_forwarded`].
    pub fn lookup_forwarded(
        &self,
        source: IpAddr,
        address: IpAddr,
        input: u32,
    ) -> Result<RouteLookup, NetlinkError> {
        self.socket.ask(&route::lookup_forwarded(source, address, input), route::parse_lookup)
    }

    /// The routes of both families. A family without any address has no table yet: `ENOENT`. A
    /// kernel without IPv6 answers a question for it with what it has, the routes of IPv4.
    fn both<T>(
        &self,
        list: impl Fn(Family) -> Message,
        family_of: impl Fn(&T) -> Family,
        parse: impl Fn(&Reply<'_>) -> Result<Option<Vec<T>>, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut routes = Vec::new();
        for family in Family::BOTH {
            match self.socket.dump(&list(family), &parse) {
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                found => routes.extend(
                    found?.into_iter().flatten().filter(|route| family_of(route) == family),
                ),
            }
        }
        Ok(routes)
    }

    fn one(&self, request: &Message) -> Result<Option<Link>, NetlinkError> {
        let parse = |reply: &Reply<'_>| link::parse(reply);
        match self.socket.ask(request, parse) {
            Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
            answer => answer,
        }
    }
}

/// What there is not is no error.
fn absent<T>(answer: Result<Option<T>, NetlinkError>) -> Result<Option<T>, NetlinkError> {
    match answer {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        answer => answer,
    }
}

fn of_route(route: &Route) -> Family {
    subnet::family(route.destination)
}
