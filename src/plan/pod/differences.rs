//! Pure. What of a pod's attachment is not as it should be.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::Attachment;
use crate::linux::link::Link;
use crate::linux::qdisc::TokenBucket;
use crate::linux::route::Route;
use crate::net::{IfName, Mac};

/// A pod's attachment as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
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
    /// What our queue holds the host's end to, bytes in a second; `None` also if nobody looked.
    pub host_rate: Option<u64>,
    /// What our queue holds the pod's end to.
    pub pod_rate: Option<u64>,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The address is not reserved for the attachment: it may be given to another.
    NotReserved(IpAddr),
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
    /// Hairpin or isolation is not as configured.
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
}

/// What in `found` is not as `wanted` on the bridge `bridge`, from the host to the pod's routes.
///
/// Whatever is there beyond what is wanted is somebody else's business: a later plugin may have
/// added it.
pub fn differences(wanted: &Attachment, bridge: &IfName, found: &Found) -> Vec<Difference> {
    let mut differences = Vec::new();
    for address in &wanted.addresses {
        if !found.reserved.contains(&address.ip()) {
            differences.push(Difference::NotReserved(address.ip()));
        }
    }
    of_bridge(bridge, found, &mut differences);
    of_host_end(wanted, bridge, found, &mut differences);
    of_pod_end(wanted, found, &mut differences);
    differences
}

const HOST: &str = "on the host";
const POD: &str = "in the pod";

fn of_bridge(bridge: &IfName, found: &Found, differences: &mut Vec<Difference>) {
    match &found.bridge {
        None => differences.push(Difference::NoBridge(bridge.clone())),
        Some(link) if link.kind.as_deref() != Some("bridge") => {
            differences.push(Difference::NotABridge(bridge.clone()));
        }
        Some(link) if !link.up => differences.push(Difference::Down(HOST, bridge.clone())),
        Some(_) => {}
    }
}

fn of_host_end(
    wanted: &Attachment,
    bridge: &IfName,
    found: &Found,
    differences: &mut Vec<Difference>,
) {
    let name = || wanted.host_ifname.clone();
    let Some(host) = &found.host else {
        differences.push(Difference::NoLink(HOST, name()));
        return;
    };
    if !host.up {
        differences.push(Difference::Down(HOST, name()));
    }
    let bridge_index = found.bridge.as_ref().map(|bridge| bridge.index);
    if host.master.is_none() || host.master != bridge_index {
        differences.push(Difference::NotAPort(name(), bridge.clone()));
    } else if let Some(port) = host.port {
        for (word, is, should) in [
            ("hairpin", port.hairpin, wanted.port.hairpin),
            ("isolated", port.isolated, wanted.port.isolated),
        ] {
            if is != should {
                differences.push(Difference::PortFlag(name(), word, should));
            }
        }
    }
    differences.extend(wrong_mac(HOST, host, wanted.host_mac));
    differences.extend(wrong_rate(HOST, name(), wanted.queues.host, found.host_rate));
}

fn of_pod_end(wanted: &Attachment, found: &Found, differences: &mut Vec<Difference>) {
    let name = || wanted.ifname.clone();
    let Some(pod) = &found.pod else {
        differences.push(Difference::NoLink(POD, name()));
        return;
    };
    if !pod.up {
        differences.push(Difference::Down(POD, name()));
    }
    let host = found.host.as_ref();
    if host.is_some_and(|host| {
        host.peer_index != Some(pod.index) || pod.peer_index != Some(host.index)
    }) {
        differences.push(Difference::NotPeers(name(), wanted.host_ifname.clone()));
    }
    differences.extend(wrong_mac(POD, pod, wanted.mac));
    differences.extend(wrong_rate(POD, name(), wanted.queues.pod, found.pod_rate));
    for address in &wanted.addresses {
        if !found.addresses.contains(address) {
            differences.push(Difference::NoAddress(name(), *address));
        }
    }
    for route in wanted.routes.iter().chain(&wanted.defaults) {
        let same = |there: &&Route| is_there(route, there, pod.index);
        if !found.routes.iter().any(|there| same(&there)) {
            differences.push(Difference::NoRoute(route.destination, route.gateway));
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

fn wrong_mac(place: &'static str, link: &Link, wanted: Option<Mac>) -> Option<Difference> {
    let wanted = wanted.filter(|wanted| link.mac != Some(*wanted))?;
    Some(Difference::WrongMac(place, link.name.clone(), wanted, link.mac))
}

fn wrong_rate(
    place: &'static str,
    link: IfName,
    wanted: Option<TokenBucket>,
    found: Option<u64>,
) -> Option<Difference> {
    let wanted = wanted?.rate_bytes;
    (found != Some(wanted)).then_some(Difference::WrongRate(place, link, wanted, found))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::NotReserved(address) => {
                write!(f, "address {address} is not reserved for the container")
            }
            Difference::NoBridge(bridge) => write!(f, "bridge {bridge} is missing"),
            Difference::NotABridge(bridge) => write!(f, "interface {bridge} is no bridge"),
            Difference::NoLink(place, link) => write!(f, "interface {link} is missing {place}"),
            Difference::Down(place, link) => write!(f, "interface {link} is down {place}"),
            Difference::NotAPort(link, bridge) => {
                write!(f, "interface {link} is not a port of bridge {bridge}")
            }
            Difference::PortFlag(link, flag, true) => {
                write!(f, "bridge port {link} is not {flag}")
            }
            Difference::PortFlag(link, flag, false) => write!(f, "bridge port {link} is {flag}"),
            Difference::NotPeers(pod, host) => {
                write!(f, "interface {pod} in the pod is not the other end of {host}")
            }
            Difference::WrongMac(place, link, wanted, found) => {
                let found = found.map_or("none".to_owned(), |mac| mac.to_string());
                write!(f, "interface {link} {place} has MAC {found}, not {wanted}")
            }
            Difference::NoAddress(link, address) => {
                write!(f, "interface {link} in the pod lacks address {address}")
            }
            Difference::NoRoute(destination, Some(gateway)) => {
                write!(f, "the pod lacks the route to {destination} via {gateway}")
            }
            Difference::NoRoute(destination, None) => {
                write!(f, "the pod lacks the route to {destination}")
            }
            Difference::WrongRate(place, link, wanted, found) => {
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
mod tests {
    use super::*;
    use crate::linux::link::Port;
    use crate::linux::route;
    use crate::plan::bandwidth::Queues;

    const PORT: Port = Port { hairpin: true, isolated: false };

    fn name(text: &str) -> IfName {
        text.parse().unwrap()
    }

    fn mac(last: u8) -> Mac {
        Mac([0x0a, 0, 0, 0, 0, last])
    }

    fn default_route(device: Option<u32>) -> Route {
        Route { device, ..Route::via("0.0.0.0/0".parse().unwrap(), "10.1.2.1".parse().unwrap(), 0) }
    }

    fn wanted() -> Attachment {
        Attachment {
            host_ifname: name("hz1"),
            host_mac: Some(mac(1)),
            port: PORT,
            ifname: name("eth0"),
            mac: Some(mac(2)),
            addresses: vec!["10.1.2.3/24".parse().unwrap()],
            routes: vec![default_route(None)],
            defaults: Vec::new(),
            queues: Queues::default(),
        }
    }

    fn link(text: &str, index: u32, peer: u32, last: u8) -> Link {
        Link {
            index,
            name: name(text),
            kind: Some("veth".to_owned()),
            mac: Some(mac(last)),
            mtu: 1500,
            up: true,
            oper_up: true,
            master: None,
            peer_index: Some(peer),
            alias: None,
            group: 0,
            port: None,
            delays_ports: false,
        }
    }

    fn found() -> Found {
        let host = Link { master: Some(3), port: Some(PORT), ..link("hz1", 7, 2, 1) };
        let bridge = Link { kind: Some("bridge".to_owned()), ..link("humanz0", 3, 0, 9) };
        Found {
            bridge: Some(bridge),
            host: Some(host),
            pod: Some(link("eth0", 2, 7, 2)),
            addresses: vec!["10.1.2.3/24".parse().unwrap(), "fe80::1/64".parse().unwrap()],
            routes: vec![default_route(Some(2))],
            reserved: vec!["10.1.2.3".parse().unwrap()],
            host_rate: None,
            pod_rate: None,
        }
    }

    /// What differs after `spoil` has changed what was found.
    fn check(spoil: impl FnOnce(&mut Found), wanted_texts: &[&str]) {
        let mut there = found();
        spoil(&mut there);
        let texts: Vec<String> = differences(&wanted(), &name("humanz0"), &there)
            .iter()
            .map(Difference::to_string)
            .collect();
        assert_eq!(texts, wanted_texts);
    }

    fn host(found: &mut Found) -> &mut Link {
        found.host.as_mut().unwrap()
    }

    fn pod(found: &mut Found) -> &mut Link {
        found.pod.as_mut().unwrap()
    }

    #[test]
    fn an_attachment_as_it_was_made_differs_in_nothing() {
        check(|_| {}, &[]);
    }

    #[test]
    fn what_others_added_is_no_difference() {
        check(
            |found| {
                found.addresses.push("10.9.9.9/32".parse().unwrap());
                found.routes.push(default_route(Some(9)));
                found.reserved.push("10.9.9.9".parse().unwrap());
            },
            &[],
        );
    }

    #[test]
    fn each_thing_that_differs_is_named() {
        let lost = "address 10.1.2.3 is not reserved for the container";
        check(|found| found.reserved.clear(), &[lost]);
        check(|found| pod(found).up = false, &["interface eth0 is down in the pod"]);
        check(|found| host(found).up = false, &["interface hz1 is down on the host"]);
        let text = "interface eth0 in the pod is not the other end of hz1";
        check(|found| pod(found).peer_index = Some(8), &[text]);
        check(|found| host(found).peer_index = Some(8), &[text]);
        let text = "interface eth0 in the pod has MAC 0a:00:00:00:00:07, not 0a:00:00:00:00:02";
        check(|found| pod(found).mac = Some(mac(7)), &[text]);
        let text = "interface hz1 on the host has MAC none, not 0a:00:00:00:00:01";
        check(|found| host(found).mac = None, &[text]);
        let text = "interface eth0 in the pod lacks address 10.1.2.3/24";
        check(|found| found.addresses[0] = "10.1.2.3/25".parse().unwrap(), &[text]);
        let text = "the pod lacks the route to 0.0.0.0/0 via 10.1.2.1";
        check(|found| found.routes.clear(), &[text]);
        check(|found| found.routes[0].table = 7, &[text]);
        check(|found| found.routes[0].device = Some(3), &[text]);
        let not_a_port = "interface hz1 is not a port of bridge humanz0";
        check(|found| host(found).master = None, &[not_a_port]);
        check(|found| host(found).master = Some(4), &[not_a_port]);
        let port = |hairpin, isolated| Some(Port { hairpin, isolated });
        check(|found| host(found).port = port(false, false), &["bridge port hz1 is not hairpin"]);
        check(|found| host(found).port = port(true, true), &["bridge port hz1 is isolated"]);
        check(
            |found| found.bridge.as_mut().unwrap().up = false,
            &["interface humanz0 is down on the host"],
        );
        check(
            |found| found.bridge.as_mut().unwrap().kind = None,
            &["interface humanz0 is no bridge"],
        );
    }

    #[test]
    fn a_limit_that_was_asked_for_is_compared() {
        let bucket = TokenBucket { rate_bytes: 1000, burst_bytes: 1, limit_bytes: 1 };
        let limited =
            Attachment { queues: Queues { host: Some(bucket), pod: Some(bucket) }, ..wanted() };
        let check = |host_rate, pod_rate, texts: &[&str]| {
            let found = Found { host_rate, pod_rate, ..found() };
            let differences = differences(&limited, &name("humanz0"), &found);
            assert_eq!(differences.iter().map(Difference::to_string).collect::<Vec<_>>(), texts);
        };
        check(Some(1000), Some(1000), &[]);
        let host = "interface hz1 on the host is limited to nothing, not 1000 bytes a second";
        let pod = "interface eth0 in the pod is limited to 999, not 1000 bytes a second";
        check(None, Some(999), &[host, pod]);
    }

    #[test]
    fn what_is_gone_is_named_from_the_host_inwards() {
        let all = [
            "address 10.1.2.3 is not reserved for the container",
            "bridge humanz0 is missing",
            "interface hz1 is missing on the host",
            "interface eth0 is missing in the pod",
        ];
        check(|found| *found = Found::default(), &all);
    }

    #[test]
    fn what_a_route_has_of_its_own_is_compared_with_it() {
        let plain = default_route(None);
        for asked in [
            Route { priority: Some(7), ..plain },
            Route { mtu: Some(1400), ..plain },
            Route { advmss: Some(1360), ..plain },
            Route { table: 5000, ..plain },
            Route { scope: 200, ..plain },
        ] {
            let wanted = Attachment { routes: vec![asked], ..wanted() };
            let texts = differences(&wanted, &name("humanz0"), &found());
            assert!(matches!(texts[..], [Difference::NoRoute(..)]), "{asked:?}: {texts:?}");
            let there = Route { device: Some(2), ..asked };
            let found = Found { routes: vec![there], ..found() };
            assert_eq!(differences(&wanted, &name("humanz0"), &found), []);
        }
        assert_eq!(plain.table, route::MAIN);
    }
}
