//! Pure. Other people's firewalls on the way.

use std::net::IpAddr;

use super::{HERE, Hop, Journey};
use crate::linux::forward::{Direction, FoundForward};
use crate::net::Family;
use crate::plan::forward::fate::{Fate, Packet, fate};
use crate::plan::forward::input;
use crate::plan::forward::{Obstacle, Reason, Traffic};

/// What the chains at `forward` do to a packet that comes in by one link and goes out by another.
pub fn forwarded(journey: &Journey, input: &str, output: &str) -> Hop {
    let found = match &journey.host.forward {
        Ok(found) => found,
        Err(error) => return unread("firewall", error),
    };
    let packet = Packet {
        input,
        output,
        source: journey.from.address,
        destination: journey.to.address,
        transport: journey.transport,
    };
    judge("firewall", journey, found, &packet)
}

/// What the chains at `input` do to a packet to this host itself.
pub fn received(journey: &Journey, device: &str) -> Hop {
    let found = match &journey.host.input {
        Ok(found) => found,
        Err(error) => return unread("host-firewall", error),
    };
    let packet = Packet {
        input: device,
        output: "",
        source: journey.from.address,
        destination: journey.to.address,
        transport: journey.transport,
    };
    judge("host-firewall", journey, found, &packet)
}

/// Whether the tunnels of another host get in.
pub fn tunnels(journey: &Journey, uplink: &str, theirs: IpAddr, ours: IpAddr) -> Hop {
    let name = "tunnel-firewall";
    let found = match &journey.host.input {
        Ok(found) => found,
        Err(error) => return unread(name, error),
    };
    let Ok(uplink) = uplink.parse() else { return unread(name, "no uplink") };
    let udp_port = journey.host.tunnel_port;
    let tunnel = input::Tunnel { uplink, source: theirs, destination: ours, udp_port };
    match input::obstacles(&tunnel, found).first() {
        Some(obstacle) => {
            let text = obstacle.to_string();
            let (seen, cure) = text.split_once("; ").unwrap_or((&text, ""));
            Hop::lost(name, HERE, seen, cure)
        }
        None => Hop::fine(name, HERE, format!("UDP port {udp_port} is open for tunnels")),
    }
}

fn unread(name: &'static str, error: &str) -> Hop {
    let cure = "look at nft list ruleset yourself";
    Hop::odd(name, HERE, format!("the firewall could not be looked at: {error}"), cure)
}

/// The first chain that drops the packet for certain; else the first that may.
fn judge(name: &'static str, journey: &Journey, found: &FoundForward, packet: &Packet<'_>) -> Hop {
    let family = Family::of(packet.destination);
    let mut unclear = None;
    for chain in found.chains.iter().filter(|chain| chain.place.sees(family)) {
        let place = &chain.place;
        let by = match fate(chain, place.chain(), packet) {
            Fate::Passes => continue,
            Fate::Unclear => {
                unclear.get_or_insert(place);
                continue;
            }
            Fate::StoppedByPolicy => None,
            Fate::StoppedIn { chain, .. } => Some(chain),
        };
        let way = match journey.to.pod() {
            Some(_) => Direction::Out,
            None => Direction::In,
        };
        let obstacle = Obstacle {
            place: place.clone(),
            reason: Reason::Stops { directions: vec![way], chain: by, hosts: None },
            traffic: traffic(journey),
        };
        let text = obstacle.to_string();
        let (seen, cure) = text.split_once("; ").unwrap_or((&text, ""));
        let seen = match name {
            "firewall" => seen.to_owned(),
            _ => format!("{place} drops it"),
        };
        return Hop::lost(name, HERE, seen, cure);
    }
    let unreadable = found.unreadable.first().map(|(place, error)| format!("{place}: {error}"));
    match (unclear, unreadable) {
        (Some(place), _) => {
            let seen = format!("{place} may drop it: a rule there is not understood");
            Hop::odd(name, HERE, seen, "read its rules yourself")
        }
        (None, Some(unreadable)) => unread(name, &unreadable),
        (None, None) => {
            let count = found.chains.len();
            let chains = if count == 1 { "chain lets" } else { "chains let" };
            Hop::fine(name, HERE, format!("{count} {chains} it pass"))
        }
    }
}

fn traffic(journey: &Journey) -> Traffic {
    let host = &journey.host;
    Traffic {
        bridge: host.bridge_name.clone(),
        uplink: None,
        pods_come_by: Vec::new(),
        subnets: host.subnets,
        pools: host.pools,
        bridged: Vec::new(),
    }
}
