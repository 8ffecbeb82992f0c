//! The endpoints of a path: pods, addresses, URLs.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::checks::explain::{AGENT, EndPlace, Hop, HopVerdict, PathEnd, RemoteEnd, TracedPod};
use crate::command::explain::pins::KnownPins;
use crate::inspect::Host;
use crate::inspect::host_ports;
use crate::inspect::pods::PodAttachment;
use crate::net::{FailureReason, Family, HostPort, Protocol};
use crate::plan::host_ports::PortElement;
use crate::plan::pod::LinkIdentity;
use crate::settings::exit::{self, Exit};

/// An endpoint as it was typed.
#[derive(Debug)]
pub struct NamedEndpoint {
    text: String,
    addresses: Vec<IpAddr>,
    attachment: Option<PodAttachment>,
    /// `namespace/name`, of pods of this host and those with fixed addresses.
    pod: Option<String>,
    /// Protocol and port.
    port: Option<(u8, u16)>,
}

impl NamedEndpoint {
    /// With this protocol and port.
    pub fn at_port(self, port: (u8, u16)) -> NamedEndpoint {
        NamedEndpoint { port: Some(port), ..self }
    }
}

/// Both endpoints, of one family. Their pods are not inspected yet.
#[derive(Debug)]
pub struct PathEnds {
    pub from: PathEnd,
    pub to: PathEnd,
    pub transport: Option<(u8, u16)>,
    /// The host port that was followed to find `to`, and the fixed addresses of the ends.
    pub leads: Vec<Hop>,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// The endpoint that `text` names.
///
/// # Errors
/// There is none, or more than one.
pub fn named(text: &str, host: &Host, pins: &KnownPins) -> Result<NamedEndpoint, Exit> {
    let address = |addresses: Vec<IpAddr>, port| NamedEndpoint {
        text: text.to_owned(),
        addresses,
        attachment: None,
        pod: None,
        port,
    };
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(address(vec![ip], None));
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        let port = port(&socket.port().to_string()).map_err(|why| unknown(text, &why))?;
        return Ok(address(vec![socket.ip()], Some((TCP, port))));
    }
    if let Some(typed) = port_of_address(text) {
        port(typed).map_err(|why| unknown(text, &why))?;
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let (protocol, host, port) = url(scheme, rest).map_err(|why| unknown(text, &why))?;
        return Ok(address(resolve(&host)?, Some((protocol, port))));
    }
    pod(text, host, pins)
}

/// What stands behind an address, as in `192.0.2.1:http`.
fn port_of_address(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host).parse::<IpAddr>().is_ok().then_some(port)
}

fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("{text:?} is no port: 1 to 65535"))
}

/// Protocol, host and port of a URL.
fn url(scheme: &str, rest: &str) -> Result<(u8, String, u16), String> {
    let (protocol, usual) = match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => (TCP, Some(80)),
        "https" | "wss" => (TCP, Some(443)),
        "udp" => (UDP, None),
        "sctp" => (SCTP, None),
        _ => (TCP, None),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, typed) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("the ] is missing")?;
            (host, rest.strip_prefix(':'))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err(format!("it names no host, as {scheme}://192.0.2.1:80 does"));
    }
    let port = match typed {
        Some(typed) => port(typed)?,
        None => {
            usual.ok_or_else(|| format!("{scheme}:// needs a port, as in {scheme}://{host}:53"))?
        }
    };
    Ok((protocol, host.to_owned(), port))
}

fn resolve(host: &str) -> Result<Vec<IpAddr>, Exit> {
    let failed = |why: String| {
        let text = format!(
            "{host} does not resolve on this host: {why}; names that only pods know (services) must \
             be given as addresses"
        );
        Exit::new(exit::UNAVAILABLE, text)
    };
    let found = (host, 0).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    let found: Vec<IpAddr> = found.map(|socket| socket.ip()).collect();
    if found.is_empty() { Err(failed("no address".to_owned())) } else { Ok(found) }
}

/// The pod that `text` names: wholly, by the last part of its name, or by the start of its
/// container id. One of another host wholly, if it has fixed addresses.
fn pod(text: &str, host: &Host, pins: &KnownPins) -> Result<NamedEndpoint, Exit> {
    let known = &host.attachments();
    let by = |is: &dyn Fn(&PodAttachment) -> bool| -> Vec<&PodAttachment> {
        known.iter().filter(|known| is(known)).collect()
    };
    let name = |known: &PodAttachment| known.entry.pod.clone().unwrap_or_default();
    let criteria: [&dyn Fn(&PodAttachment) -> bool; 4] = [
        &|known| name(known) == text,
        &|known| known.entry.container_id == text,
        &|known| name(known).rsplit('/').next() == Some(text),
        &|known| !text.is_empty() && known.entry.container_id.starts_with(text),
    ];
    let found =
        criteria.iter().map(|is| by(*is)).find(|found| !found.is_empty()).unwrap_or_default();
    let Some(first) = found.first() else { return pod_elsewhere(text, host, pins) };
    let other = found.iter().find(|other| other.entry.container_id != first.entry.container_id);
    if let Some(other) = other {
        let ids = format!("{} and {}", first.entry.container_id, other.entry.container_id);
        return Err(unknown(text, &format!("it matches containers {ids}: give more of the id")));
    }
    // A further interface has a further address, which can be given instead.
    let first = found.iter().min_by_key(|known| known.entry.ifname != "eth0").unwrap_or(first);
    Ok(NamedEndpoint {
        text: title(first),
        addresses: first.entry.addresses.clone(),
        attachment: Some((*first).clone()),
        pod: first.entry.pod.clone(),
        port: None,
    })
}

/// The pod of another host that `text` names, if it has fixed addresses.
fn pod_elsewhere(text: &str, host: &Host, pins: &KnownPins) -> Result<NamedEndpoint, Exit> {
    if let Some(addresses) = pins.addresses(text) {
        let addresses = addresses.map_err(|why| Exit::new(exit::FAILURE, why))?;
        let (text, pod) = (text.to_owned(), Some(text.to_owned()));
        return Ok(NamedEndpoint { text, addresses, attachment: None, pod, port: None });
    }
    whole(text, host)?;
    let why = match host.attachments().len() {
        0 => format!("no pod of humanz is on this host ({})", host.settings.cni.ipam_dir.display()),
        count => format!(
            "it is no address, and none of the {count} pods of this host; pods of other hosts are known \
             there, and here by their addresses alone"
        ),
    };
    Err(unknown(text, &why))
}

/// Faults of stores that are listed; `status` has all.
const FAULTS: usize = 3;

/// All pods of this host are known: an address that is not among them is no pod.
fn whole(text: &str, host: &Host) -> Result<(), Exit> {
    match host.unread_stores() {
        [] => Ok(()),
        unread => {
            let first = unread.iter().take(FAULTS).cloned().map(Into::into);
            let why = FailureReason::joined(first.collect());
            let of =
                format!("{text}: the pods of this host are not known (faults: {})", unread.len());
            Err(Exit::new(exit::UNAVAILABLE, why.at(of)))
        }
    }
}

/// The pod's name, or its container id.
fn title(attachment: &PodAttachment) -> String {
    let entry = &attachment.entry;
    entry.pod.clone().unwrap_or_else(|| entry.container_id.clone())
}

fn unknown(text: &str, why: &str) -> Exit {
    Exit::new(exit::SETTINGS, format!("{text:?} is not known: {why}"))
}

/// Both ends in one family, IPv4 if both have it and the call does not ask for the other.
///
/// # Errors
/// They share no family, or neither has an address.
pub fn pair(
    from: NamedEndpoint,
    to: NamedEndpoint,
    ipv6: bool,
    host: &Host,
    pins: &KnownPins,
) -> Result<PathEnds, Exit> {
    let [v4, v6] = Family::BOTH;
    let families = if ipv6 { [v6, v4] } else { [v4, v6] };
    let of = |end: &NamedEndpoint, family| {
        end.addresses.iter().copied().find(|address| Family::of(*address) == family)
    };
    let both = families.into_iter().find_map(|family| of(&from, family).zip(of(&to, family)));
    let Some((source, destination)) = both else {
        let why = format!("{} and {} have no address of the same family", from.text, to.text);
        return Err(Exit::new(exit::SETTINGS, why));
    };
    let sent = from.attachment.as_ref().and_then(|it| host.source(it, destination));
    let (destination, port, mut leads) = lead(destination, to.port, host)?;
    let to = match leads.is_empty() {
        true => to,
        false => NamedEndpoint { attachment: None, pod: None, ..to },
    };
    let pinned = |end: &NamedEndpoint, address| {
        let runs_with = end.attachment.is_some().then_some(address);
        pins.hop(end.pod.as_ref()?, Family::of(address), runs_with, host)
    };
    let (sender, receiver) = (pinned(&from, source), pinned(&to, destination));
    let ends = PathEnds {
        from: end(sent.unwrap_or(source), from, sender.as_ref(), host)?,
        to: end(destination, to, receiver.as_ref(), host)?,
        transport: port,
        leads: Vec::new(),
    };
    leads.splice(0..0, sender);
    leads.extend(receiver);
    Ok(PathEnds { leads, ..ends })
}

/// One end, where `pinned` says where its fixed address is.
fn end(
    address: IpAddr,
    named: NamedEndpoint,
    pinned: Option<&Hop>,
    host: &Host,
) -> Result<PathEnd, Exit> {
    if pinned.is_some_and(Hop::is_lost) {
        return Ok(PathEnd { address, name: named.text, place: EndPlace::Outside });
    }
    let found = locate(address, named.attachment, host)?;
    let is_remote = matches!(found.place, EndPlace::RemoteHost(_));
    let name = named.pod.filter(|_| is_remote).unwrap_or(found.name);
    Ok(PathEnd { name, ..found })
}

/// An address, the protocol number and port there, and the hops on the way to it.
pub type Lead = (IpAddr, Option<(u8, u16)>, Vec<Hop>);

/// Where a port of this host leads to.
///
/// # Errors
/// The kernel does not answer.
pub fn lead(address: IpAddr, port: Option<(u8, u16)>, host: &Host) -> Result<Lead, Exit> {
    let stays = Ok((address, port, Vec::new()));
    let protocol = match port {
        Some((TCP, _)) => Protocol::Tcp,
        Some((UDP, _)) => Protocol::Udp,
        Some((SCTP, _)) => Protocol::Sctp,
        _ => return stays,
    };
    let is_own = host.addresses()?.iter().any(|found| found.address.ip() == address);
    let Some((number, wanted)) = port.filter(|_| is_own) else { return stays };
    let asked = HostPort { protocol, port: wanted, address };
    let forwards = host.attachments().iter().flat_map(|known| {
        known.entry.forwards().into_iter().map(move |forward| (title(known), forward))
    });
    let Some((pod, forward)) = forwards.into_iter().find(|(_, f)| f.from.overlaps(&asked)) else {
        return stays;
    };
    let found = host_ports::one(&host.kernel.nft, &forward.from);
    let leads = |found: Option<PortElement>| found.is_some_and(|found| found.forward == forward);
    let there = found.is_ok_and(leads);
    let leads = format!("{} leads to {} ({pod})", forward.from, forward.to);
    let (seen, verdict) = match there {
        true => (leads, HopVerdict::Fine),
        false => (
            format!("{leads}, which the table inet humanz-hostports does not have"),
            HopVerdict::Lost(AGENT),
        ),
    };
    let hop = Hop { name: "host-port", place: "this host".to_owned(), seen, verdict };
    Ok((forward.to.ip(), Some((number, forward.to.port())), vec![hop]))
}

fn locate(
    address: IpAddr,
    attachment: Option<PodAttachment>,
    host: &Host,
) -> Result<PathEnd, Exit> {
    // A pod may send from the address of a further interface.
    let named = attachment.filter(|it| it.entry.addresses.contains(&address));
    if let Some(attachment) = named.or_else(|| host.owner(address).cloned()) {
        let place = EndPlace::Pod(Box::new(pod_of(&attachment)));
        return Ok(PathEnd { address, name: title(&attachment), place });
    }
    if host.addresses()?.iter().any(|found| found.address.ip() == address) {
        return Ok(PathEnd { address, name: "this host".to_owned(), place: EndPlace::ThisHost });
    }
    if let Some((name, peer, subnet)) = host.peer(address) {
        let remote = RemoteEnd {
            host: name.to_string(),
            subnet,
            addresses: peer.addresses,
            mtu: peer.mtu,
            has_route: false,
        };
        let name = format!("{address} of host {name}");
        return Ok(PathEnd { address, name, place: EndPlace::RemoteHost(remote) });
    }
    let family = Family::of(address);
    let pools = host.settings.pool_networks();
    if pools.get(family).is_some_and(|pool| pool.contains(address)) {
        whole(&address.to_string(), host)?;
    }
    let own = host.subnets.iter().chain(&host.networks().blocks);
    if own.into_iter().any(|own| own.contains(address)) {
        let why = "it lies in this host's pod subnet, and no pod has it: is the pod gone, or \
                   was it made by another plugin?";
        return Err(Exit::new(exit::FAILURE, format!("{address}: {why}")));
    }
    if pools.get(family).is_some_and(|pool| pool.contains(address)) {
        let why = host.peers_unknown.as_deref();
        let why = why.unwrap_or("no host of the network has that subnet");
        return Err(Exit::new(exit::FAILURE, format!("{address} lies in the pool of pods: {why}")));
    }
    Ok(PathEnd { address, name: address.to_string(), place: EndPlace::Outside })
}

/// The pod of an attachment, not inspected yet.
fn pod_of(attachment: &PodAttachment) -> TracedPod {
    let PodAttachment { network, entry } = attachment;
    let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
    TracedPod {
        network: network.clone(),
        netns: entry.netns.clone().unwrap_or_default(),
        ifname: ifname.to_owned(),
        port_name: LinkIdentity { network, container_id, ifname }.host_ifname(),
        port: None,
        guard: None,
        is_gone: false,
        leaves_from: None,
        inside: Err("not inspected".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, wanted: Result<(u8, &str, u16), &str>) {
        let (scheme, rest) = text.split_once("://").unwrap();
        let found = url(scheme, rest);
        match wanted {
            Ok((protocol, host, port)) => assert_eq!(found, Ok((protocol, host.to_owned(), port))),
            Err(why) => assert!(found.unwrap_err().contains(why), "{text}"),
        }
    }

    #[test]
    fn a_url_names_a_host_and_a_port() {
        check("http://web/", Ok((TCP, "web", 80)));
        check("https://user:secret@192.0.2.1/a:b?c", Ok((TCP, "192.0.2.1", 443)));
        check("HTTP://[fd00::1]:8080/x", Ok((TCP, "fd00::1", 8080)));
        check("udp://10.96.0.10:53", Ok((UDP, "10.96.0.10", 53)));
        check("udp://10.96.0.10", Err("needs a port"));
        check("tcp://a:b", Err("no port"));
        check("http://192.0.2.1:0/", Err("1 to 65535"));
        check("http://192.0.2.1:65536/", Err("1 to 65535"));
        check("tcp://[fd00::1", Err("] is missing"));
        for invalid in ["http://", "https:///a", "http://:80", "http://user@/", "tcp://[]:80"] {
            check(invalid, Err("names no host"));
        }
    }

    #[test]
    fn what_stands_behind_an_address_is_a_port() {
        for (text, port) in [
            ("192.0.2.1:99999", Some("99999")),
            ("[fd00::1]:x", Some("x")),
            ("192.0.2.1", None),
            ("default/web", None),
            ("a:1", None),
        ] {
            assert_eq!(port_of_address(text), port, "{text}");
        }
    }
}
