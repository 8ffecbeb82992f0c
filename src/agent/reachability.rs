//! Pure. The other hosts as the probes of this one see them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::checks::probe::Seen;
use crate::lease::records::{Sight, WayFault};
use crate::lease::{Peer, Peers};
use crate::net::Family;
use crate::net::subnet::gateway;

/// Each host of which something is known. `seen`: what is known of each gateway.
pub fn sight(peers: &Peers, seen: &BTreeMap<IpAddr, Seen>) -> Sight {
    let known = peers.by_name.iter();
    Sight {
        hosts: known.filter_map(|(name, peer)| Some((name.clone(), of(peer, seen)?))).collect(),
    }
}

/// Microseconds of the slowest answer, and what is wrong.
fn of(peer: &Peer, seen: &BTreeMap<IpAddr, Seen>) -> Option<(Option<u32>, Option<WayFault>)> {
    let gateways = peer.subnets.iter().map(|subnet| gateway(*subnet));
    let known = gateways.filter_map(|at| Some((at, seen.get(&at)?, seen.get(&at)?.reachable()?)));
    let known: Vec<(IpAddr, &Seen, bool)> = known.collect();
    let times = known.iter().filter_map(|(_, seen, _)| seen.time);
    let slowest = times.max().map(|time| u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    let silent: Vec<Family> =
        known.iter().filter(|(.., answers)| !answers).map(|(at, ..)| Family::of(*at)).collect();
    let large = known.iter().filter_map(|(_, seen, _)| seen.black_hole()).min();
    let fault = match silent[..] {
        [family] if known.len() > 1 => Some(WayFault::Half(family)),
        [] => large.map(WayFault::Large),
        _ => Some(WayFault::Silent),
    };
    (!known.is_empty()).then_some((slowest, fault))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::echo::SMALLEST;
    use std::time::Duration;

    const V4: &str = "10.244.2.1";
    const V6: &str = "fd10:0:0:2::1";

    /// What is seen of a host with both families after these echoes: to whom, bytes, and whether it
    /// answered (after 3 ms by IPv6, 2 ms by IPv4).
    fn seen(echoes: &[(&str, u32, bool)]) -> Option<(Option<u32>, Option<WayFault>)> {
        let subnets = crate::net::PerFamily {
            v4: Some("10.244.2.0/24".parse().unwrap()),
            v6: Some("fd10:0:0:2::/64".parse().unwrap()),
        };
        let mut known: BTreeMap<IpAddr, Seen> = BTreeMap::new();
        for (to, bytes, answered) in echoes {
            let millis = if *to == V6 { 3 } else { 2 };
            let time = answered.then_some(Duration::from_millis(millis));
            known.entry(to.parse().unwrap()).or_default().note(*bytes, SMALLEST, time);
        }
        let peer = Peer {
            subnets,
            addresses: Default::default(),
            backend: Default::default(),
            tunnel: None,
            mtu: None,
            python: false,
            alive: true,
        };
        let peers = Peers { by_name: [("h2".parse().unwrap(), peer)].into(), faults: Vec::new() };
        sight(&peers, &known).hosts.into_values().next()
    }

    #[test]
    fn a_host_is_as_well_as_its_worse_family() {
        let (yes, no) = (|to| (to, SMALLEST, true), |to| (to, SMALLEST, false));
        assert_eq!(seen(&[]), None);
        assert_eq!(seen(&[no(V4)]), None, "once is no proof");
        assert_eq!(seen(&[yes(V4)]), Some((Some(2000), None)));
        assert_eq!(seen(&[yes(V4), yes(V6)]), Some((Some(3000), None)));
        let half = Some(WayFault::Half(Family::V6));
        assert_eq!(seen(&[yes(V4), no(V6), no(V6)]), Some((Some(2000), half)));
        let all = [no(V4), no(V4), no(V6), no(V6)];
        assert_eq!(seen(&all), Some((None, Some(WayFault::Silent))));
        assert_eq!(seen(&all[..2]), Some((None, Some(WayFault::Silent))));
        let large = [yes(V4), yes(V6), (V6, 1500, false), (V6, 1500, false)];
        assert_eq!(seen(&large), Some((Some(3000), Some(WayFault::Large(1500)))));
    }
}
