//! Pure. What of a pod's attachment is not as it should be.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{IfName, Mac};
use crate::netlink::link::Link;
use crate::netlink::route::Route;
use crate::plan::pod::{FoundSettings, PodInterface};

/// A pod's attachment as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPod {
    /// The bridge.
    pub bridge: Option<Link>,
    /// The host's end; `None` also for a link of that name that is not this attachment's.
    pub host: Option<Link>,
    /// The pod's end.
    pub pod: Option<Link>,
    /// The addresses on the pod's end.
    pub addresses: Vec<IpNetwork>,
    /// The pod's routes, of every table.
    pub routes: Vec<Route>,
    /// The addresses that are reserved for the attachment.
    pub reserved: Vec<IpAddr>,
    /// What it is beyond that.
    pub asked: FoundSettings,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDifference {
    /// The address is not reserved for the attachment: it may be given to another.
    NotReserved(IpAddr),
    /// The address is reserved for the attachment, but the result does not have it.
    NotTold(IpAddr),
    /// The result has no interface of that name on the host.
    NoInterfaceTold(IfName),
    /// The result has the pod's end in other namespaces only: which end, and where it should be.
    OtherSandbox(IfName, String),
    /// There is no bridge of that name.
    NoBridge(IfName),
    /// The interface of that name is no bridge.
    NotABridge(IfName),
    /// A link is not there: where, and which.
    NoLink(&'static str, IfName),
    /// A link is not up: where, and which.
    Down(&'static str, IfName),
    /// The host's end is not a port of the bridge.
    NotAPort(IfName, IfName),
    /// Hairpin, isolation or lock is not as configured.
    PortFlag(IfName, &'static str, bool),
    /// The two ends do not belong together.
    NotPeers(IfName, IfName),
    /// A link's MAC: where, which, wanted, found.
    WrongMac(&'static str, IfName, Mac, Option<Mac>),
    /// The pod's end lacks an address.
    NoAddress(IfName, IpNetwork),
    /// The pod lacks a route.
    NoRoute(IpNetwork, Option<IpAddr>),
    /// A link is not held to its bandwidth: where, which, wanted, found (bytes in a second).
    WrongRate(&'static str, IfName, u64, Option<u64>),
    /// The pod's end is not set as asked: which, what is wrong.
    NotTuned(IfName, String),
    /// A setting of the pod's namespace: path below /proc/sys, wanted, found.
    WrongSetting(String, String, Option<String>),
    /// A port of the host does not lead to the pod: what is wrong.
    HostPort(String),
}

/// What in `found` is not as `wanted` on the bridge `bridge`, from the host to the pod's routes.
///
/// Whatever is there beyond what is wanted is somebody else's business: a later plugin may have
/// added it.
pub fn differences(wanted: &PodInterface, bridge: &IfName, found: &FoundPod) -> Vec<PodDifference> {
    let mut differences = Vec::new();
    for address in &wanted.addresses {
        if !found.reserved.contains(&address.ip()) {
            differences.push(PodDifference::NotReserved(address.ip()));
        }
    }
    for address in &found.reserved {
        if !wanted.addresses.iter().any(|wanted| wanted.ip() == *address) {
            differences.push(PodDifference::NotTold(*address));
        }
    }
    of_bridge(bridge, found, &mut differences);
    of_host_end(wanted, bridge, found, &mut differences);
    of_pod_end(wanted, found, &mut differences);
    if found.host.is_some() && found.pod.is_some() {
        let asked = wanted.asked.differences(&found.asked, &wanted.host_ifname, &wanted.ifname);
        differences.extend(asked);
    }
    differences
}

const HOST: &str = "on the host";
const POD: &str = "in the pod";

fn of_bridge(bridge: &IfName, found: &FoundPod, differences: &mut Vec<PodDifference>) {
    match &found.bridge {
        None => differences.push(PodDifference::NoBridge(bridge.clone())),
        Some(link) if link.kind.as_deref() != Some("bridge") => {
            differences.push(PodDifference::NotABridge(bridge.clone()));
        }
        Some(link) if !link.up => differences.push(PodDifference::Down(HOST, bridge.clone())),
        Some(_) => {}
    }
}

fn of_host_end(
    wanted: &PodInterface,
    bridge: &IfName,
    found: &FoundPod,
    differences: &mut Vec<PodDifference>,
) {
    let name = || wanted.host_ifname.clone();
    let Some(host) = &found.host else {
        differences.push(PodDifference::NoLink(HOST, name()));
        return;
    };
    if !host.up {
        differences.push(PodDifference::Down(HOST, name()));
    }
    let bridge_index = found.bridge.as_ref().map(|bridge| bridge.index);
    if host.master.is_none() || host.master != bridge_index {
        differences.push(PodDifference::NotAPort(name(), bridge.clone()));
    } else if let Some(port) = host.port {
        for (word, is, should) in [
            ("hairpin", port.hairpin, wanted.port.hairpin),
            ("isolated", port.isolated, wanted.port.isolated),
            ("locked", port.locked, wanted.port.locked),
        ] {
            if is != should {
                differences.push(PodDifference::PortFlag(name(), word, should));
            }
        }
    }
    differences.extend(wrong_mac(HOST, host, wanted.host_mac));
}

fn of_pod_end(wanted: &PodInterface, found: &FoundPod, differences: &mut Vec<PodDifference>) {
    let name = || wanted.ifname.clone();
    let Some(pod) = &found.pod else {
        differences.push(PodDifference::NoLink(POD, name()));
        return;
    };
    if !pod.up {
        differences.push(PodDifference::Down(POD, name()));
    }
    let host = found.host.as_ref();
    if host.is_some_and(|host| {
        host.peer_index != Some(pod.index) || pod.peer_index != Some(host.index)
    }) {
        differences.push(PodDifference::NotPeers(name(), wanted.host_ifname.clone()));
    }
    differences.extend(wrong_mac(POD, pod, wanted.mac));
    for address in &wanted.addresses {
        if !found.addresses.contains(address) {
            differences.push(PodDifference::NoAddress(name(), *address));
        }
    }
    for route in wanted.routes.iter().chain(&wanted.defaults) {
        let same = |there: &&Route| is_there(route, there, pod.index);
        if !found.routes.iter().any(|there| same(&there)) {
            differences.push(PodDifference::NoRoute(route.destination, route.gateway));
        }
    }
}

/// `there` does what `route` asks for. What the kernel chose by itself is not compared.
fn is_there(route: &Route, there: &Route, device: u32) -> bool {
    let as_asked = |asked: Option<u32>, found| asked.is_none() || asked == found;
    there.destination == route.destination
        && there.gateway == route.gateway
        && there.table == route.table
        && there.device == Some(device)
        && there.scope == route.scope
        && as_asked(route.priority, there.priority)
        && as_asked(route.mtu, there.mtu)
        && as_asked(route.advmss, there.advmss)
}

fn wrong_mac(place: &'static str, link: &Link, wanted: Option<Mac>) -> Option<PodDifference> {
    let wanted = wanted.filter(|wanted| link.mac != Some(*wanted))?;
    Some(PodDifference::WrongMac(place, link.name.clone(), wanted, link.mac))
}

impl fmt::Display for PodDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodDifference::NotReserved(address) => {
                write!(f, "address {address} is not reserved for the container")
            }
            PodDifference::NotTold(address) => {
                write!(f, "prevResult lacks address {address}, which is reserved for the container")
            }
            PodDifference::NoInterfaceTold(link) => {
                write!(f, "prevResult has no interface {link} on the host")
            }
            PodDifference::OtherSandbox(link, netns) => {
                write!(
                    f,
                    "prevResult has interface {link} in a sandbox other than CNI_NETNS {netns}"
                )
            }
            PodDifference::NoBridge(bridge) => write!(f, "bridge {bridge} is missing"),
            PodDifference::NotABridge(bridge) => write!(f, "interface {bridge} is no bridge"),
            PodDifference::NoLink(place, link) => write!(f, "interface {link} is missing {place}"),
            PodDifference::Down(place, link) => write!(f, "interface {link} is down {place}"),
            PodDifference::NotAPort(link, bridge) => {
                write!(f, "interface {link} is not a port of bridge {bridge}")
            }
            PodDifference::PortFlag(link, flag, true) => {
                write!(f, "bridge port {link} is not {flag}")
            }
            PodDifference::PortFlag(link, flag, false) => write!(f, "bridge port {link} is {flag}"),
            PodDifference::NotPeers(pod, host) => {
                write!(f, "interface {pod} in the pod is not the other end of {host}")
            }
            PodDifference::WrongMac(place, link, wanted, found) => {
                let found = found.map_or("none".to_owned(), |mac| mac.to_string());
                write!(f, "interface {link} {place} has MAC {found}, not {wanted}")
            }
            PodDifference::NoAddress(link, address) => {
                write!(f, "interface {link} in the pod lacks address {address}")
            }
            PodDifference::NoRoute(destination, Some(gateway)) => {
                write!(f, "the pod lacks the route to {destination} via {gateway}")
            }
            PodDifference::NoRoute(destination, None) => {
                write!(f, "the pod lacks the route to {destination}")
            }
            PodDifference::NotTuned(link, text) => write!(f, "interface {link} in the pod {text}"),
            PodDifference::WrongSetting(path, wanted, found) => {
                let found = found.as_ref().map_or("missing", |found| found);
                write!(f, "sysctl {path} in the pod is {found}, not {wanted}")
            }
            PodDifference::HostPort(text) => f.write_str(text),
            PodDifference::WrongRate(place, link, wanted, found) => {
                let found = found.map_or("nothing".to_owned(), |rate| rate.to_string());
                write!(
                    f,
                    "interface {link} {place} is limited to {found}, not {wanted} bytes a second"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
