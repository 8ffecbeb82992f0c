//! Keeps the routes to other hosts.

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::trigger::Scope;
use crate::checks::routing::{routes_in_the_way, rules_in_the_way};
use crate::net::gather::Gather;
use crate::net::subnet::{Pool, contains};
use crate::net::{Object, PerFamily, Problem};
use crate::netlink::route::{self, ForeignRoute, Route};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError};
use crate::plan::routes::{
    FoundRoute, NextHop, RouteChange, Routes, block_changes, block_routes, changes, is_block_route,
    scope, take_back,
};
use crate::policy::served::ServedNetworks;

/// Adds and replaces what is missing or wrong; removes what bears our mark and is not wanted, but
/// not before the hosts are completely known, and none that `keeps` says. `placed`: the destinations of
/// those that were in place before, and are now. Gives what else takes packets to pods, if that was
/// looked at.
pub fn reconcile(
    run: &Reconcile<'_>,
    wanted: &Routes,
    keeps: impl Fn(&FoundRoute) -> bool,
    placed: &mut BTreeSet<IpNetwork>,
    applier: &mut Applier,
) -> Vec<Problem> {
    let rtnl = &run.kernel.rtnl;
    let found = all(rtnl).and_then(|(found, blocks)| Ok((found, to_blocks(run, &blocks)?)));
    let found = applier.inspected(Object::named("routes"), found);
    let Some((found, to_blocks)) = found else { return Vec::new() };
    let mut changes = changes(wanted, &found);
    changes.retain(|change| match change {
        RouteChange::Remove(route) => {
            let is_block = !run.settings.pools.iter().any(is_in(route.destination));
            run.in_sync && !keeps(route) && (run.networks.in_sync || !is_block)
        }
        _ => true,
    });
    let lost = changes
        .iter()
        .any(|change| matches!(change, RouteChange::Add(to, _) if placed.contains(to)));
    if lost {
        take_back(&mut changes, placed, &lying(rtnl));
    }
    changes.extend(to_blocks);
    let failures = applier.failures().len();
    apply(rtnl, &changes, &run.settings.pools, applier);
    let failed = applier.failures().len() > failures;
    if !applier.is_dry() && !failed && !placed.iter().eq(wanted.keys()) {
        *placed = wanted.keys().copied().collect();
    }
    if failed || run.scope == Scope::ALL { in_the_way(run, wanted, applier) } else { Vec::new() }
}

fn is_in(destination: IpNetwork) -> impl Fn(&Pool) -> bool {
    move |pool| contains(pool.network(), destination)
}

/// What must change of the routes to blocks of this host.
fn to_blocks(run: &Reconcile<'_>, found: &[Route]) -> Result<Vec<RouteChange>, NetlinkError> {
    let ServedNetworks { mtus, in_sync, .. } = run.networks;
    let bridge = match mtus.is_empty() {
        true => None,
        false => run.kernel.rtnl.link(&run.settings.bridge)?,
    };
    let wanted = bridge.map(|bridge| block_routes((bridge.index, bridge.mtu), mtus));
    let mut changes = block_changes(&wanted.unwrap_or_default(), found);
    let added = |change: &RouteChange| match change {
        RouteChange::AddBlock(route) => Some(route.destination),
        _ => None,
    };
    let added: Vec<IpNetwork> = changes.iter().filter_map(added).collect();
    changes.retain(|change| match change {
        RouteChange::RemoveBlock(route) => *in_sync || added.contains(&route.destination),
        _ => true,
    });
    Ok(changes)
}

/// The destinations of others' routes in the main table.
fn lying(rtnl: &Rtnl) -> BTreeSet<IpNetwork> {
    let found = rtnl.foreign_routes().unwrap_or_default().into_iter();
    found.filter(|route| route.table == route::MAIN).map(|route| route.destination).gather()
}

/// What else takes packets to pods of other hosts.
fn in_the_way(run: &Reconcile<'_>, wanted: &Routes, applier: &mut Applier) -> Vec<Problem> {
    let rtnl = &run.kernel.rtnl;
    let found = rtnl.foreign_routes().and_then(|routes| Ok((routes, rtnl.rules()?)));
    let found = applier.inspected(Object::named("routes and rules of others"), found);
    let Some((routes, rules)) = found else { return Vec::new() };
    let mut problems = routes_in_the_way(wanted, &routes);
    let mut tables: BTreeMap<u32, Vec<ForeignRoute>> = BTreeMap::new();
    for route in routes {
        tables.entry(route.table).or_default().push(route);
    }
    let pods = (&run.settings.bridge, run.subnets);
    problems.extend(rules_in_the_way(wanted, pods, &rules, &tables));
    problems
}

/// Removes every route that bears our mark.
pub fn remove_all(rtnl: &Rtnl, applier: &mut Applier) {
    match all(rtnl) {
        Ok((found, blocks)) => {
            let mut changes = changes(&Routes::new(), &found);
            changes.extend(block_changes(&[], &blocks));
            apply(rtnl, &changes, &PerFamily::default(), applier);
        }
        Err(error) => applier.inspect_failed(Object::named("routes"), error),
    }
}

/// The routes to other hosts that bear our mark.
pub fn found(rtnl: &Rtnl) -> Result<Vec<FoundRoute>, NetlinkError> {
    Ok(all(rtnl)?.0)
}

/// The routes that bear our mark: to other hosts, and to blocks of this one.
fn all(rtnl: &Rtnl) -> Result<(Vec<FoundRoute>, Vec<Route>), NetlinkError> {
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
    let mut routes = rtnl.routes(route::PROTOCOL)?;
    let blocks = routes.extract_if(.., |route| is_block_route(route)).collect();
    Ok((routes.iter().map(found).collect(), blocks))
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
        RouteChange::AddBlock(to) => route::prepend(to).tolerating(Errno::EEXIST),
        RouteChange::RemoveBlock(to) => route::delete(to).tolerating(Errno::ESRCH),
    }
}
