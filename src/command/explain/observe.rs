//! Inspects every hop of a path, for the verdicts of `checks::explain`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path;
use std::time::Duration;

use anyhow::Context;

use crate::api::encryption::handshake_age;
use crate::checks::explain::{
    EchoResult, EncryptedHop, EndPlace, Lookup, Path, PathEnd, PathHost, PathTunnel, PodNetns,
    PortListener, TracedPod, TunnelTable,
};
use crate::command::explain::find::PathEnds;
use crate::command::explain::policies::{self, Judged};
use crate::inspect::{Host, listeners};
use crate::net::gather::Gather;
use crate::net::{Family, IfName};
use crate::netlink::NetlinkError;
use crate::netlink::connections;
use crate::netlink::link::Link;
use crate::netlink::route::{self, RouteLookup};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::wireguard::{self, Wireguard, WireguardPeer};
use crate::nft::Nft;
use crate::os::netns::{self, NetNs};
use crate::os::{echo, sysctl};
use crate::plan::firewall::tunnels::TUNNELS_TABLE;
use crate::plan::firewall::{AGENT_TABLE, standalone_table};
use crate::plan::guard::{DropReason, TABLE};
use crate::settings::exit::Exit;

/// Longest wait for an echo reply.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connections are counted up to this number.
const CONNECTIONS: usize = 1000;

/// The path between two endpoints. With `echoes`, those are sent first: the kernel's neighbour table
/// is fresh then.
///
/// # Errors
/// The kernel does not answer.
pub fn path(ends: PathEnds, found: &Host, echoes: bool) -> Result<Path, Exit> {
    let PathEnds { mut from, mut to, transport, .. } = ends;
    if echoes {
        find_taken_over([&from, &to]);
    }
    let echo = if echoes { send_echoes(&from, &to, found) } else { None };
    let rtnl = &found.kernel.rtnl;
    let connections = connections::between(from.address, to.address, CONNECTIONS).ok();
    let near = bridge_of(&from, found).or_else(|| bridge_of(&to, found));
    let host = host(&from, &to, found, near)?;
    let far = bridge_of(&to, found).filter(|bridge| *bridge != host.bridge_name);
    let far = far.map(|bridge| self::host(&from, &to, found, Some(bridge))).transpose()?;
    let mut there = lookup(rtnl, to.address)?;
    let back = lookup(rtnl, from.address)?;
    let input = match from.place {
        EndPlace::Pod(_) => host.bridge.as_ref().map(|bridge| bridge.index),
        EndPlace::ThisHost => None,
        EndPlace::RemoteHost(_) | EndPlace::Outside => back.device(),
    };
    if let Some(input) = input {
        let way = rtnl.lookup_forwarded(from.address, to.address, input);
        there.entering = way.map(drop).map_err(|error| why(&error));
    }
    let index = |host: &PathHost| host.bridge.as_ref().map(|bridge| bridge.index);
    inspect(&mut from, to.address, found, index(&host))?;
    inspect(&mut to, from.address, found, index(far.as_ref().unwrap_or(&host)))?;
    let judged = Judged {
        from: &from,
        to: &to,
        transport,
        connections: connections.as_deref().unwrap_or_default(),
    };
    let policies = policies::judge(&judged, found)?;
    let listener = transport.and_then(|(protocol, port)| port_listener(&to, protocol, port));
    let far = far.map(Box::new);
    Ok(Path { from, to, transport, host, far, there, back, connections, policies, echo, listener })
}

/// Who listens at a port of a pod of this host; `None` if that cannot be looked at.
fn port_listener(to: &PathEnd, protocol: u8, port: u16) -> Option<PortListener> {
    let netns = NetNs::open(path::Path::new(&to.pod()?.netns)).ok()?;
    let look = || -> anyhow::Result<Option<PortListener>> {
        let Some(taken) = listeners::is_taken(protocol, SocketAddr::new(to.address, port))? else {
            return Ok(None);
        };
        Ok(Some(match taken {
            true => PortListener::Socket,
            false if has_rules()? => PortListener::Rules,
            false => PortListener::None,
        }))
    };
    netns.run(look).ok()?.ok()?
}

/// The calling thread's network namespace has rules that may change where packets go.
fn has_rules() -> anyhow::Result<bool> {
    Ok(listeners::has_legacy_tables()? || !Nft::open()?.all_tables()?.is_empty())
}

/// The frames that the guard of a port has dropped, if there is one.
fn dropped(nft: &Nft, port: &Link) -> Result<Option<BTreeMap<DropReason, u64>>, NetlinkError> {
    if !nft.device_chain_names(TABLE)?.contains(port.name.as_str()) {
        return Ok(None);
    }
    let mut dropped = BTreeMap::new();
    for reason in DropReason::ALL {
        let counts = nft.frame_counts(TABLE, &reason.counters())?;
        dropped.insert(reason, counts.get(&port.index).copied().unwrap_or(0));
    }
    Ok(Some(dropped))
}

/// The kernel's own reason, without the request.
fn why(error: &NetlinkError) -> String {
    error.errno().map_or_else(|| error.to_string(), |errno| errno.desc().to_owned())
}

/// Completes what is known of an endpoint: its pod's interface and namespace, or the route to its host.
fn inspect(
    end: &mut PathEnd,
    other: IpAddr,
    found: &Host,
    bridge: Option<u32>,
) -> Result<(), Exit> {
    let rtnl = &found.kernel.rtnl;
    match &mut end.place {
        EndPlace::Pod(pod) => {
            let port = match (pod.is_taken_over(), bridge) {
                (false, _) => rtnl.link(&pod.port_name),
                (true, Some(bridge)) => port_behind(rtnl, bridge, end.address),
                (true, None) => Ok(None),
            };
            pod.port = port.context("look up the host's end of a veth")?;
            if let Some(port) = &pod.port {
                pod.port_name = port.name.clone();
            }
            let nft = Nft::open().context("open nftables socket")?;
            pod.guard = match &pod.port {
                Some(port) => dropped(&nft, port).context("read a guard")?,
                None => None,
            };
            pod.inside = inside(&pod.netns, &pod.ifname, other);
            pod.leaves_from = found.owner(end.address).and_then(|it| found.source(it, other));
            pod.leaves_from.take_if(|source| *source == end.address);
            pod.is_gone = !pod.is_taken_over()
                && pod.inside.is_err()
                && netns::is_gone(path::Path::new(&pod.netns));
        }
        EndPlace::RemoteHost(remote) => {
            let routes = rtnl.routes(route::PROTOCOL).context("list routes")?;
            remote.has_route = routes.iter().any(|route| Some(route.destination) == remote.subnet);
        }
        EndPlace::ThisHost | EndPlace::Outside => {}
    }
    Ok(())
}

/// The port of the bridge that the pod with this address is behind, by the tables that the kernel keeps for both.
fn port_behind(rtnl: &Rtnl, bridge: u32, address: IpAddr) -> Result<Option<Link>, NetlinkError> {
    let known = rtnl.neighbour(bridge, address)?.and_then(|neighbour| neighbour.mac);
    let port = known.map(|mac| rtnl.port_of(bridge, mac)).transpose()?.flatten();
    port.map_or(Ok(None), |(port, _)| rtnl.link_by_index(port))
}

fn inside(netns: &str, ifname: &str, other: IpAddr) -> Result<PodNetns, String> {
    if netns.is_empty() {
        return Err(
            "an earlier plugin attached it, and its network namespace is not known".to_owned()
        );
    }
    let netns = NetNs::open(path::Path::new(netns)).map_err(|error| error.to_string())?;
    let rtnl = netns.run(Rtnl::open).map_err(|error| error.to_string())?;
    let rtnl = rtnl.map_err(|error| error.to_string())?;
    let look = || -> anyhow::Result<PodNetns> {
        let name = IfName::found(ifname)?;
        let link = rtnl.link(&name)?;
        let index = link.as_ref().map(|link| link.index);
        let (mut addresses, mut neighbours) = (Vec::new(), Vec::new());
        if let Some(index) = index {
            let found = rtnl.addresses(Some(index))?;
            addresses = found.iter().map(|found| found.address).collect();
            neighbours = rtnl.neighbours(index)?;
        }
        let way = rtnl.lookup_route(other).map_err(|error| why(&error));
        Ok(PodNetns { link, addresses, way, neighbours })
    };
    look().map_err(|error| format!("{error:#}"))
}

/// `bridge`: the one to look at; `None` for the agent's.
fn host(
    from: &PathEnd,
    to: &PathEnd,
    found: &Host,
    bridge: Option<IfName>,
) -> Result<PathHost, Exit> {
    let Host { settings, kernel, .. } = found;
    let bridge_name = bridge.unwrap_or_else(|| settings.bridge.clone());
    let family = Family::of(to.address);
    let links = found.links()?.clone();
    let bridge = links.values().find(|link| link.name == bridge_name).cloned();
    let entries = match &bridge {
        Some(bridge) => kernel.rtnl.bridge_entries(bridge.index).unwrap_or_default(),
        None => Vec::new(),
    };
    let forwarding = match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    };
    let bridged = match family {
        Family::V4 => "net/bridge/bridge-nf-call-iptables",
        Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
    };
    let reverse_path = match family {
        Family::V4 => links.values().map(|link| reverse_path(&link.name)).gather(),
        Family::V6 => BTreeMap::new(),
    };
    Ok(PathHost {
        entries,
        reverse_path,
        subnets: found.subnets,
        pools: settings.pool_networks(),
        addresses: found.addresses()?.to_vec(),
        forwarding: (forwarding, sysctl::read(forwarding).ok()),
        guards: settings.guard.clone(),
        bridged: sysctl::read(bridged).is_ok_and(|value| value == "1"),
        forward: kernel.forward.observe(&[family]).map_err(|error| error.to_string()),
        input: kernel.forward.observe_input(&[family]).map_err(|error| error.to_string()),
        tunnel_port: settings.vxlan.port,
        tunnel_table: tunnel_table(found).map_err(|error| error.to_string()),
        masquerades: masquerades(from, to, found),
        bridge_name,
        bridge,
        links,
    })
}

fn tunnel_table(found: &Host) -> Result<Option<TunnelTable>, NetlinkError> {
    let nft = &found.kernel.nft;
    let Some(table) = nft.observe(TUNNELS_TABLE)? else { return Ok(None) };
    let counts = nft.counts(TUNNELS_TABLE)?;
    Ok(Some(TunnelTable { sets: table.sets, counts, pools: found.settings.pools }))
}

/// The bridge of a pod's network; not the agent's if the network has its own.
fn bridge_of(end: &PathEnd, found: &Host) -> Option<IfName> {
    let (rtnl, pod) = (&found.kernel.rtnl, end.pod()?);
    let of_port = || rtnl.link(&pod.port_name).ok()??.master;
    let of_route = || rtnl.lookup_route(end.address).ok()??.device;
    let of_other = || {
        let port = (!pod.is_taken_over()).then(of_port).flatten();
        let bridge = rtnl.link_by_index(port.or_else(of_route)?).ok()??;
        (bridge.kind.as_deref() == Some("bridge")).then_some(bridge.name)
    };
    let other = (pod.network != found.settings.cni.name).then(of_other).flatten();
    Some(other.unwrap_or_else(|| found.settings.bridge.clone()))
}

fn reverse_path(name: &IfName) -> (IfName, u8) {
    let value = |name: &str| -> u8 {
        let text = sysctl::read(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    (name.clone(), value("all").max(value(name.as_str())))
}

/// Whether a table of ours masquerades what pods send outside; `None` if it need not.
fn masquerades(from: &PathEnd, to: &PathEnd, found: &Host) -> Option<bool> {
    let settings = &found.settings;
    let network = &from.pod()?.network;
    let exempt = settings.non_masquerade.iter().any(|network| network.contains(to.address));
    if !settings.masquerade || exempt {
        return None;
    }
    let tables = [AGENT_TABLE.to_owned(), standalone_table(network)];
    let translates = |name: &String| {
        let table = found.kernel.nft.observe(name).ok().flatten();
        table.is_some_and(|table| table.chains.iter().any(|chain| chain.name == "postrouting"))
    };
    Some(tables.iter().any(translates))
}

fn lookup(rtnl: &Rtnl, address: IpAddr) -> Result<Lookup, Exit> {
    let way = rtnl.lookup_route(address).map_err(|error| why(&error));
    let device = way.as_ref().ok().copied().flatten().and_then(|way| way.device);
    let neighbours = match device {
        Some(index) => rtnl.neighbours(index).context("list neighbours")?,
        None => Vec::new(),
    };
    let link = match device {
        Some(index) => rtnl.link_by_index(index).context("look at a link")?,
        None => None,
    };
    let device = link.as_ref().filter(|link| link.kind.as_deref() == Some(wireguard::KIND));
    let encrypted =
        device.map(|device| encrypted_to(&device.name, address).map_err(|error| why(&error)));
    let tunnel = match (link.filter(|link| link.vxlan.is_some()), &way) {
        (Some(link), Ok(Some(way))) => Some(tunnel(rtnl, link.index, *way, address)?),
        _ => None,
    };
    Ok(Lookup { way, entering: Ok(()), neighbours, tunnel, encrypted })
}

/// The host that this device sends packets for `address` to.
fn encrypted_to(device: &IfName, address: IpAddr) -> Result<Option<EncryptedHop>, NetlinkError> {
    let Some(kernel) = Wireguard::open()? else { return Ok(None) };
    let peers = kernel.device(device)?.peers;
    let prefix = |peer: &WireguardPeer| {
        let allowed = peer.allowed.iter().filter(|network| network.contains(address));
        allowed.map(|network| network.prefix()).max()
    };
    let peer = peers.iter().filter(|peer| prefix(peer).is_some()).max_by_key(|peer| prefix(peer));
    Ok(peer
        .map(|peer| EncryptedHop { endpoint: peer.endpoint, handshake_age: handshake_age(peer) }))
}

fn tunnel(
    rtnl: &Rtnl,
    index: u32,
    inner: RouteLookup,
    address: IpAddr,
) -> Result<PathTunnel, Exit> {
    let known = rtnl.neighbours(index).context("list neighbours of a tunnel")?;
    let destinations = rtnl.destinations(index).context("list destinations of a tunnel")?;
    let mut tunnel = PathTunnel { known, destinations, way: Ok(None), neighbours: Vec::new() };
    let mac = tunnel.inner(inner.gateway.unwrap_or(address));
    let there = tunnel.destinations.iter().find(|there| Some(there.mac) == mac);
    if let Some(there) = there {
        tunnel.way = rtnl.lookup_route(there.address).map_err(|error| why(&error));
        if let Ok(Some(RouteLookup { device: Some(device), .. })) = tunnel.way {
            tunnel.neighbours = rtnl.neighbours(device).context("list neighbours")?;
        }
    }
    Ok(tunnel)
}

/// Has the kernel learn which ports lead to pods of which the store does not say it.
fn find_taken_over(ends: [&PathEnd; 2]) {
    for end in ends.into_iter().filter(|end| end.pod().is_some_and(TracedPod::is_taken_over)) {
        _ = echo::round_trip(end.address, None, echo::SMALLEST, PATIENCE);
    }
}

/// Echo requests to the receiver: from the pod that sends if its namespace is known, else from this host, which sends
/// for a pod that was taken over no more bytes than its port takes.
fn send_echoes(from: &PathEnd, to: &PathEnd, found: &Host) -> Option<EchoResult> {
    let rtnl = &found.kernel.rtnl;
    let by_host = |most| Some(echoes("this host".to_owned(), rtnl, to.address, most));
    let Some(pod) = from.pod() else { return by_host(Some(u32::MAX)) };
    if pod.is_taken_over() {
        let bridge = rtnl.link(&bridge_of(from, found)?).ok().flatten();
        let port = bridge.and_then(|bridge| port_behind(rtnl, bridge.index, from.address).ok()?);
        return by_host(port.map(|port| port.mtu));
    }
    let netns = NetNs::open(path::Path::new(&pod.netns)).ok()?;
    let by = from.name.clone();
    netns.run(|| Some(echoes(by, &Rtnl::open().ok()?, to.address, Some(u32::MAX)))).ok()?
}

/// A small one, and one as large as the way is known to take, of at most `most` bytes; `None`: that is not known.
fn echoes(by: String, rtnl: &Rtnl, to: IpAddr, most: Option<u32>) -> EchoResult {
    let path_mtu = || Some(rtnl.path_mtu(to).ok()??.min(most?));
    let small = echo::round_trip(to, None, echo::SMALLEST, PATIENCE);
    let small = small.map_err(|error| error.to_string());
    let answered = matches!(small, Ok(Some(_)));
    let bytes = path_mtu().filter(|_| answered);
    let large = bytes.map(|bytes| {
        // The first one may only teach the kernel what the way takes.
        let again = path_mtu().unwrap_or(bytes);
        let sent = [bytes, again]
            .into_iter()
            .any(|bytes| matches!(echo::round_trip(to, None, bytes, PATIENCE), Ok(Some(_))));
        (bytes, sent)
    });
    EchoResult { by, small, large }
}
