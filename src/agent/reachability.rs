//! Pure. What a host publishes of itself: the paths to the other hosts, by its probes, and what is in force of policies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::agent::snapshot::AgentSnapshot;
use crate::checks::probe::ProbeStats;
use crate::lease::records::{PathFault, PathState, PolicyEnforcement};
use crate::lease::{NodeName, Peer, Peers};
use crate::net::gather::Gather;
use crate::net::subnet::gateway;
use crate::net::{Family, Object, Problem};
use crate::policy::compile::POLICY_TABLE;

/// The paths to the hosts with a known state. `seen`: the probes of each gateway.
pub fn paths(peers: &Peers, seen: &BTreeMap<IpAddr, ProbeStats>) -> BTreeMap<NodeName, PathState> {
    let peers = peers.by_name.iter();
    peers.filter_map(|(name, peer)| Some((name.clone(), path(peer, seen)?))).gather()
}

fn path(peer: &Peer, seen: &BTreeMap<IpAddr, ProbeStats>) -> Option<PathState> {
    let gateways = peer.subnets.iter().map(|subnet| gateway(*subnet));
    let probed = gateways.filter_map(|at| Some((at, seen.get(&at)?, seen.get(&at)?.reachable()?)));
    let probed: Vec<(IpAddr, &ProbeStats, bool)> = probed.collect();
    let times = probed.iter().filter_map(|(_, seen, _)| seen.time);
    let micros = times.max().map(|time| u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    let silent: Vec<Family> =
        probed.iter().filter(|(.., answers)| !answers).map(|(at, ..)| Family::of(*at)).collect();
    let large = probed.iter().filter_map(|(_, seen, _)| seen.black_hole()).min();
    let fault = match silent[..] {
        [family] if probed.len() > 1 => Some(PathFault::NoAnswerBy(family)),
        [] => large.map(PathFault::BlackHole),
        _ => Some(PathFault::NoAnswer),
    };
    (!probed.is_empty()).then_some(PathState { micros, fault })
}

/// What this host has in force of policies, as of its last reconcile, with these `problems`; `None`: nothing yet.
pub fn enforcement(known: &AgentSnapshot, problems: &[Problem]) -> Option<PolicyEnforcement> {
    if known.settings.policy.is_none() {
        return Some(PolicyEnforcement::Off);
    }
    let view = known.policies.as_deref()?;
    let is_made = is_made(problems);
    let follows = is_made && view.sources.iter().all(|source| source.healthy);
    Some(PolicyEnforcement::of(view.known.is_some(), view.unjudged, follows))
}

/// The kernel's table of policies is as it is to be.
pub fn is_made(problems: &[Problem]) -> bool {
    let table = Object::Table(POLICY_TABLE.to_owned());
    problems.iter().all(|problem| problem.subject != table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::echo::SMALLEST;
    use std::time::Duration;

    const V4: &str = "10.244.2.1";
    const V6: &str = "fd10:0:0:2::1";

    /// The path to a host with both families after these echoes: destination, bytes, and whether they
    /// were answered (after 3 ms by IPv6, 2 ms by IPv4).
    fn path_of(echoes: &[(&str, u32, bool)]) -> Option<PathState> {
        let subnets = crate::net::PerFamily {
            v4: Some("10.244.2.0/24".parse().unwrap()),
            v6: Some("fd10:0:0:2::/64".parse().unwrap()),
        };
        let mut known: BTreeMap<IpAddr, ProbeStats> = BTreeMap::new();
        for (to, bytes, answered) in echoes {
            let millis = if *to == V6 { 3 } else { 2 };
            let time = answered.then_some(Duration::from_millis(millis));
            known.entry(to.parse().unwrap()).or_default().note(*bytes, SMALLEST, time);
        }
        let peer = Peer {
            subnets,
            blocks: Vec::new(),
            addresses: Default::default(),
            backend: Default::default(),
            tunnel: None,
            wireguard: None,
            mtu: None,
            python: false,
            alive: true,
        };
        let peers = Peers { by_name: [("h2".parse().unwrap(), peer)].into(), faults: Vec::new() };
        paths(&peers, &known).into_values().next()
    }

    #[test]
    fn the_worse_family_counts() {
        let state = |micros, fault| Some(PathState { micros: Some(micros), fault });
        let silent = Some(PathState { micros: None, fault: Some(PathFault::NoAnswer) });
        let (yes, no) = (|to| (to, SMALLEST, true), |to| (to, SMALLEST, false));
        assert_eq!(path_of(&[]), None);
        assert_eq!(path_of(&[no(V4)]), None, "once is no proof");
        assert_eq!(path_of(&[yes(V4)]), state(2000, None));
        assert_eq!(path_of(&[yes(V4), yes(V6)]), state(3000, None));
        let half = Some(PathFault::NoAnswerBy(Family::V6));
        assert_eq!(path_of(&[yes(V4), no(V6), no(V6)]), state(2000, half));
        let all = [no(V4), no(V4), no(V6), no(V6)];
        assert_eq!(path_of(&all), silent);
        assert_eq!(path_of(&all[..2]), silent);
        let lost = (V6, 1500, false);
        let large = [yes(V4), yes(V6), lost, yes(V6), lost, yes(V6)];
        assert_eq!(path_of(&large), state(3000, Some(PathFault::BlackHole(1500))));
    }
}
