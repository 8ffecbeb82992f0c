//! Pure. Which routes to other hosts must change.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::subnet::{self, Pool};
use crate::net::{Family, PerFamily};
use crate::netlink::route::Route;

/// RT_SCOPE_LINK of linux/rtnetlink.h.
const LINK: u8 = 253;

/// Less than that of the kernel's routes to what is on a link (256, `IP6_RT_PRIO_ADDRCONF` of linux/ipv6_route.h).
const BEFORE_KERNEL: u32 = 255;

/// Where packets for a pod subnet go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    /// An address of the host that owns the subnet.
    pub via: IpAddr,
    /// Index of the interface on whose segment `via` lies.
    pub device: u32,
    /// The source address of this host's own packets; `None`: the kernel chooses.
    pub source: Option<IpAddr>,
    /// Bytes, if less than the MTU of the interface.
    pub mtu: Option<u32>,
    /// `via` is on the segment although no prefix of the interface contains it.
    pub onlink: bool,
}

impl NextHop {
    /// A host on the segment of an interface.
    pub fn direct(via: IpAddr, device: u32) -> NextHop {
        NextHop { via, device, source: None, mtu: None, onlink: false }
    }
}

/// Routes to other hosts: pod subnet → next hop.
pub type Routes = BTreeMap<IpNetwork, NextHop>;

/// Those of `routes` that lead to no part of `blocks`: another host may lease a block by now whose last pods run
/// here, and they keep their gateway until they are gone.
pub fn outside_blocks<'a>(mut routes: Cow<'a, Routes>, blocks: &[IpNetwork]) -> Cow<'a, Routes> {
    let is_here = |to: &IpNetwork| blocks.iter().any(|block| subnet::overlap(*block, *to));
    if routes.keys().any(is_here) {
        routes.to_mut().retain(|to, _| !is_here(to));
    }
    routes
}

/// A route with our mark, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundRoute {
    pub destination: IpNetwork,
    /// `None` for a route that we would not create.
    pub next_hop: Option<NextHop>,
    /// Metric; `None` is the kernel's default of the family.
    pub priority: Option<u32>,
}

/// One route that must change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteChange {
    Remove(FoundRoute),
    Add(IpNetwork, NextHop),
    /// It has another next hop.
    Replace(IpNetwork, NextHop),
    /// Says how long packets to a block here may be.
    AddBlock(Route),
    RemoveBlock(Route),
}

/// The routes to a host's own blocks whose pods take shorter packets than the bridge, which would drop longer ones in
/// silence. The kernel's route, made with the gateway's address, has the MTU of the bridge and stays as it is; these
/// come before it, the one of IPv6 by its metric. `bridge`: its index and MTU; `mtus`: those of blocks.
pub fn block_routes((bridge, mtu): (u32, u32), mtus: &BTreeMap<IpNetwork, u16>) -> Vec<Route> {
    let shorter = mtus.iter().filter(|(_, pods)| u32::from(**pods) < mtu);
    let route = |(block, pods): (&IpNetwork, &u16)| {
        let route = Route { device: Some(bridge), mtu: Some((*pods).into()), ..Route::to(*block) };
        match subnet::family(*block) {
            Family::V4 => Route { scope: LINK, source: Some(subnet::gateway(*block)), ..route },
            Family::V6 => Route { priority: Some(BEFORE_KERNEL), ..route },
        }
    };
    shorter.map(route).collect()
}

/// That of [`block_routes`] to an IPv6 block, whatever its MTU.
pub fn before_kernel(block: IpNetwork, bridge: u32) -> Route {
    Route { device: Some(bridge), priority: Some(BEFORE_KERNEL), ..Route::to(block) }
}

/// It is like those of [`block_routes`]: none that leads to another host.
pub fn is_block_route(route: &Route) -> bool {
    route.gateway.is_none() && route.mtu.is_some()
}

/// The changes that turn `found`, of which each [`is_block_route`], into `wanted`.
pub fn block_changes(wanted: &[Route], found: &[Route]) -> Vec<RouteChange> {
    let without = |all: &[Route], others: &[Route]| -> Vec<Route> {
        all.iter().filter(|route| !others.contains(route)).copied().collect()
    };
    let surplus = without(found, wanted).into_iter().map(RouteChange::RemoveBlock);
    surplus.chain(without(wanted, found).into_iter().map(RouteChange::AddBlock)).collect()
}

/// The changes that turn `found` into `wanted`: removals first, then additions and replacements.
///
/// `found` holds only routes with our mark; of several to one destination, which differ in their
/// metric, all but one are removed.
pub fn changes(wanted: &Routes, found: &[FoundRoute]) -> Vec<RouteChange> {
    let mut found: Vec<&FoundRoute> = found.iter().collect();
    // Nearly in order as the kernel gives them.
    found.sort_by_key(|route| route.destination);
    let mut wanted = wanted.iter().peekable();
    let (mut changes, mut later) = (Vec::new(), Vec::new());
    for routes in found.chunk_by(|a, b| a.destination == b.destination) {
        let here = routes[0].destination;
        while let Some((missing, hop)) = wanted.next_if(|(wanted, _)| **wanted < here) {
            later.push(RouteChange::Add(*missing, *hop));
        }
        let hop = wanted.next_if(|(wanted, _)| **wanted == here).map(|(_, hop)| *hop);
        let kept = hop.and_then(|_| routes.iter().position(|route| ours(route)));
        let others = routes.iter().enumerate().filter(|(place, _)| Some(*place) != kept);
        changes.extend(others.map(|(_, route)| RouteChange::Remove(**route)));
        match (hop, kept) {
            (Some(hop), None) => later.push(RouteChange::Add(here, hop)),
            (Some(hop), Some(kept)) if routes[kept].next_hop != Some(hop) => {
                later.push(RouteChange::Replace(here, hop));
            }
            _ => {}
        }
    }
    later.extend(wanted.map(|(missing, hop)| RouteChange::Add(*missing, *hop)));
    changes.append(&mut later);
    changes
}

/// Makes replacements of those additions whose destination was `placed` before and has one of the routes
/// `lying` now: somebody replaced ours by it. What lay there before ours could be added stays.
pub fn take_back(
    changes: &mut [RouteChange],
    placed: &BTreeSet<IpNetwork>,
    lying: &BTreeSet<IpNetwork>,
) {
    for change in changes {
        if let RouteChange::Add(to, hop) = *change
            && placed.contains(&to)
            && lying.contains(&to)
        {
            *change = RouteChange::Replace(to, hop);
        }
    }
}

/// The scope of the route to a host's subnet: universe (0) for the first 256 slots of the pool, 1
/// for the next 256, and so on up to 199, then again from 0. All of these are nearer than a site
/// and farther than a link, and route alike ("interior routes", linux/rtnetlink.h).
///
/// The kernel finds next hops through a hash over scope, protocol, metric and device, but not the
/// gateway: 10,000 hosts on one device would share one chain, and each new route would be compared
/// with all before it (1.6 s in all; with 40 scopes 0.2 s). The metric would serve as well, but a
/// route of somebody else with another metric is no conflict for the kernel, one with another
/// scope is.
pub fn scope(destination: IpNetwork, pools: &PerFamily<Pool>) -> u8 {
    const SLOTS: u32 = 256;
    const SCOPES: u32 = 200;
    let family = subnet::family(destination);
    let slots = pools.get(family).and_then(|pool| pool.slots_of(destination));
    // IPv6 has no such hash, and no scopes.
    match (family, slots) {
        (Family::V4, Some((slot, _))) => (slot / SLOTS % SCOPES) as u8,
        _ => 0,
    }
}

/// The metric of a route that we create: the kernel's default metric (none for IPv4, 1024 for IPv6,
/// `IP6_RT_PRIO_USER` of linux/ipv6_route.h).
fn ours(route: &FoundRoute) -> bool {
    match route.destination {
        IpNetwork::V4(_) => route.priority.is_none(),
        IpNetwork::V6(_) => matches!(route.priority, None | Some(1024)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Describe;

    fn hop(text: &str) -> NextHop {
        NextHop::direct(text.parse().unwrap(), 2)
    }

    fn found(routes: &[(&str, &str)]) -> Vec<FoundRoute> {
        let route = |(destination, via): &(&str, &str)| FoundRoute {
            destination: destination.parse().unwrap(),
            next_hop: Some(hop(via)),
            priority: None,
        };
        routes.iter().map(route).collect()
    }

    #[test]
    fn what_replaced_a_route_of_ours_is_replaced_and_what_lay_there_before_is_not() {
        let subnets = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        let add = |to: &str| RouteChange::Add(to.parse().unwrap(), hop("192.0.2.2"));
        let mut changes = ["10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"].map(add);
        take_back(
            &mut changes,
            &subnets(&["10.0.1.0/24", "10.0.2.0/24"]),
            &subnets(&["10.0.2.0/24", "10.0.3.0/24"]),
        );
        let lines = changes.map(|change| change.line().to_string());
        assert_eq!(lines.map(|line| line[..1].to_owned()), ["+", "~", "+"]);
    }

    #[test]
    fn a_block_whose_pods_take_less_than_the_bridge_has_a_route_that_says_so() {
        let mtus = [("10.32.0.64/26", 1400), ("10.33.0.0/26", 1500), ("fd00:32::/122", 1400)];
        let mtus = mtus.into_iter().map(|(block, mtu)| (block.parse().unwrap(), mtu)).collect();
        let check = |mtu, found: &[Route], expected: &[&str]| {
            let changes = block_changes(&block_routes((7, mtu), &mtus), found);
            let lines: Vec<String> = changes.iter().map(|it| it.line().to_string()).collect();
            assert_eq!(lines, expected);
        };
        let both = ["+ route 10.32.0.64/26 (mtu 1400)", "+ route fd00:32::/122 (mtu 1400)"];
        check(1500, &[], &both);
        let found = block_routes((7, 1500), &mtus);
        assert!(found.iter().all(is_block_route));
        check(1500, &found, &[]);
        check(
            1400,
            &found,
            &both.map(|line| line.replace('+', "-")).each_ref().map(String::as_str),
        );
        let mut other = found.clone();
        other[0].mtu = Some(1380);
        check(1500, &other, &["- route 10.32.0.64/26 (mtu 1380)", both[0]]);
    }

    #[test]
    fn no_route_leads_to_a_part_of_a_block_that_is_here() {
        let text = ["10.32.0.0/26", "10.32.0.0/28", "10.32.0.64/26", "10.0.1.0/24", "fd00::/122"];
        let all: Routes = text.iter().map(|to| (to.parse().unwrap(), hop("192.0.2.2"))).collect();
        let kept = |blocks: &[&str]| {
            let blocks: Vec<IpNetwork> = blocks.iter().map(|it| it.parse().unwrap()).collect();
            let kept = outside_blocks(Cow::Borrowed(&all), &blocks);
            kept.keys().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[]).len(), all.len());
        let left = ["10.0.1.0/24", "10.32.0.64/26", "fd00::/122"];
        assert_eq!(kept(&["10.32.0.0/26"]), left);
        assert_eq!(kept(&["10.32.0.0/26", "fd00::/122"]), left[..2]);
    }

    fn check(wanted: &[(&str, &str)], found: &[FoundRoute], expected: &[&str]) {
        let wanted = wanted.iter().map(|(to, via)| (to.parse().unwrap(), hop(via))).collect();
        let lines: Vec<String> =
            changes(&wanted, found).iter().map(|change| change.line().to_string()).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn correct_routes_are_not_changed() {
        check(&[("10.1.1.0/24", "192.0.2.1")], &found(&[("10.1.1.0/24", "192.0.2.1")]), &[]);
    }

    #[test]
    fn a_host_that_joined_is_added_and_one_that_left_is_removed_first() {
        check(
            &[("10.1.1.0/24", "192.0.2.1"), ("fd00:1::/64", "2001:db8::1")],
            &found(&[("10.1.9.0/24", "192.0.2.9")]),
            &[
                "- route 10.1.9.0/24 via 192.0.2.9",
                "+ route 10.1.1.0/24 via 192.0.2.1",
                "+ route fd00:1::/64 via 2001:db8::1",
            ],
        );
    }

    #[test]
    fn a_host_that_moved_gets_a_new_next_hop() {
        check(
            &[("10.1.1.0/24", "192.0.2.9")],
            &found(&[("10.1.1.0/24", "192.0.2.1")]),
            &["~ route 10.1.1.0/24 via 192.0.2.9"],
        );
    }

    #[test]
    fn another_device_is_another_next_hop() {
        let mut routes = found(&[("10.1.1.0/24", "192.0.2.1")]);
        routes[0].next_hop = Some(NextHop { device: 3, ..hop("192.0.2.1") });
        check(&[("10.1.1.0/24", "192.0.2.1")], &routes, &["~ route 10.1.1.0/24 via 192.0.2.1"]);
    }

    #[test]
    fn a_next_hop_that_differs_in_any_field_is_replaced() {
        let wanted = hop("192.0.2.1");
        for other in [
            NextHop { source: Some("10.1.9.1".parse().unwrap()), ..wanted },
            NextHop { mtu: Some(1400), ..wanted },
            NextHop { onlink: true, ..wanted },
        ] {
            let mut routes = found(&[("10.1.1.0/24", "192.0.2.1")]);
            routes[0].next_hop = Some(other);
            check(&[("10.1.1.0/24", "192.0.2.1")], &routes, &["~ route 10.1.1.0/24 via 192.0.2.1"]);
        }
    }

    #[test]
    fn a_second_route_to_the_same_subnet_is_removed() {
        let mut routes = found(&[("10.1.1.0/24", "192.0.2.1"), ("10.1.1.0/24", "192.0.2.7")]);
        routes[1].priority = Some(5);
        check(&[("10.1.1.0/24", "192.0.2.1")], &routes, &["- route 10.1.1.0/24 via 192.0.2.7"]);
    }

    #[test]
    fn a_route_without_gateway_with_our_mark_is_replaced() {
        let mut routes = found(&[("10.1.1.0/24", "192.0.2.1")]);
        routes[0].next_hop = None;
        check(&[("10.1.1.0/24", "192.0.2.1")], &routes, &["~ route 10.1.1.0/24 via 192.0.2.1"]);
        check(&[], &routes, &["- route 10.1.1.0/24"]);
    }

    #[test]
    fn routes_on_one_device_are_spread_over_scopes() {
        let pool = |text: &str, margin| Some(Pool::new(text.parse().unwrap(), margin).unwrap());
        let wide = PerFamily { v4: pool("11.0.0.0/8", 16), v6: pool("fd00::/48", 16) };
        let usual = PerFamily { v4: pool("10.244.0.0/16", 8), v6: None };
        for (subnet, pools, expected) in [
            ("11.0.255.0/24", wide, 0),
            ("11.1.0.0/24", wide, 1),
            ("11.39.7.0/24", wide, 39),
            ("11.199.0.0/24", wide, 199),
            ("11.200.0.0/24", wide, 0),
            ("fd00:0:0:ffff::/64", wide, 0),
            ("10.244.255.0/24", usual, 0),
            ("192.0.2.0/24", usual, 0),
        ] {
            assert_eq!(scope(subnet.parse().unwrap(), &pools), expected, "{subnet}");
        }
    }
}
