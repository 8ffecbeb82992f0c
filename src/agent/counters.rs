//! Pure. What the loop did, counted since the agent started.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::net::Object;
use crate::plan::line::Sign;
use crate::plan::{Line, host_ports};

/// Upper bounds of the classes of durations, in seconds: a reconcile over nothing takes a millisecond, one
/// that makes 10,000 routes a second.
pub const BOUNDS_SECONDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Durations, by class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durations {
    /// One more than [`BOUNDS_SECONDS`].
    pub classes: [u64; BOUNDS_SECONDS.len() + 1],
    /// All of them, in seconds.
    pub sum: f64,
}

impl Durations {
    /// One more.
    pub fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let class = BOUNDS_SECONDS.iter().position(|bound| seconds <= *bound);
        self.classes[class.unwrap_or(BOUNDS_SECONDS.len())] += 1;
        self.sum += seconds;
    }
}

/// Everything that is counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Reconciles over everything.
    pub whole: Durations,
    /// Reconciles over a part, after an event.
    pub part: Durations,
    /// Reconciles that left something undone.
    pub failed: u64,
    /// Changes by kind and what was done.
    pub changes: BTreeMap<(&'static str, &'static str), u64>,
    /// Those among them that undid what somebody else had done, by kind.
    pub repairs: BTreeMap<&'static str, u64>,
    /// From the moment that a change of the hosts was received until the kernel agreed with it.
    pub lag: Durations,
}

impl Counters {
    /// One more reconcile.
    pub fn pass(&mut self, whole: bool, took: Duration, failed: bool) {
        if whole { &mut self.whole } else { &mut self.part }.add(took);
        self.failed += u64::from(failed);
    }

    /// What a reconcile changed.
    pub fn changes(&mut self, lines: &[Line], repair: bool) {
        for line in lines {
            let kind = kind(&line.object);
            *self.changes.entry((kind, action(line.sign))).or_default() += 1;
            if repair && !follows_pods(&line.object) {
                *self.repairs.entry(kind).or_default() += 1;
            }
        }
    }
}

/// Every kind there is, so that a series does not begin with its first change.
pub const KINDS: [&str; 10] = [
    "bridge",
    "configuration",
    "firewall",
    "guard",
    "hostport",
    "other",
    "plugin",
    "route",
    "sysctl",
    "tunnel",
];

/// A change that the ports of pods ask for, as they come and go: no other program undid anything.
pub fn follows_pods(object: &Object) -> bool {
    kind(object) == "hostport" || matches!(object, Object::Loopback(_))
}

/// Of what kind a change is: one of [`KINDS`].
fn kind(object: &Object) -> &'static str {
    match object {
        Object::Bridge(_) | Object::BridgeAddress(..) => "bridge",
        Object::Configuration(_) => "configuration",
        Object::Guard(_) => "guard",
        Object::HostPort(_) | Object::TableBridge(..) => "hostport",
        Object::Table(name) if name == host_ports::TABLE => "hostport",
        Object::Table(_) | Object::Rule { .. } | Object::Chain(_) => "firewall",
        Object::Plugin(_) | Object::PluginLink(_) => "plugin",
        Object::Route(_) => "route",
        Object::Sysctl(_) | Object::Loopback(_) => "sysctl",
        Object::Tunnel(_)
        | Object::TunnelAddress(..)
        | Object::Destination(_)
        | Object::Neighbour(_) => "tunnel",
        Object::Link(..)
        | Object::File(..)
        | Object::Key(_)
        | Object::Keys(_)
        | Object::Lease(_)
        | Object::Host(_)
        | Object::Pod(_)
        | Object::Subnet(_)
        | Object::Setting(..)
        | Object::Named(_) => "other",
    }
}

fn action(sign: Sign) -> &'static str {
    match sign {
        Sign::Added => "added",
        Sign::Removed => "removed",
        Sign::Changed => "changed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::firewall::AGENT_TABLE;

    #[test]
    fn every_kind_is_a_series_from_the_start() {
        let bridge = || "humanz0".parse().unwrap();
        let address = "10.1.2.1/24".parse().unwrap();
        for (object, wanted) in [
            (Object::Route(address), "route"),
            (Object::BridgeAddress(bridge(), address), "bridge"),
            (Object::TunnelAddress(bridge(), address), "tunnel"),
            (Object::Table(AGENT_TABLE.to_owned()), "firewall"),
            (Object::Table(host_ports::TABLE.to_owned()), "hostport"),
            (Object::TableBridge(bridge(), host_ports::TABLE), "hostport"),
            (Object::Loopback(bridge()), "sysctl"),
            (Object::Configuration("/etc/cni/net.d/05-humanz.conflist".into()), "configuration"),
            (Object::PluginLink("/opt/cni/bin/humanz".into()), "plugin"),
            (Object::Key("/humanz/hosts/a".into()), "other"),
        ] {
            assert_eq!(kind(&object), wanted, "{object}");
            assert!(KINDS.contains(&wanted));
        }
    }

    #[test]
    fn repairs_are_changes_too() {
        let route = || Object::Route("10.1.2.0/24".parse().unwrap());
        let bridge = || "humanz0".parse().unwrap();
        let mut counters = Counters::default();
        counters.changes(&[Line::added(route()), Line::removed(route())], false);
        let table = Object::TableBridge(bridge(), host_ports::TABLE);
        let for_ports = [Line::added(table), Line::changed(Object::Loopback(bridge()))];
        counters.changes(&[Line::added(route())], true);
        counters.changes(&for_ports, true);
        assert_eq!(counters.changes[&("route", "added")], 2);
        assert_eq!(counters.changes[&("sysctl", "changed")], 1);
        assert_eq!(counters.repairs, BTreeMap::from([("route", 1)]));
    }
}
