//! Pure. What this host does between the two ends, there and back.

use std::net::IpAddr;

use crate::checks::explain::hop::{AGENT, HERE, Hop, HopFix};
use crate::checks::explain::path::{
    EndPlace, Lookup, Path, PathEnd, PathHost, PathTunnel, RemoteEnd,
};
use crate::checks::explain::{encryption, firewall, tunnel_table};
use crate::checks::interface;
use crate::net::{Family, IfName, Mac};
use crate::netlink::link::Link;
use crate::netlink::neighbour::{NeighbourState, NudState};
use crate::netlink::route::RouteLookup;

/// From the bridge, or whatever the packet comes in by, to what it leaves by.
pub fn host(path: &Path) -> Vec<Hop> {
    let host = &path.host;
    let bridge = host.bridge_name.as_str();
    if path.is_bridged() {
        return match host.bridged {
            true => vec![firewall::forwarded(path, bridge, bridge)],
            false => Vec::new(),
        };
    }
    let mut hops = Vec::new();
    if let EndPlace::RemoteHost(_) | EndPlace::Outside = path.from.place {
        hops.extend(arrival(path));
    }
    hops.extend(tunnel_table::sent(path));
    let (from_here, to_here) = (is_here(&path.from), is_here(&path.to));
    if !from_here && !to_here {
        hops.push(forwarding(host));
    }
    hops.extend(leaving("route", path.to.host(path), &path.there, &path.to));
    let (input, output) = (entry(path), host.name(path.there.device()));
    if let (false, Some(device)) = (from_here, entry_link(path)) {
        hops.extend(reverse_path(path, device));
    }
    match (from_here, to_here) {
        (false, false) => hops.push(firewall::forwarded(path, &input, &output)),
        (false, true) => hops.push(firewall::received(path, &input)),
        _ => {}
    }
    if let (EndPlace::Pod(_), EndPlace::Outside) = (&path.from.place, &path.to.place) {
        hops.extend(masquerade(host));
    }
    if !to_here && path.to.pod().is_none() {
        hops.extend(exit("next-hop", host, &path.there, &path.to));
    }
    hops
}

/// The neighbours at both ends, and the way back through this host.
pub fn back(path: &Path) -> Vec<Hop> {
    let host = &path.host;
    let mut hops = Vec::new();
    hops.extend(pod_neighbour("pod-neighbour", path, &path.from, &path.to));
    if path.to.pod().is_some() && !path.is_bridged() {
        hops.extend(exit("neighbour", host, &path.there, &path.to));
    }
    hops.extend(pod_neighbour("pod-neighbour-back", path, &path.to, &path.from));
    if !path.is_bridged() && !is_here(&path.from) {
        hops.extend(leaving("way-back", host, &path.back, &path.from));
        if path.from.pod().is_none() {
            hops.extend(exit("next-hop-back", host, &path.back, &path.from));
        }
    }
    hops
}

fn is_here(end: &PathEnd) -> bool {
    matches!(end.place, EndPlace::ThisHost)
}

/// The link that packets of the sender come in by.
fn entry_link(path: &Path) -> Option<&Link> {
    match path.from.place {
        EndPlace::Pod(_) => path.host.bridge.as_ref(),
        EndPlace::ThisHost => None,
        EndPlace::RemoteHost(_) | EndPlace::Outside => path.host.links.get(&path.back.device()?),
    }
}

fn entry(path: &Path) -> String {
    entry_link(path).map_or_else(String::new, |link| link.name.to_string())
}

/// What packets of another host come in by.
fn arrival(path: &Path) -> Vec<Hop> {
    let Some(link) = entry_link(path) else { return Vec::new() };
    let name = "arrival";
    if let Some((what, fix)) = interface::fault(link) {
        let seen = format!("packets of {} come by {}, which {what}", path.from.name, link.name);
        return vec![Hop::lost(name, HERE, seen, fix)];
    }
    let seen = format!("packets of {} come by {}", path.from.name, link.name);
    let mut hops = vec![Hop::fine(name, HERE, seen)];
    if let (Some(tunnel), Some(remote)) = (&path.back.tunnel, path.from.remote())
        && let Some((uplink, theirs, ours)) = underlay(path, tunnel, remote)
    {
        hops.push(firewall::tunnels(path, &uplink, theirs, ours));
        hops.extend(tunnel_table::received(path, remote, theirs));
    }
    hops
}

/// The link that packets of a tunnel come in by, and their addresses: theirs and ours.
fn underlay(
    path: &Path,
    tunnel: &PathTunnel,
    remote: &RemoteEnd,
) -> Option<(String, IpAddr, IpAddr)> {
    let way = tunnel.way.as_ref().ok().copied().flatten()?;
    let ours = way.source?;
    let theirs = *remote.addresses.get(Family::of(ours))?;
    Some((path.host.name(way.device), theirs, ours))
}

fn forwarding(host: &PathHost) -> Hop {
    let (key, value) = (host.forwarding.0.replace('/', "."), host.forwarding.1.as_deref());
    match value {
        Some("0") => {
            let fix = format!("sysctl -w {key}=1 # and find out what resets it");
            Hop::lost("forwarding", HERE, format!("{key} = 0: nothing is forwarded"), fix)
        }
        Some(value) => Hop::fine("forwarding", HERE, format!("{key} = {value}")),
        None => Hop::odd("forwarding", HERE, format!("there is no sysctl {key}"), "is IPv6 off?"),
    }
}

/// The host's route to an end.
fn leaving(name: &'static str, host: &PathHost, lookup: &Lookup, end: &PathEnd) -> Vec<Hop> {
    let to = end.address;
    let way = match &lookup.way {
        Ok(Some(way)) => way,
        Ok(None) => return vec![no_route(name, host, end, "there is no route")],
        Err(error) => return vec![no_route(name, host, end, error)],
    };
    let device = host.name(way.device);
    let via = way.gateway.map_or(String::new(), |via| format!(" via {via}"));
    let text = format!("{to}{via} by {device}");
    let bridge = host.bridge.as_ref().map(|bridge| bridge.index);
    match &end.place {
        EndPlace::ThisHost if !way.local => {
            let seen = format!("{text}, although it should be an address of this host");
            vec![Hop::lost(name, HERE, seen, "add that address to this host, or use another one")]
        }
        EndPlace::Pod(_) if way.device != bridge => {
            let seen = format!("{text}, not by {}", host.bridge_name);
            let fix = HopFix::then_agent(format!(
                "ip route get {to} # shows the route that is nearer: remove it"
            ));
            vec![Hop::lost(name, HERE, seen, fix)]
        }
        EndPlace::RemoteHost(RemoteEnd { subnet: Some(subnet), has_route: false, .. }) => {
            let why = format!("the route to {subnet} is missing, and packets take {text}");
            vec![no_route(name, host, end, &why)]
        }
        _ => vec![Hop::fine(name, HERE, text)],
    }
}

/// Why there is no route to `end`, and what to do.
fn no_route(name: &'static str, host: &PathHost, end: &PathEnd, why: &str) -> Hop {
    let to = end.address;
    let Some(remote) = end.remote() else {
        let fix = match end.place {
            EndPlace::Pod(_) => AGENT,
            _ => format!("give this host a route to {to}").into(),
        };
        return Hop::lost(name, HERE, format!("{to}: {why}"), fix);
    };
    let down = remote.addresses.iter().find_map(|address| down_link(host, *address));
    if let Some((link, (what, fix))) = down {
        let seen = format!("{link}, which leads to {}, {what}", remote.host);
        return Hop::lost("uplink", HERE, seen, fix);
    }
    let tunnel = host.links.values().find(|link| link.vxlan.is_some() && !link.up);
    if let (Some(link), Some(_)) = (tunnel, remote.subnet) {
        let name = &link.name;
        let fix = HopFix::then_agent(format!("ip link set {name} up"));
        return Hop::lost("tunnel", HERE, format!("{name} is down, and its routes are gone"), fix);
    }
    let fix = match remote.subnet {
        Some(_) => AGENT,
        None => format!("give this host a route to {to}").into(),
    };
    Hop::lost(name, HERE, format!("{to} of host {}: {why}", remote.host), fix)
}

/// The link on whose segment `address` is, if it passes no packets: what is wrong, and what helps.
fn down_link(host: &PathHost, address: IpAddr) -> Option<(&IfName, (&'static str, String))> {
    let on_link = host.addresses.iter().filter(|found| {
        let is_foreign = found.address.ip() != address;
        is_foreign && found.address.prefix() > 0 && found.address.contains(address)
    });
    let mut links = on_link.filter_map(|found| host.links.get(&found.index));
    links.find_map(|link| Some((&link.name, interface::fault(link)?)))
}

/// Whether the kernel lets packets of the sender in where they come from.
fn reverse_path(path: &Path, device: &Link) -> Option<Hop> {
    let host = &path.host;
    let name = &device.name;
    let filter = *host.reverse_path.get(name).unwrap_or(&0);
    let entering = path.there.entering.as_ref();
    let other = path.back.device() != Some(device.index);
    match entering {
        Err(error) if filter == 1 && other => {
            let back = host.name(path.back.device());
            let from = path.from.address;
            let seen = format!(
                "rp_filter of {name} is strict, and packets to {from} would leave by {back}: the \
                 kernel drops what comes from there ({error})"
            );
            let fix = format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2 # and repair the route");
            Some(Hop::lost("reverse-path", HERE, seen, fix))
        }
        Err(error) => {
            let seen = format!("the kernel does not forward what comes in by {name}: {error}");
            let fix = "ip rule; ip route show table all # look for rules and routes of others";
            Some(Hop::lost("reverse-path", HERE, seen, fix))
        }
        Ok(()) => None,
    }
}

/// What leaves the pools must be masqueraded, or the answer goes nowhere.
fn masquerade(host: &PathHost) -> Option<Hop> {
    match host.masquerades? {
        true => Some(Hop::fine("masquerade", HERE, "it leaves with this host's address")),
        false => {
            let seen = "no nft table of humanz masquerades it: it leaves with the pod's own \
                        address, for which other hosts have no route";
            Some(Hop::lost("masquerade", HERE, seen, AGENT))
        }
    }
}

/// The next hop on the way to an end, and the tunnel to it.
fn exit(name: &'static str, host: &PathHost, lookup: &Lookup, end: &PathEnd) -> Vec<Hop> {
    let Some(way) = lookup.way.as_ref().ok().copied().flatten() else { return Vec::new() };
    if way.local {
        return Vec::new();
    }
    let Some(link) = way.device.and_then(|index| host.links.get(&index)) else { return Vec::new() };
    if let Some((what, fix)) = interface::fault(link) {
        return vec![Hop::lost("uplink", HERE, format!("{} {what}", link.name), fix)];
    }
    let next = way.gateway.unwrap_or(end.address);
    if let Some(found) = &lookup.encrypted {
        return vec![encryption::hop(found, link.name.as_str(), end)];
    }
    if let Some(tunnel) = &lookup.tunnel {
        return through(host, link, next, tunnel, end);
    }
    let wanted = end.pod().and_then(|pod| pod.inside.as_ref().ok()?.link.as_ref()?.mac);
    let wanted = wanted.filter(|_| next == end.address);
    neighbour(name, HERE, &lookup.neighbours, (next, link.name.as_str()), wanted)
        .into_iter()
        .collect()
}

/// What is known of a next hop on a link; nothing if nothing was asked.
fn neighbour(
    name: &'static str,
    place: &str,
    known: &[NeighbourState],
    (next, link): (IpAddr, &str),
    wanted: Option<Mac>,
) -> Option<Hop> {
    let found = known.iter().find(|known| known.address == next)?;
    let forget = format!("ip neighbour delete {next} dev {link}");
    let hop = match (found.state, found.mac, wanted) {
        (NudState::Failed | NudState::Incomplete, ..) => {
            let seen = format!("{next} does not answer on {link} (neighbour failed)");
            let fix = format!("is the host with {next} up, and on the same segment as {link}?");
            Hop::lost(name, place, seen, fix)
        }
        (_, Some(mac), Some(wanted)) if mac != wanted => {
            let seen = format!("{next} on {link} is taken for {mac}, and it is {wanted}");
            Hop::lost(name, place, seen, forget)
        }
        (_, Some(mac), _) => Hop::fine(name, place, format!("{next} on {link} is {mac}")),
        (_, None, _) => return None,
    };
    Some(hop)
}

/// The parts of a tunnel: MAC of the other end, where frames for it go, and the way there.
fn through(
    host: &PathHost,
    link: &Link,
    next: IpAddr,
    tunnel: &PathTunnel,
    end: &PathEnd,
) -> Vec<Hop> {
    let (name, device) = ("tunnel", &link.name);
    let host_name = end.remote().map_or("the other host", |remote| remote.host.as_str());
    let mac = tunnel.inner(next);
    let Some(mac) = mac else {
        let seen = format!("{device} does not know the MAC of {next} (host {host_name})");
        return vec![Hop::lost(name, HERE, seen, AGENT)];
    };
    let Some(there) = tunnel.destinations.iter().find(|there| there.mac == mac) else {
        let seen = format!("{device} does not know where to send frames for {mac} ({host_name})");
        return vec![Hop::lost(name, HERE, seen, AGENT)];
    };
    let theirs = end.remote().map(|remote| remote.addresses).unwrap_or_default();
    let known = theirs.get(Family::of(there.address));
    if known.is_some_and(|known| *known != there.address) {
        let seen = format!("{device} sends to {}, which is not {host_name}'s", there.address);
        return vec![Hop::lost(name, HERE, seen, AGENT)];
    }
    let fine = Hop::fine(name, HERE, format!("{device} sends to {} ({mac})", there.address));
    let mut hops = vec![fine];
    hops.extend(outer(host, tunnel, there.address));
    hops
}

/// The way of a tunnel's outer packets.
fn outer(host: &PathHost, tunnel: &PathTunnel, address: IpAddr) -> Option<Hop> {
    let name = "underlay";
    let way: RouteLookup = match &tunnel.way {
        Ok(Some(way)) => *way,
        Ok(None) => {
            let seen = format!("this host has no route to {address}");
            return Some(Hop::lost(name, HERE, seen, "ip route # is the uplink up?"));
        }
        Err(error) => {
            let seen = format!("this host has no way to {address}: {error}");
            return Some(Hop::lost(name, HERE, seen, "ip route # is the uplink up?"));
        }
    };
    let device = host.name(way.device);
    let next = way.gateway.unwrap_or(address);
    let hop = neighbour(name, HERE, &tunnel.neighbours, (next, &device), None);
    Some(hop.unwrap_or_else(|| Hop::fine(name, HERE, format!("{address} by {device}"))))
}

/// What a pod believes of the MAC of its next hop.
fn pod_neighbour(name: &'static str, path: &Path, end: &PathEnd, other: &PathEnd) -> Option<Hop> {
    let inside = end.pod()?.inside.as_ref().ok()?;
    let way = inside.way.as_ref().ok().copied().flatten()?;
    let next = way.gateway.unwrap_or(other.address);
    let bridge = end.host(path).bridge.as_ref();
    let other_pod = || other.pod()?.inside.as_ref().ok()?.link.as_ref()?.mac;
    let wanted = match way.gateway {
        Some(_) => bridge.and_then(|bridge| bridge.mac),
        None => other_pod(),
    };
    let link = end.pod().map_or("", |pod| pod.ifname.as_str());
    neighbour(name, &end.name, &inside.neighbours, (next, link), wanted)
}
