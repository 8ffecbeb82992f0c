//! One pass: observe → plan → apply, one kind of thing after the other.
//!
//! The order is that of a start: sysctls, bridge, firewall, routes, plugin, and the CNI
//! configuration last, because runtimes start pods as soon as it is there.

use std::collections::BTreeSet;

use crate::agent::host::{self, Facts};
use crate::agent::keep::{self, Pass, bridge::Kept};
use crate::agent::reach;
use crate::agent::report::Report;
use crate::agent::wake::Look;

/// What a pass saw that others want to know.
#[derive(Debug)]
pub struct Seen {
    /// What this host is like.
    pub facts: Facts,
    /// What is wrong and not ours to mend, if it was looked at: hosts without a way to them …
    pub unreachable: Option<BTreeSet<String>>,
    /// … and other people's firewall.
    pub obstacles: Option<BTreeSet<String>>,
    /// … and everything else on the host.
    pub surroundings: Option<BTreeSet<String>>,
}

/// Looks, and mends what is wrong. `None` if the host could not be looked at.
pub fn run(pass: &Pass<'_>, report: &mut Report) -> Option<Seen> {
    let before = pass.before.map(|before| before.own);
    let facts = match host::observe(&pass.world.rtnl, pass.settings, before) {
        Ok(facts) => facts,
        Err(error) => {
            report.failed(format!("{error:#}"));
            return None;
        }
    };
    let look = further(pass, &facts);
    let mut bridge = Kept::Whole;
    if look.links {
        keep::sysctls::keep(pass, &facts, report);
        bridge = keep::bridge::keep(pass, &facts, report);
    }
    // Looking at every link is too much for every event of one.
    let at_ports = bridge == Kept::New || look == Look::ALL;
    let crowded = at_ports.then(|| keep::ports::keep(pass, report)).flatten();
    // A start has its firewall first. Later it is the route to a new host that is waited for.
    let start = look == Look::ALL;
    let firewall = |report: &mut Report| keep::firewall::keep(pass, &facts, report);
    let first = start.then(|| firewall(report));
    let unreachable = look.routes.then(|| routes(pass, &facts, report));
    let obstacles = first.or_else(|| look.firewall.then(|| firewall(report)));
    if look.files && keep::plugin::keep(pass, report) && bridge != Kept::Broken {
        keep::conf::keep(pass, &facts, report);
    }
    let surroundings = start.then(|| {
        let found = keep::surroundings::look(pass, report);
        found.into_iter().chain(crowded).collect()
    });
    Some(Seen { facts, unreachable, obstacles, surroundings })
}

/// What to look at besides, because this host is no longer what it was.
fn further(pass: &Pass<'_>, now: &Facts) -> Look {
    let mut look = pass.look;
    if let Some(before) = pass.before {
        // A link that went took itself out of the flow table.
        look.firewall |= look.links && pass.settings.flowtable;
        look.firewall |= before.all_addresses != now.all_addresses;
        look.links |= before.own != now.own;
        look.files |= before.own != now.own;
    }
    look
}

fn routes(pass: &Pass<'_>, facts: &Facts, report: &mut Report) -> BTreeSet<String> {
    let Some(peers) = pass.peers else { return BTreeSet::new() };
    let (wanted, unreachable) =
        reach::routes(&peers.by_name, pass.resolved, &facts.connected, &facts.own.addresses);
    keep::routes::keep(pass, &wanted, report);
    let unreachable = unreachable.iter().map(ToString::to_string);
    unreachable.chain(peers.faults.iter().map(ToString::to_string)).collect()
}
