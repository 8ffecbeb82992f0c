//! Pure. Other people's firewalls on the way.

use std::net::IpAddr;

use crate::checks::explain::hop::{HERE, Hop};
use crate::checks::explain::path::Path;
use crate::checks::forward::evaluate::{ChainVerdict, evaluate};
use crate::checks::forward::input;
use crate::checks::forward::{BlockingRule, Cause, Traffic, drops_all};
use crate::net::{Family, IfName, subnet};
use crate::nft::base_chains::{BaseChain, FirstPacket, HookChains, HookDirection};

/// What the chains at `forward` do to a packet that comes in by one link and goes out by another.
pub fn forwarded(path: &Path, input: &str, output: &str) -> Hop {
    let found = match &path.host.forward {
        Ok(found) => found,
        Err(error) => return unread("firewall", error),
    };
    let packet = FirstPacket {
        input,
        output,
        source: path.from.address,
        destination: path.to.address,
        transport: path.transport,
    };
    judge("firewall", path, found, &packet)
}

/// What the chains at `input` do to a packet to this host itself.
pub fn received(path: &Path, device: &str) -> Hop {
    let found = match &path.host.input {
        Ok(found) => found,
        Err(error) => return unread("host-firewall", error),
    };
    let packet = FirstPacket {
        input: device,
        output: "",
        source: path.from.address,
        destination: path.to.address,
        transport: path.transport,
    };
    judge("host-firewall", path, found, &packet)
}

/// Whether the tunnels of another host get in.
pub fn tunnels(path: &Path, uplink: &str, theirs: IpAddr, ours: IpAddr) -> Hop {
    let name = "tunnel-firewall";
    let found = match &path.host.input {
        Ok(found) => found,
        Err(error) => return unread(name, error),
    };
    let Ok(uplink) = uplink.parse() else { return unread(name, "no uplink") };
    let udp_port = path.host.tunnel_port;
    let tunnel = input::TunnelTraffic { uplink, source: theirs, destination: ours, udp_port };
    match input::problems(&tunnel, found).into_iter().next() {
        Some(problem) => Hop::lost(name, HERE, problem.what, problem.fix.unwrap_or_default()),
        None => Hop::fine(name, HERE, format!("UDP port {udp_port} is open for tunnels")),
    }
}

fn unread(name: &'static str, error: &str) -> Hop {
    let fix = "nft list ruleset # look at it yourself";
    Hop::odd(name, HERE, format!("the firewall could not be read: {error}"), fix)
}

/// The first chain that drops the packet for certain; else the first that may.
fn judge(name: &'static str, path: &Path, found: &HookChains, packet: &FirstPacket<'_>) -> Hop {
    let family = Family::of(packet.destination);
    let mut unclear = None;
    for chain in found.chains.iter().filter(|chain| chain.place.sees(family)) {
        let place = &chain.place;
        let by = match evaluate(chain, packet) {
            ChainVerdict::Accepts => continue,
            ChainVerdict::MayDrop => {
                unclear.get_or_insert(place);
                continue;
            }
            ChainVerdict::DroppedByPolicy => None,
            ChainVerdict::DroppedIn { chain, .. } => Some(chain),
        };
        let traffic = traffic(path, packet);
        let cause = cause(path, (chain, packet), by, &traffic);
        let problem = BlockingRule { place: place.clone(), cause }.problem(&traffic);
        let what = match name {
            "firewall" => problem.what,
            _ => format!("{place} drops it"),
        };
        return Hop::lost(name, HERE, what, problem.fix.unwrap_or_default());
    }
    let unreadable = found.unreadable.first().map(|(place, error)| format!("{place}: {error}"));
    match (unclear, unreadable) {
        (Some(place), _) => {
            let seen = format!("{place} may drop it: a rule there is not understood");
            Hop::odd(name, HERE, seen, "nft list ruleset # read its rules yourself")
        }
        (None, Some(unreadable)) => unread(name, &unreadable),
        (None, None) => {
            let count = found.chains.len();
            let chains = if count == 1 { "chain lets" } else { "chains let" };
            Hop::fine(name, HERE, format!("{count} {chains} it pass"))
        }
    }
}

/// A chain that stops all pods needs an exception for them; a rule about some of them was made for a
/// reason, and an exception for all would say nothing of that.
fn cause(
    path: &Path,
    (chain, packet): (&BaseChain, &FirstPacket<'_>),
    by: Option<String>,
    traffic: &Traffic,
) -> Cause {
    let way = match path.to.pod() {
        Some(_) => HookDirection::Out,
        None => HookDirection::In,
    };
    let neighbour = of_neighbours(path, packet);
    let passes = evaluate(chain, &neighbour) == ChainVerdict::Accepts;
    if !passes && drops_all(chain, way, traffic) {
        return Cause::Drops { directions: vec![way], chain: by, hosts: None };
    }
    let (source, destination) = (path.from.address, path.to.address);
    Cause::DropsPacket { source, destination, chain: by }
}

/// The packet, were it of or for another pod of this host.
fn of_neighbours<'a>(path: &Path, packet: &FirstPacket<'a>) -> FirstPacket<'a> {
    let another = |address: IpAddr| {
        let own = path.host.subnets.get(Family::of(address));
        let own = own.filter(|own| own.contains(address));
        own.map_or(address, |own| {
            let last = subnet::offset(subnet::last(*own), u128::MAX);
            if last == address { subnet::offset(last, u128::MAX) } else { last }
        })
    };
    FirstPacket {
        source: another(packet.source),
        destination: another(packet.destination),
        ..packet.clone()
    }
}

/// Pod traffic that comes and goes as the packet does.
fn traffic(path: &Path, packet: &FirstPacket<'_>) -> Traffic {
    let host = &path.host;
    let links = [packet.input, packet.output].into_iter();
    let further = links.filter(|name| *name != host.bridge_name.as_str());
    let further: Vec<IfName> = further.filter_map(|name| name.parse().ok()).collect();
    Traffic {
        bridge: host.bridge_name.clone(),
        uplink: further.first().cloned(),
        pods_come_by: further,
        subnets: host.subnets,
        pools: host.pools,
        bridged: if path.is_bridged() { vec![path.family()] } else { Vec::new() },
    }
}
