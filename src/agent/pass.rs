//! One pass: observe → plan → apply, one kind of thing after the other.
//!
//! The order is that of a start: sysctls, bridge, firewall, routes, plugin, and the CNI
//! configuration last, because runtimes start pods as soon as it is there.

use std::collections::BTreeSet;

use crate::agent::host::{self, Facts, Own};
use crate::agent::keep::{self, Pass, bridge::Kept};
use crate::agent::reach;
use crate::agent::report::Report;
use crate::agent::wake::Look;

/// What a pass saw that others want to know.
#[derive(Debug)]
pub struct Seen {
    /// What the other hosts must know of this one.
    pub own: Own,
    /// What is wrong and not ours to mend, if it was looked at: hosts without a way to them …
    pub unreachable: Option<BTreeSet<String>>,
    /// … and other people's firewall.
    pub obstacles: Option<BTreeSet<String>>,
}

/// Looks, and mends what is wrong. `None` if the host could not be looked at.
pub fn run(pass: &Pass<'_>, report: &mut Report) -> Option<Seen> {
    let facts = match host::observe(&pass.world.rtnl, pass.settings, pass.before) {
        Ok(facts) => facts,
        Err(error) => {
            report.failed(format!("{error:#}"));
            return None;
        }
    };
    let mut bridge = Kept::Whole;
    if pass.look.links {
        keep::sysctls::keep(pass, &facts, report);
        bridge = keep::bridge::keep(pass, &facts, report);
    }
    // Looking at every link is too much for every event of one.
    if bridge == Kept::New || pass.look == Look::ALL {
        keep::ports::keep(pass, report);
    }
    // A start has its firewall first. Later it is the route to a new host that is waited for.
    let start = pass.look == Look::ALL;
    let firewall = |report: &mut Report| keep::firewall::keep(pass, &facts, report);
    let first = start.then(|| firewall(report));
    let unreachable = pass.look.routes.then(|| routes(pass, &facts, report));
    let obstacles = first.or_else(|| pass.look.firewall.then(|| firewall(report)));
    if pass.look.files && keep::plugin::keep(pass, report) && bridge != Kept::Broken {
        keep::conf::keep(pass, &facts, report);
    }
    Some(Seen { own: facts.own, unreachable, obstacles })
}

fn routes(pass: &Pass<'_>, facts: &Facts, report: &mut Report) -> BTreeSet<String> {
    let Some(peers) = pass.peers else { return BTreeSet::new() };
    let (wanted, unreachable) =
        reach::routes(&peers.by_name, pass.resolved, &facts.connected, &facts.own.addresses);
    keep::routes::keep(pass, &wanted, report);
    let unreachable = unreachable.iter().map(ToString::to_string);
    unreachable.chain(peers.faults.iter().map(ToString::to_string)).collect()
}
