//! Pure. The two ends, as far as they are pods of this host.

use std::net::IpAddr;

use crate::checks::explain::hop::{AGENT, HERE, Hop, HopFix};
use crate::checks::explain::path::{Path, PathEnd, PathHost, PodNetns, TracedPod};
use crate::net::Family;
use crate::netlink::fdb::{BridgeEntry, EntryKind};
use crate::netlink::link::Link;
use crate::plan::guard::DropReason;
use crate::plan::local_macs::entry_of;

/// The sender, up to the bridge.
pub fn source(path: &Path) -> Vec<Hop> {
    let Some(pod) = path.from.pod() else { return Vec::new() };
    let mut hops = inside(&path.from, pod);
    if let Ok(inside) = &pod.inside {
        hops.push(route(path, (&path.from, pod), &path.to, inside));
    }
    hops.extend(bridge(path));
    hops.push(port(&path.from, pod, &path.host));
    hops.extend(guard(&path.from, pod, &path.host));
    hops
}

/// The receiver, from the bridge on, and what it needs to answer.
pub fn destination(path: &Path) -> Vec<Hop> {
    let Some(pod) = path.to.pod() else { return Vec::new() };
    let mut hops = Vec::new();
    if path.from.pod().is_none() {
        hops.extend(bridge(path));
    }
    hops.push(port(&path.to, pod, path.to.host(path)));
    hops.extend(inside(&path.to, pod));
    if let Ok(inside) = &pod.inside {
        hops.push(Hop { name: "pod-way-back", ..route(path, (&path.to, pod), &path.from, inside) });
    }
    hops
}

/// Namespace, interface and address of a pod.
fn inside(end: &PathEnd, pod: &TracedPod) -> Vec<Hop> {
    let (name, netns, ifname) = (&end.name, &pod.netns, &pod.ifname);
    let inside = match &pod.inside {
        Ok(inside) => inside,
        Err(error) => return vec![unseen(name, pod, error)],
    };
    let again = "recreate the pod: nothing else restores what ADD made inside it";
    let Some(link) = &inside.link else {
        let seen = format!("{netns} has no interface {ifname}");
        return vec![Hop::lost("pod-interface", name, seen, again)];
    };
    if !link.up {
        let fix = format!("nsenter --net={netns} ip link set {ifname} up");
        return vec![Hop::lost("pod-interface", name, format!("{ifname} is down"), fix)];
    }
    let up = Hop::fine("pod-interface", name, format!("{ifname} is up, MTU {}", link.mtu));
    let has = inside.addresses.iter().find(|address| address.ip() == end.address);
    let address = match has {
        Some(address) => Hop::fine("pod-address", name, format!("{ifname} has {address}")),
        None => {
            let seen = format!("{ifname} does not have {}, which is the pod's", end.address);
            Hop::lost("pod-address", name, seen, again)
        }
    };
    vec![up, address]
}

/// A namespace that cannot be entered. While the host's end of its veth is there, so is the namespace, unless it is
/// seen to be gone.
fn unseen(name: &str, pod: &TracedPod, error: &str) -> Hop {
    if pod.is_gone || (pod.port.is_none() && !pod.is_taken_over()) {
        let fix = "the pod is gone or incomplete: the runtime must recreate it (crictl rmp, or delete \
                   the pod)";
        return Hop::lost("pod-namespace", name, error, fix);
    }
    let (seen, fix) = if pod.is_taken_over() {
        (error.to_owned(), "look inside by hand (crictl exec, podman exec)".to_owned())
    } else {
        let seen = format!("it exists, and what is inside is unknown: {} {error}", pod.netns);
        let fix = "run this as root where the file is visible: on the host itself, or in a container \
                   that mounts /run/netns with HostToContainer propagation";
        (seen, fix.to_owned())
    };
    Hop::odd("pod-namespace", name, seen, fix)
}

/// The pod's own route to the other end.
fn route(
    path: &Path,
    (end, pod): (&PathEnd, &TracedPod),
    other: &PathEnd,
    inside: &PodNetns,
) -> Hop {
    let to = other.address;
    let device = inside.link.as_ref().map(|link| link.index);
    let again = "recreate the pod, or restore its default route, via the bridge's address, by hand";
    match &inside.way {
        Err(error) => Hop::lost("pod-route", &end.name, format!("no way to {to}: {error}"), again),
        Ok(None) => Hop::lost("pod-route", &end.name, format!("it has no route to {to}"), again),
        Ok(Some(way)) if way.device != device && !way.local => {
            if let Some(own) = pod.leaves_from.filter(|_| pod.guard.is_some()) {
                let not = end.address;
                let seen = format!(
                    "packets to {to} leave by the interface with {own}, whose guard drops those of {not}"
                );
                let fix = format!("use {own} there, the address of its network, in place of {not}");
                return Hop::lost("pod-route", &end.name, seen, fix);
            }
            let seen = format!("packets to {to} leave by another interface of the pod");
            let fix = "that is right if the pod has a second network; else remove the route in \
                        the pod that is nearer";
            Hop::odd("pod-route", &end.name, seen, fix)
        }
        Ok(Some(way)) => {
            let via = way.gateway.map_or("directly".to_owned(), |via| format!("via {via}"));
            if way.gateway.is_none_or(|gateway| !is_former_gateway(gateway, &path.host)) {
                return Hop::fine("pod-route", &end.name, format!("{to} {via}"));
            }
            let seen = format!("{to} {via}, which is no address of this host by now");
            let fix =
                "recreate the pod, or give this host back what it had: its subnet, its NODE_NAME";
            Hop::odd("pod-route", &end.name, seen, fix)
        }
    }
}

/// A pod got it as its gateway, and this host has it no more; or it is another pod, which forwards for this one.
fn is_former_gateway(gateway: IpAddr, host: &PathHost) -> bool {
    let is_pods = host.pools.iter().any(|pool| pool.contains(gateway));
    is_pods && !host.addresses.iter().any(|found| found.address.ip() == gateway)
}

/// The bridge that pods are plugged into.
fn bridge(path: &Path) -> Vec<Hop> {
    let host = &path.host;
    let name = &host.bridge_name;
    let Some(bridge) = &host.bridge else {
        return vec![Hop::lost("bridge", HERE, format!("bridge {name} does not exist"), AGENT)];
    };
    if !bridge.up {
        let fix = HopFix::then_agent(format!("ip link set {name} up"));
        return vec![Hop::lost("bridge", HERE, format!("bridge {name} is down"), fix)];
    }
    if path.is_bridged() {
        return vec![Hop::fine("bridge", HERE, format!("{name} is up"))];
    }
    let pods = [&path.from, &path.to].into_iter().filter_map(PathEnd::pod);
    if pods.into_iter().any(|pod| !is_led(pod, host))
        && let Some((seen, fix)) = lost_mac(bridge, "self", host)
    {
        return vec![Hop::lost("bridge", HERE, seen, fix)];
    }
    let family = path.family();
    let of_bridge = host.addresses.iter().filter(|found| found.index == bridge.index);
    let mut gateways = of_bridge.filter(|found| is_gateway(family, found.address.ip()));
    match gateways.next() {
        Some(found) => {
            vec![Hop::fine("bridge", HERE, format!("{name} is up, has {}", found.address))]
        }
        None => {
            let seen = format!("{name} has no {family} address: the pods' gateway is gone");
            vec![Hop::lost("bridge", HERE, seen, AGENT)]
        }
    }
}

/// An address that pods can have as their gateway.
fn is_gateway(family: Family, address: IpAddr) -> bool {
    let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    Family::of(address) == family && !link_local
}

/// The host's end of a pod's veth.
fn port(end: &PathEnd, pod: &TracedPod, host: &PathHost) -> Hop {
    let (name, at) = ("pod-port", format!("{HERE}, to {}", end.name));
    let port_name = &pod.port_name;
    let Some(port) = &pod.port else {
        if pod.is_taken_over() {
            return unknown_port(end, &at, host);
        }
        let seen = format!("the host's end of the pod's link ({port_name}) does not exist");
        return Hop::lost(name, &at, seen, "recreate the pod: its link was deleted");
    };
    if !port.up {
        let fix = format!("ip link set {port_name} up");
        return Hop::lost(name, &at, format!("{port_name} is down"), fix);
    }
    let bridge = &host.bridge_name;
    let index = host.bridge.as_ref().map(|bridge| bridge.index);
    if port.master != index || index.is_none() {
        let seen = match port.master {
            None => format!("{port_name} is not a port of {bridge}"),
            Some(other) => {
                format!("{port_name} is a port of {}, not of {bridge}", host.name(Some(other)))
            }
        };
        let fix = format!("ip link set {port_name} master {bridge}");
        return Hop::lost(name, &at, seen, fix);
    }
    if let Some((seen, fix)) = behind(pod, port, host) {
        return Hop::lost(name, &at, seen, fix);
    }
    if is_led(pod, host)
        && let Some((seen, fix)) = lost_mac(port, "master", host)
    {
        return Hop::lost(name, &at, seen, fix);
    }
    Hop::fine(name, &at, format!("{port_name} is up, a port of {bridge}, MTU {}", port.mtu))
}

/// The pod's guard leads what it sends to the host, by the MAC of its port.
fn is_led(pod: &TracedPod, host: &PathHost) -> bool {
    host.guards.routes && pod.guard.is_some()
}

/// Frames for the MAC of `link`, a port or the bridge itself, do not come to this host; and what to do. `table` is the
/// word for the one that has its entry.
fn lost_mac(link: &Link, table: &str, host: &PathHost) -> Option<(String, HopFix)> {
    let mac = link.mac.filter(|_| !host.entries.is_empty())?;
    let (name, bridge) = (&link.name, &host.bridge_name);
    let to = match entry_of(&host.entries, mac) {
        Some(BridgeEntry { kind: EntryKind::Local, .. }) => return None,
        Some(entry) => format!("to {}", host.name(Some(entry.link))),
        None => "to no one".to_owned(),
    };
    let seen =
        format!("{bridge} sends frames for the MAC of {name}, {mac}, {to}, not to this host");
    let fix = format!("bridge fdb replace {mac} dev {name} {table} permanent");
    Some((seen, HopFix::then_agent(fix)))
}

/// The pod of an earlier plugin: which port leads to it is known while the bridge has learned of it.
fn unknown_port(end: &PathEnd, at: &str, host: &PathHost) -> Hop {
    let (address, bridge) = (end.address, &host.bridge_name);
    let seen = format!(
        "an earlier plugin attached it, and which port leads to it is not known: {bridge} has no neighbour \
         {address} now"
    );
    let fix = format!("if the pod runs, this finds it: ping -c 1 {address}");
    Hop::odd("pod-port", at, seen, fix)
}

/// What the guard at the port does to what the pod sends.
fn guard(end: &PathEnd, pod: &TracedPod, host: &PathHost) -> Option<Hop> {
    let (name, at) = ("pod-guard", format!("{HERE}, from {}", end.name));
    let port = &pod.port_name;
    let Some(dropped) = &pod.guard else {
        let without = "no guard (POD_GUARD): the pod can send from any address";
        let (seen, fix) = match pod.is_taken_over() {
            true => (
                format!("an earlier plugin attached it, so it has {without}"),
                "a pod that humanz attaches has a guard: recreate it when that suits".into(),
            ),
            false => (format!("{port} has {without}"), AGENT),
        };
        return host.guards.is_on.then(|| Hop::odd(name, &at, seen, fix));
    };
    let counts: Vec<String> = dropped
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    if counts.is_empty() {
        return Some(Hop::fine(name, &at, format!("the guard of {port} has dropped nothing")));
    }
    let seen = format!("the guard of {port} has dropped frames of the pod: {}", counts.join(", "));
    let fix = "if the pod needs other source addresses or multicast groups than its own, add them to \
               ALLOWED_ADDRESSES; otherwise the drops are intended";
    let others = [DropReason::Multicast, DropReason::Ndp];
    match dropped.iter().any(|(reason, count)| *count > 0 && !others.contains(reason)) {
        true => Some(Hop::odd(name, &at, seen, fix)),
        // Every pod solicits routers and reports its multicast groups.
        false => Some(Hop::fine(name, &at, seen)),
    }
}

/// What the bridge believes of the pod's MAC and is wrong, and what to do.
fn behind(pod: &TracedPod, port: &Link, host: &PathHost) -> Option<(String, String)> {
    let mac = pod.inside.as_ref().ok()?.link.as_ref()?.mac?;
    let bridge = &host.bridge_name;
    let is_behind = |entry: &&BridgeEntry| entry.mac == mac && entry.kind != EntryKind::Local;
    let known = host.entries.iter().find(is_behind);
    match known {
        Some(entry) if entry.link != port.index => {
            let other = host.name(Some(entry.link));
            let seen = format!("{bridge} takes the pod's MAC {mac} for one behind {other}");
            Some((seen, format!("bridge fdb delete {mac} dev {other} master")))
        }
        None if port.port.is_some_and(|port| port.locked || port.fixed) => {
            let why =
                if port.port.is_some_and(|port| port.locked) { "macspoofchk" } else { "its guard" };
            let seen = format!("{} is closed ({why}) for the pod's MAC {mac}", port.name);
            Some((seen, "the pod changed its MAC: restore the one that ADD set".to_owned()))
        }
        _ => None,
    }
}
