//! Keeps the routes to other hosts.

use nix::errno::Errno;

use crate::agent::keep::Pass;
use crate::agent::report::Report;
use crate::linux::netlink::{Message, NetlinkError};
use crate::linux::route::{self, Route};
use crate::linux::rtnl::Rtnl;
use crate::plan::routes::{Change, FoundRoute, NextHop, Routes, changes};

/// Adds and replaces what is missing or wrong; removes what bears our mark and is not wanted, but
/// not before the hosts are completely known.
pub fn keep(pass: &Pass<'_>, wanted: &Routes, report: &mut Report) {
    let rtnl = &pass.world.rtnl;
    let found = match found(rtnl) {
        Ok(found) => found,
        Err(error) => return report.failed(format!("list routes: {error}")),
    };
    let mut changes = changes(wanted, &found);
    changes.retain(|change| pass.in_sync || !matches!(change, Change::Remove(_)));
    apply(rtnl, &changes, report);
}

/// Removes every route that bears our mark.
pub fn remove_all(rtnl: &Rtnl, report: &mut Report) {
    match found(rtnl) {
        Ok(found) => apply(rtnl, &changes(&Routes::new(), &found), report),
        Err(error) => report.failed(format!("list routes: {error}")),
    }
}

fn found(rtnl: &Rtnl) -> Result<Vec<FoundRoute>, NetlinkError> {
    let next_hop = |route: &Route| {
        route.gateway.zip(route.device).map(|(via, device)| NextHop { via, device })
    };
    let found = |route: &Route| FoundRoute {
        destination: route.destination,
        next_hop: next_hop(route),
        priority: route.priority,
    };
    Ok(rtnl.routes(route::PROTOCOL)?.iter().map(found).collect())
}

fn apply(rtnl: &Rtnl, changes: &[Change], report: &mut Report) {
    let messages = || changes.iter().map(message).collect::<Vec<Message>>();
    report.apply_each(changes, || rtnl.apply_each(&messages()));
}

fn message(change: &Change) -> Message {
    match change {
        Change::Add(to, hop) => route::add(&Route::via(*to, hop.via, hop.device)),
        Change::Replace(to, hop) => route::replace(&Route::via(*to, hop.via, hop.device)),
        Change::Remove(found) => {
            let hop = found.next_hop;
            route::delete(&Route {
                gateway: hop.map(|hop| hop.via),
                device: hop.map(|hop| hop.device),
                priority: found.priority,
                ..Route::to(found.destination)
            })
            .tolerating(Errno::ESRCH)
        }
    }
}
