//! Looks at everything on the way, for the judgement in `plan::explain`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::checks::explain::{
    Beyond, End, Host, Inside, Journey, Place, Pod, Probe, Toward, Tunnel,
};
use crate::command::around::{Around, Attachment};
use crate::command::explain::find::{self, Pair};
use crate::net::{Family, IfName};
use crate::netlink::NetlinkError;
use crate::netlink::connections;
use crate::netlink::link::Link;
use crate::netlink::route::{self, RouteLookup};
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::os::{echo, sysctl};
use crate::plan::firewall::{AGENT_TABLE, standalone_table};
use crate::plan::pod::LinkIdentity;
use crate::settings::exit::Exit;

/// How long an answer to an echo is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many connections are counted.
const CONNECTIONS: usize = 1000;

/// All there is to be seen between the two ends. With `echoes`, those are sent first: what the
/// kernel then knows of neighbours is fresh.
///
/// # Errors
/// The kernel does not answer.
pub fn journey(pair: &Pair, around: &Around, echoes: bool) -> Result<Journey, Exit> {
    let probe = if echoes { probe(pair, around) } else { None };
    let (source, destination) = (pair.from.address, pair.to.address);
    let connections = connections::between(source, destination, CONNECTIONS).ok();
    let host = host(pair, around)?;
    let mut there = toward(around, destination)?;
    let back = toward(around, source)?;
    let input = match pair.from.place {
        find::Place::Pod(_) => host.bridge.as_ref().map(|bridge| bridge.index),
        find::Place::Host => None,
        find::Place::Beyond(_) | find::Place::Outside => back.device(),
    };
    if let Some(input) = input {
        let way = around.rtnl.lookup_forwarded(source, destination, input);
        there.entering = way.map(drop).map_err(|error| why(&error));
    }
    let from = end(&pair.from, destination, around)?;
    let to = end(&pair.to, source, around)?;
    Ok(Journey { from, to, transport: pair.port, host, there, back, connections, probe })
}

/// The kernel's own word, without what was asked.
fn why(error: &NetlinkError) -> String {
    error.errno().map_or_else(|| error.to_string(), |errno| errno.desc().to_owned())
}

fn end(found: &find::End, other: IpAddr, around: &Around) -> Result<End, Exit> {
    let place = match &found.place {
        find::Place::Pod(attachment) => Place::Pod(Box::new(pod(attachment, other, around)?)),
        find::Place::Host => Place::Host,
        find::Place::Outside => Place::Outside,
        find::Place::Beyond(beyond) => {
            let routes = around.rtnl.routes(route::PROTOCOL).context("list routes")?;
            let has_route = routes.iter().any(|route| Some(route.destination) == beyond.subnet);
            Place::Beyond(Beyond { has_route, ..beyond.clone() })
        }
    };
    Ok(End { address: found.address, name: found.name.clone(), place })
}

fn pod(attachment: &Attachment, other: IpAddr, around: &Around) -> Result<Pod, Exit> {
    let Attachment { network, entry } = attachment;
    let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
    let port_name = LinkIdentity { network, container_id, ifname }.host_ifname();
    let port = around.rtnl.link(&port_name).context("look at the host's end")?;
    let netns = entry.netns.clone().unwrap_or_default();
    let inside = inside(&netns, ifname, other);
    Ok(Pod { netns, ifname: ifname.to_owned(), port_name, port, inside })
}

fn inside(netns: &str, ifname: &str, other: IpAddr) -> Result<Inside, String> {
    if netns.is_empty() {
        return Err("its network namespace is not known".to_owned());
    }
    let netns = NetNs::open(Path::new(netns)).map_err(|error| error.to_string())?;
    let rtnl = netns.run(Rtnl::open).map_err(|error| error.to_string())?;
    let rtnl = rtnl.map_err(|error| error.to_string())?;
    let look = || -> anyhow::Result<Inside> {
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
        Ok(Inside { link, addresses, way, neighbours })
    };
    look().map_err(|error| format!("{error:#}"))
}

fn host(pair: &Pair, around: &Around) -> Result<Host, Exit> {
    let Around { settings, rtnl, .. } = around;
    let bridge_name = bridge_name(pair, around);
    let family = Family::of(pair.to.address);
    let links = rtnl.links(None).context("list links")?;
    let links: BTreeMap<u32, Link> = links.into_iter().map(|link| (link.index, link)).collect();
    let bridge = links.values().find(|link| link.name == bridge_name).cloned();
    let learned = match &bridge {
        Some(bridge) => rtnl.learned(bridge.index).unwrap_or_default(),
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
        Family::V4 => links.values().map(|link| reverse_path(&link.name)).collect(),
        Family::V6 => BTreeMap::new(),
    };
    Ok(Host {
        learned,
        reverse_path,
        subnets: around.subnets,
        pools: settings.pool_networks(),
        addresses: around.addresses.clone(),
        forwarding: (forwarding, sysctl::read(forwarding).ok()),
        bridged: sysctl::read(bridged).is_ok_and(|value| value == "1"),
        forward: around.forward.observe(&[family]).map_err(|error| error.to_string()),
        input: around.forward.observe_input(&[family]).map_err(|error| error.to_string()),
        tunnel_port: settings.vxlan.port,
        masquerades: masquerades(pair, around),
        bridge_name,
        bridge,
        links,
    })
}

/// The bridge of the pods' network; another than the agent's where a network has its own.
fn bridge_name(pair: &Pair, around: &Around) -> IfName {
    let usual = around.settings.bridge.clone();
    let other = [&pair.to, &pair.from].into_iter().find_map(|end| match &end.place {
        find::Place::Pod(Attachment { network, entry }) if *network != around.settings.cni.name => {
            let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
            let port = LinkIdentity { network, container_id, ifname }.host_ifname();
            let master = around.rtnl.link(&port).ok()??.master?;
            Some(around.rtnl.link_by_index(master).ok()??.name)
        }
        _ => None,
    });
    other.unwrap_or(usual)
}

fn reverse_path(name: &IfName) -> (IfName, u8) {
    let value = |name: &str| -> u8 {
        let text = sysctl::read(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    (name.clone(), value("all").max(value(name.as_str())))
}

/// A table of ours translates what pods send outside; `None` if it need not.
fn masquerades(pair: &Pair, around: &Around) -> Option<bool> {
    let settings = &around.settings;
    let find::Place::Pod(Attachment { network, .. }) = &pair.from.place else { return None };
    let to = pair.to.address;
    let spared = settings.non_masquerade.iter().any(|network| network.contains(to));
    if !settings.masquerade || spared {
        return None;
    }
    let tables = [AGENT_TABLE.to_owned(), standalone_table(network)];
    let translates = |name: &String| {
        let table = around.nft.observe(name).ok().flatten();
        table.is_some_and(|table| table.chains.iter().any(|chain| chain.name == "postrouting"))
    };
    Some(tables.iter().any(translates))
}

fn toward(around: &Around, address: IpAddr) -> Result<Toward, Exit> {
    let rtnl = &around.rtnl;
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
    let tunnel = match (link.filter(|link| link.vxlan.is_some()), &way) {
        (Some(link), Ok(Some(way))) => Some(tunnel(rtnl, link.index, *way, address)?),
        _ => None,
    };
    Ok(Toward { way, entering: Ok(()), neighbours, tunnel })
}

fn tunnel(rtnl: &Rtnl, index: u32, inner: RouteLookup, address: IpAddr) -> Result<Tunnel, Exit> {
    let known = rtnl.neighbours(index).context("list neighbours of a tunnel")?;
    let destinations = rtnl.destinations(index).context("list destinations of a tunnel")?;
    let mut tunnel = Tunnel { known, destinations, way: Ok(None), neighbours: Vec::new() };
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

/// Echoes to the receiver: from the pod that sends, else from this host.
fn probe(pair: &Pair, around: &Around) -> Option<Probe> {
    let to = pair.to.address;
    if let find::Place::Pod(Attachment { entry, .. }) = &pair.from.place {
        let netns = NetNs::open(Path::new(entry.netns.as_deref()?)).ok()?;
        let by = pair.from.name.clone();
        return netns.run(|| Some(echoes(by, &Rtnl::open().ok()?, to))).ok()?;
    }
    Some(echoes("this host".to_owned(), &around.rtnl, to))
}

/// A small one, and one as large as the way is known to take.
fn echoes(by: String, rtnl: &Rtnl, to: IpAddr) -> Probe {
    let small = echo::round_trip(to, None, echo::SMALLEST, PATIENCE);
    let small = small.map_err(|error| error.to_string());
    let answered = matches!(small, Ok(Some(_)));
    let bytes = rtnl.path_mtu(to).ok().flatten().filter(|_| answered);
    let large = bytes.map(|bytes| {
        // The first one may only teach the kernel what the way takes.
        let again = rtnl.path_mtu(to).ok().flatten().unwrap_or(bytes);
        let sent = [bytes, again]
            .into_iter()
            .any(|bytes| matches!(echo::round_trip(to, None, bytes, PATIENCE), Ok(Some(_))));
        (bytes, sent)
    });
    Probe { by, small, large }
}
