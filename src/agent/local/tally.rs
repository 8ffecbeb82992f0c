//! Pure. What the loop did, counted since the agent started.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plan::Line;
use crate::plan::line::Sign;

/// Upper bounds of the classes of durations, in seconds: a pass over nothing takes a millisecond, one
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
pub struct Tally {
    /// Passes over everything.
    pub whole: Durations,
    /// Passes over a part, after an event.
    pub part: Durations,
    /// Passes that left something undone.
    pub failed: u64,
    /// Changes by kind and what was done.
    pub changes: BTreeMap<(&'static str, &'static str), u64>,
    /// Those among them that undid what somebody else had done, by kind.
    pub repairs: BTreeMap<&'static str, u64>,
    /// From the moment that a change of the hosts was heard until the kernel agreed with it.
    pub lag: Durations,
}

impl Tally {
    /// One more pass.
    pub fn pass(&mut self, whole: bool, took: Duration, failed: bool) {
        if whole { &mut self.whole } else { &mut self.part }.add(took);
        self.failed += u64::from(failed);
    }

    /// What a pass changed.
    pub fn changes(&mut self, lines: &[Line], repair: bool) {
        for line in lines {
            let kind = kind(&line.what);
            *self.changes.entry((kind, action(line.sign))).or_default() += 1;
            if repair && !follows_pods(&line.what) {
                *self.repairs.entry(kind).or_default() += 1;
            }
        }
    }
}

/// Every kind there is, so that a series does not begin with its first change.
pub const KINDS: [&str; 9] = [
    "bridge",
    "configuration",
    "firewall",
    "hostport",
    "other",
    "plugin",
    "route",
    "sysctl",
    "tunnel",
];

/// A change that the ports of pods ask for, as they come and go: nobody undid anything.
pub fn follows_pods(what: &str) -> bool {
    kind(what) == "hostport" || what.contains("route_localnet")
}

/// Of what kind a change is: by the first word of its line, but for what hangs on a device.
fn kind(what: &str) -> &'static str {
    let of_tunnel = what.contains(" on tunnel ");
    match what.split(' ').next().unwrap_or_default() {
        _ if what.contains("humanz-hostports") => "hostport",
        "bridge" => "bridge",
        "address" if !of_tunnel => "bridge",
        "CNI" => "configuration",
        "nft" | "nftables" | "rule" => "firewall",
        "host" => "hostport",
        "plugin" | "link" => "plugin",
        "route" => "route",
        "sysctl" => "sysctl",
        "tunnel" | "neighbour" | "address" => "tunnel",
        _ => "other",
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

    #[test]
    fn a_change_is_counted_by_what_its_line_says() {
        for (what, wanted) in [
            ("route 10.1.2.0/24 via 192.0.2.7", "route"),
            ("bridge humanz0: up", "bridge"),
            ("address 10.1.2.1/24 on bridge humanz0", "bridge"),
            ("address 10.1.2.1/24 on tunnel humanz-vx4", "tunnel"),
            ("tunnel humanz-vx4: mtu 1450", "tunnel"),
            ("tunnel to 192.0.2.7 (mac 02:00:00:00:00:01)", "tunnel"),
            ("nft table inet humanz", "firewall"),
            ("nftables table inet humanz-hostports", "hostport"),
            ("bridge humanz0 to table inet humanz-hostports", "hostport"),
            ("host port 80/tcp to 10.1.2.3:80 (humanz n c eth0 d/p)", "hostport"),
            ("rule in ip filter FORWARD: -i humanz0 -j ACCEPT", "firewall"),
            ("sysctl net.ipv4.ip_forward = 1", "sysctl"),
            ("CNI configuration /etc/cni/net.d/05-humanz.conflist", "configuration"),
            ("link /opt/cni/bin/humanz -> humanz-agent", "plugin"),
            ("something new", "other"),
        ] {
            assert_eq!(kind(what), wanted, "{what}");
            assert!(KINDS.contains(&wanted));
        }
    }

    #[test]
    fn repairs_are_changes_too() {
        let mut tally = Tally::default();
        tally.changes(&[Line::added("route a"), Line::removed("route b")], false);
        tally.changes(&[Line::added("route a"), Line::added("host port 80/tcp to a pod")], true);
        assert_eq!(tally.changes[&("route", "added")], 2);
        assert_eq!(tally.repairs, BTreeMap::from([("route", 1)]));
    }
}
