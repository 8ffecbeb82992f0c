//! Keeps the routes to other hosts.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::agent::change_log::Report;
use crate::agent::reconcile::Pass;
use crate::agent::reconcile::tunnel::Tunnels;
use crate::net::PerFamily;
use crate::net::subnet::Pool;
use crate::netlink::route::{self, Route};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError};
use crate::plan::routes::{Change, FoundRoute, NextHop, Routes, changes, scope};

/// Adds and replaces what is missing or wrong; removes what bears our mark and is not wanted, but
/// not before the hosts are completely known, and never to `unresolved`.
pub fn keep(
    pass: &Pass<'_>,
    wanted: &Routes,
    unresolved: &BTreeSet<IpNetwork>,
    tunnels: &Tunnels,
    report: &mut Report,
) {
    let rtnl = &pass.kernel.rtnl;
    let found = match found(rtnl) {
        Ok(found) => found,
        Err(error) => return report.failed(format!("list routes: {error}")),
    };
    let mut changes = changes(wanted, &found);
    changes.retain(|change| match change {
        Change::Remove(route) => {
            let kept = unresolved.contains(&route.destination)
                || route.next_hop.is_some_and(|hop| tunnels.keeps(&hop));
            pass.in_sync && !kept
        }
        Change::Add(..) | Change::Replace(..) => true,
    });
    apply(rtnl, &changes, &pass.settings.pools, report);
}

/// Removes every route that bears our mark.
pub fn remove_all(rtnl: &Rtnl, report: &mut Report) {
    match found(rtnl) {
        Ok(found) => apply(rtnl, &changes(&Routes::new(), &found), &PerFamily::default(), report),
        Err(error) => report.failed(format!("list routes: {error}")),
    }
}

/// The routes that bear our mark.
pub fn found(rtnl: &Rtnl) -> Result<Vec<FoundRoute>, NetlinkError> {
    let next_hop = |route: &Route| {
        let Route { source, mtu, onlink, .. } = *route;
        let way = route.gateway.zip(route.device);
        way.map(|(via, device)| NextHop { via, device, source, mtu, onlink })
    };
    let found = |route: &Route| FoundRoute {
        destination: route.destination,
        next_hop: next_hop(route),
        priority: route.priority,
    };
    Ok(rtnl.routes(route::PROTOCOL)?.iter().map(found).collect())
}

fn apply(rtnl: &Rtnl, changes: &[Change], pools: &PerFamily<Pool>, report: &mut Report) {
    let messages = || changes.iter().map(|change| message(change, pools)).collect::<Vec<_>>();
    report.apply_each(changes, || rtnl.apply_each(&messages()));
}

fn message(change: &Change, pools: &PerFamily<Pool>) -> Message {
    let route = |to: IpNetwork, NextHop { via, device, source, mtu, onlink }| {
        let scope = scope(to, pools);
        Route { scope, source, mtu, onlink, ..Route::via(to, via, device) }
    };
    match change {
        Change::Add(to, hop) => route::add(&route(*to, *hop)),
        Change::Replace(to, hop) => route::replace(&route(*to, *hop)),
        Change::Remove(found) => {
            let hop = found.next_hop;
            route::delete(&Route {
                gateway: hop.map(|hop| hop.via),
                device: hop.map(|hop| hop.device),
                priority: found.priority,
                scope: route::ANY_SCOPE,
                ..Route::to(found.destination)
            })
            .tolerating(Errno::ESRCH)
        }
    }
}
