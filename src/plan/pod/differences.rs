//! Pure. The differences between a pod's attachment and what it should be.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::cni::sysctl::is_same_value;
use crate::net::{IfName, Mac};
use crate::netlink::link::Link;
use crate::netlink::link_settings::LinkSettings;
use crate::netlink::route::Route;
use crate::plan::pod::interface::PodInterface;
use crate::plan::pod::requested::{FoundSettings, RequestedSettings};

/// A pod's attachment as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPod {
    pub bridge: Option<Link>,
    /// The host's end; `None` also for a link of that name that is not this attachment's.
    pub host: Option<Link>,
    /// The pod's end.
    pub pod: Option<Link>,
    /// On the pod's end.
    pub addresses: Vec<IpNetwork>,
    /// Of every table.
    pub routes: Vec<Route>,
    /// The addresses reserved for the attachment.
    pub reserved: Vec<IpAddr>,
    pub settings: FoundSettings,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDifference {
    /// The address is not reserved for the attachment: another pod may get it.
    NotReserved(IpAddr),
    /// The address is reserved for the attachment, but missing in the result.
    AddressNotInResult(IpAddr),
    /// The result has no interface of that name on the host.
    NotInResult(IfName),
    /// The result has the pod's end in other namespaces only: its name, and the right namespace.
    OtherSandbox(IfName, String),
    NoBridge(IfName),
    NotABridge(IfName),
    /// A missing link: where, and which.
    NoLink(&'static str, IfName),
    /// Where, and which link.
    Down(&'static str, IfName),
    /// Link and bridge.
    NotAPort(IfName, IfName),
    /// The wanted value of hairpin, isolation, lock, or fixed MACs.
    PortFlag(IfName, &'static str, bool),
    /// The bridge does not keep VLANs apart.
    VlansMixed(IfName),
    /// The VLANs of a port: which, wanted, found.
    WrongVlans(IfName, String, String),
    /// The two ends are not a pair.
    NotPeers(IfName, IfName),
    /// A link's MAC: where, which, wanted, found.
    WrongMac(&'static str, IfName, Mac, Option<Mac>),
    /// The bridge does not give the host the frames for the MAC of this port.
    LostMac(IfName, Mac),
    /// A link's MTU in bytes: where, which, wanted, found.
    WrongMtu(&'static str, IfName, u32, u32),
    NoAddress(IfName, IpNetwork),
    /// Destination and gateway.
    NoRoute(IpNetwork, Option<IpAddr>),
    /// Where, which link, wanted, found (bytes per second).
    WrongRate(&'static str, IfName, u64, Option<u64>),
    /// A setting of the pod's end: which link, what is wrong.
    NotTuned(IfName, String),
    /// Path below /proc/sys, wanted, found.
    WrongSysctl(String, String, Option<String>),
    /// What is wrong with a host port.
    HostPort(String),
    /// The guard of this link is missing, or is another.
    NoGuard(IfName),
}

/// The differences between `found` and `wanted` on the bridge `bridge`, from the host to the pod's
/// routes.
///
/// What is found beyond what is wanted is no difference: a later plugin may have added it.
pub fn differences(wanted: &PodInterface, bridge: &IfName, found: &FoundPod) -> Vec<PodDifference> {
    let mut differences = Vec::new();
    for address in &wanted.addresses {
        if !found.reserved.contains(&address.ip()) {
            differences.push(PodDifference::NotReserved(address.ip()));
        }
    }
    for address in &found.reserved {
        if !wanted.addresses.iter().any(|wanted| wanted.ip() == *address) {
            differences.push(PodDifference::AddressNotInResult(*address));
        }
    }
    of_bridge(bridge, found, &mut differences);
    of_host_end(wanted, bridge, found, &mut differences);
    of_pod_end(wanted, found, &mut differences);
    if found.host.is_some() && found.pod.is_some() {
        let (host, pod) = (&wanted.host_ifname, &wanted.ifname);
        differences.extend(settings_differences(&wanted.requested, &found.settings, host, pod));
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
            ("fixed", port.fixed, wanted.port.fixed),
        ] {
            if is != should {
                differences.push(PodDifference::PortFlag(name(), word, should));
            }
        }
    }
    differences.extend(wrong_mac(HOST, host, wanted.host_mac));
    differences.extend(wrong_mtu(HOST, host, wanted.host_mtu, u32::ne));
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
    // A later plugin, `tuning` for one, may have made it smaller, and says nothing of it in its result.
    differences.extend(wrong_mtu(POD, pod, wanted.mtu, u32::gt));
    for address in &wanted.addresses {
        if !found.addresses.contains(address) {
            differences.push(PodDifference::NoAddress(name(), *address));
        }
    }
    for route in wanted.routes.iter().chain(&wanted.defaults) {
        if !found.routes.iter().any(|found| is_route(route, found, pod.index)) {
            differences.push(PodDifference::NoRoute(route.destination, route.gateway));
        }
    }
}

/// `found` is the wanted `route`. What the kernel chose by itself is not compared.
fn is_route(route: &Route, found: &Route, device: u32) -> bool {
    let same = |wanted: Option<u32>, found| wanted.is_none() || wanted == found;
    found.destination == route.destination
        && found.gateway == route.gateway
        && found.table == route.table
        && found.device == Some(device)
        && found.scope == route.scope
        && same(route.priority, found.priority)
        && same(route.mtu, found.mtu)
        && same(route.advmss, found.advmss)
}

/// The differences between the settings wanted and found of the links `host` and `pod`.
pub fn settings_differences(
    wanted: &RequestedSettings,
    found: &FoundSettings,
    host: &IfName,
    pod: &IfName,
) -> Vec<PodDifference> {
    let mut differences = Vec::new();
    for (place, link, queue, found) in [
        (HOST, host, wanted.queues.host, found.host_rate),
        (POD, pod, wanted.queues.pod, found.pod_rate),
    ] {
        let rate = queue.map(|bucket| bucket.rate_bytes);
        if let Some(rate) = rate.filter(|rate| found != Some(*rate)) {
            differences.push(PodDifference::WrongRate(place, link.clone(), rate, found));
        }
    }
    differences.extend(tune_differences(pod, &wanted.tune, &found.tune));
    for (path, wanted) in &wanted.sysctls {
        let found = found.sysctls.get(path);
        if !found.is_some_and(|found| is_same_value(found, wanted)) {
            let (path, wanted) = (path.clone(), wanted.clone());
            differences.push(PodDifference::WrongSysctl(path, wanted, found.cloned()));
        }
    }
    differences
}

fn tune_differences(
    link: &IfName,
    wanted: &LinkSettings,
    found: &LinkSettings,
) -> Vec<PodDifference> {
    let flag = |word: &'static str, wanted: Option<bool>, found: Option<bool>| {
        let wanted = wanted.filter(|_| wanted != found)?;
        Some(format!("is{} {word}", if wanted { " not" } else { "" }))
    };
    let number = |wanted: Option<u32>, found| wanted.filter(|_| wanted != found);
    let texts = [
        flag("promiscuous", wanted.promisc, found.promisc),
        flag("open to all multicast", wanted.all_multicast, found.all_multicast),
        number(wanted.tx_queue_len, found.tx_queue_len)
            .map(|length| format!("has no queue of {length} packets")),
        number(wanted.mtu, found.mtu).map(|mtu| format!("has no MTU of {mtu}")),
    ];
    let mac = wanted.mac.filter(|_| wanted.mac != found.mac);
    let mac = mac.map(|mac| PodDifference::WrongMac(POD, link.clone(), mac, found.mac));
    let texts = texts.into_iter().flatten();
    texts.map(|text| PodDifference::NotTuned(link.clone(), text)).chain(mac).collect()
}

fn wrong_mac(place: &'static str, link: &Link, wanted: Option<Mac>) -> Option<PodDifference> {
    let wanted = wanted.filter(|wanted| link.mac != Some(*wanted))?;
    Some(PodDifference::WrongMac(place, link.name.clone(), wanted, link.mac))
}

fn wrong_mtu(
    place: &'static str,
    link: &Link,
    wanted: Option<u32>,
    is_wrong: fn(&u32, &u32) -> bool,
) -> Option<PodDifference> {
    let wanted = wanted.filter(|wanted| is_wrong(&link.mtu, wanted))?;
    Some(PodDifference::WrongMtu(place, link.name.clone(), wanted, link.mtu))
}

impl fmt::Display for PodDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodDifference::NotReserved(address) => {
                write!(f, "address {address} is not reserved for the container")
            }
            PodDifference::AddressNotInResult(address) => {
                write!(f, "prevResult lacks address {address}, which is reserved for the container")
            }
            PodDifference::NotInResult(link) => {
                write!(f, "prevResult has no interface {link} on the host")
            }
            PodDifference::OtherSandbox(link, netns) => {
                write!(
                    f,
                    "prevResult has interface {link} in a sandbox other than CNI_NETNS {netns}"
                )
            }
            PodDifference::NoBridge(bridge) => write!(f, "bridge {bridge} is missing"),
            PodDifference::NotABridge(bridge) => write!(f, "interface {bridge} is not a bridge"),
            PodDifference::NoLink(place, link) => write!(f, "interface {link} is missing {place}"),
            PodDifference::Down(place, link) => write!(f, "interface {link} is down {place}"),
            PodDifference::NotAPort(link, bridge) => {
                write!(f, "interface {link} is not a port of bridge {bridge}")
            }
            PodDifference::PortFlag(link, flag, true) => {
                write!(f, "bridge port {link} is not {flag}")
            }
            PodDifference::PortFlag(link, flag, false) => write!(f, "bridge port {link} is {flag}"),
            PodDifference::VlansMixed(bridge) => {
                write!(f, "bridge {bridge} does not keep VLANs apart")
            }
            PodDifference::WrongVlans(port, wanted, found) => {
                write!(f, "bridge port {port} is in the VLANs {found}, not {wanted}")
            }
            PodDifference::NotPeers(pod, host) => {
                write!(f, "interface {pod} in the pod is not the other end of {host}")
            }
            PodDifference::WrongMac(place, link, wanted, found) => {
                let found = found.map_or("none".to_owned(), |mac| mac.to_string());
                write!(f, "interface {link} {place} has MAC {found}, not {wanted}")
            }
            PodDifference::LostMac(port, mac) => {
                write!(
                    f,
                    "frames for the MAC of bridge port {port}, {mac}, do not come to the host"
                )
            }
            PodDifference::WrongMtu(place, link, wanted, found) => {
                write!(f, "interface {link} {place} has MTU {found}, not {wanted}")
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
            PodDifference::WrongSysctl(path, wanted, found) => {
                let found = found.as_ref().map_or("missing", |found| found);
                write!(f, "sysctl {path} in the pod is {found}, not {wanted}")
            }
            PodDifference::HostPort(text) => f.write_str(text),
            PodDifference::NoGuard(link) => {
                write!(f, "the guard of interface {link} is missing, incomplete or for another MAC")
            }
            PodDifference::WrongRate(place, link, wanted, found) => {
                let found = found.map_or("nothing".to_owned(), |rate| rate.to_string());
                write!(
                    f,
                    "interface {link} {place} is limited to {found}, not {wanted} bytes per second"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
