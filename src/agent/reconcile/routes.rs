//! Keeps the routes to other hosts.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::tunnel::Tunnels;
use crate::net::subnet::Pool;
use crate::net::{Object, PerFamily};
use crate::netlink::route::{self, Route};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError};
use crate::plan::routes::{FoundRoute, NextHop, RouteChange, Routes, changes, scope};

/// Adds and replaces what is missing or wrong; removes what bears our mark and is not wanted, but
/// not before the hosts are completely known, and never to `unresolved`.
pub fn reconcile(
    run: &Reconcile<'_>,
    wanted: &Routes,
    unresolved: &BTreeSet<IpNetwork>,
    tunnels: &Tunnels,
    applier: &mut Applier,
) {
    let rtnl = &run.kernel.rtnl;
    let found = match found(rtnl) {
        Ok(found) => found,
        Err(error) => return applier.inspect_failed(Object::named("routes"), error),
    };
    let mut changes = changes(wanted, &found);
    changes.retain(|change| match change {
        RouteChange::Remove(route) => {
            let kept = unresolved.contains(&route.destination)
                || route.next_hop.is_some_and(|hop| tunnels.keeps(&hop));
            run.in_sync && !kept
        }
        RouteChange::Add(..) | RouteChange::Replace(..) => true,
    });
    apply(rtnl, &changes, &run.settings.pools, applier);
}

/// Removes every route that bears our mark.
pub fn remove_all(rtnl: &Rtnl, applier: &mut Applier) {
    match found(rtnl) {
        Ok(found) => apply(rtnl, &changes(&Routes::new(), &found), &PerFamily::default(), applier),
        Err(error) => applier.inspect_failed(Object::named("routes"), error),
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

fn apply(rtnl: &Rtnl, changes: &[RouteChange], pools: &PerFamily<Pool>, applier: &mut Applier) {
    let messages = || changes.iter().map(|change| message(change, pools)).collect::<Vec<_>>();
    applier.apply_each(changes, || rtnl.apply_each(&messages()));
}

fn message(change: &RouteChange, pools: &PerFamily<Pool>) -> Message {
    let route = |to: IpNetwork, NextHop { via, device, source, mtu, onlink }| {
        let scope = scope(to, pools);
        Route { scope, source, mtu, onlink, ..Route::via(to, via, device) }
    };
    match change {
        RouteChange::Add(to, hop) => route::add(&route(*to, *hop)),
        RouteChange::Replace(to, hop) => route::replace(&route(*to, *hop)),
        RouteChange::Remove(found) => {
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
