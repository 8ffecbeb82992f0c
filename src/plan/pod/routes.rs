//! Pure. A pod's routes: in the result, and in the kernel.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::cni::{CniRoute, Version};
use crate::net::{Family, subnet};
use crate::netlink::route::{self, Route};
use crate::plan::pod::interface::Assigned;

/// RT_SCOPE_UNIVERSE and RT_SCOPE_LINK of linux/rtnetlink.h.
const UNIVERSE: u8 = 0;
const LINK: u8 = 253;

/// The pod's routes, as in the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRoutes {
    /// Those of the configuration; a default route without a gateway gets the pod's.
    pub configured: Vec<CniRoute>,
    /// A default route for each family that has a gateway and no configured default route. It is
    /// left out if an earlier interface gave the pod one.
    pub defaults: Vec<CniRoute>,
    /// Routes to the interface's own network, in place of default routes that are left out.
    pub instead: Vec<CniRoute>,
}

impl PodRoutes {
    /// Without the default routes to these destinations.
    pub fn leave_out(&mut self, destinations: &[IpNetwork]) {
        self.defaults.retain(|route| !destinations.contains(&route.dst));
        let is_instead = |route: &CniRoute| destinations.contains(&any(route.family()));
        self.configured.extend(std::mem::take(&mut self.instead).into_iter().filter(is_instead));
    }
}

/// The routes of a pod with these addresses; `default_route`: it gets default routes.
pub fn routes(configured: &[CniRoute], assigned: &[Assigned], default_route: bool) -> PodRoutes {
    let configured = configured.to_vec();
    let mut routes = PodRoutes { configured, defaults: Vec::new(), instead: Vec::new() };
    for family in Family::BOTH.into_iter().filter(|_| default_route) {
        let own = |route: &CniRoute| {
            route.is_default() && route.family() == family && route.table.is_none()
        };
        let Some(gateway) = gateway(assigned, family) else { continue };
        match routes.configured.iter_mut().find(|route| own(route)) {
            Some(route) => route.gw = route.gw.or(Some(gateway)),
            None => routes.defaults.push(CniRoute::new(any(family), Some(gateway))),
        }
    }
    routes
}

/// `answered`, a route of a result of `version`, with the keys that the version does not have: from
/// the same route of the configuration.
pub fn recalled(
    answered: &CniRoute,
    configured: &[CniRoute],
    assigned: &[Assigned],
    version: Version,
) -> CniRoute {
    let via = |route: &CniRoute| route.gw.or_else(|| gateway(assigned, route.family()));
    let same = |route: &&CniRoute| route.dst == answered.dst && via(route) == via(answered);
    let route = configured.iter().find(same).filter(|_| version < Version::V100);
    route.map_or(*answered, |route| CniRoute { gw: answered.gw, ..*route })
}

/// `route` as the kernel takes it. Without a gateway of its own it goes through the pod's gateway
/// of that family; if there is none either, its destination is on the link.
pub fn kernel_route(route: &CniRoute, assigned: &[Assigned]) -> Route {
    let gateway = route.gw.or_else(|| gateway(assigned, route.family()));
    // An IPv6 route has no scope.
    let scope = match (route.family(), gateway) {
        (Family::V6, _) => UNIVERSE,
        (Family::V4, Some(_)) => route.scope.unwrap_or(UNIVERSE),
        (Family::V4, None) => route.scope.unwrap_or(LINK),
    };
    Route {
        destination: subnet::masked(route.dst),
        gateway,
        device: None,
        protocol: route::PROTOCOL,
        table: route.table.filter(|table| *table != 0).unwrap_or(route::MAIN),
        scope,
        priority: route.priority,
        mtu: route.mtu,
        advmss: route.advmss,
        onlink: false,
        source: None,
    }
}

/// `routes` as the kernel takes them: those to one destination, in one table, with one metric, are
/// the paths of one route. Duplicates count once.
pub fn paths(routes: &[Route]) -> Vec<Vec<Route>> {
    let mut paths: Vec<Vec<Route>> = Vec::new();
    for route in routes {
        let key = |route: &Route| (route.destination, route.table, route.priority);
        match paths.iter_mut().find(|paths| key(&paths[0]) == key(route)) {
            Some(paths) if paths.contains(route) => {}
            Some(paths) => paths.push(*route),
            None => paths.push(vec![*route]),
        }
    }
    paths
}

fn gateway(assigned: &[Assigned], family: Family) -> Option<IpAddr> {
    let of_family = |assigned: &&Assigned| Family::of(assigned.address.ip()) == family;
    assigned.iter().filter(of_family).find_map(|assigned| assigned.gateway)
}

/// Every address of a family.
fn any(family: Family) -> IpNetwork {
    match family {
        Family::V4 => subnet::with_prefix(IpAddr::from([0u8; 4]), 0),
        Family::V6 => subnet::with_prefix(IpAddr::from([0u8; 16]), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(list: &[(&str, Option<&str>)]) -> Vec<Assigned> {
        let one = |(address, gateway): &(&str, Option<&str>)| Assigned {
            address: address.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        };
        list.iter().map(one).collect()
    }

    fn dual() -> Vec<Assigned> {
        assigned(&[("10.1.2.3/24", Some("10.1.2.1")), ("fd00::3/64", Some("fd00::1"))])
    }

    fn route(text: &str) -> CniRoute {
        let (dst, gw) = text.split_once(" via ").map_or((text, None), |(dst, gw)| (dst, Some(gw)));
        CniRoute::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
    }

    /// The routes of the result, as text.
    fn check(configured: &[&str], assigned: &[Assigned], default_route: bool, wanted: &[&str]) {
        let configured: Vec<_> = configured.iter().map(|text| route(text)).collect();
        let text = |route: &CniRoute| match route.gw {
            Some(gw) => format!("{} via {gw}", route.dst),
            None => route.dst.to_string(),
        };
        let routes = routes(&configured, assigned, default_route);
        let found: Vec<_> = routes.configured.iter().chain(&routes.defaults).map(text).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn each_family_gets_its_default_route() {
        check(&[], &dual(), true, &["0.0.0.0/0 via 10.1.2.1", "::/0 via fd00::1"]);
        check(&[], &dual()[..1], true, &["0.0.0.0/0 via 10.1.2.1"]);
        check(&[], &dual(), false, &[]);
    }

    #[test]
    fn a_route_to_its_network_takes_the_place_of_a_default_route_that_is_left_out() {
        let mut routes = routes(&[], &dual(), true);
        routes.instead = vec![route("10.1.0.0/16"), route("fd00::/48")];
        routes.leave_out(&["::/0".parse().unwrap()]);
        assert_eq!(routes.configured, [route("fd00::/48")]);
        assert_eq!(routes.defaults, [route("0.0.0.0/0 via 10.1.2.1")]);
    }

    #[test]
    fn a_configured_default_route_is_the_only_one_of_its_family() {
        let wanted = ["0.0.0.0/0 via 10.1.2.9", "::/0 via fd00::1"];
        check(&["0.0.0.0/0 via 10.1.2.9"], &dual(), true, &wanted);
        let wanted = ["0.0.0.0/0 via 10.1.2.1", "::/0 via fd00::1"];
        check(&["0.0.0.0/0"], &dual(), true, &wanted);
    }

    #[test]
    fn configured_routes_come_first_as_they_were_written() {
        let wanted = ["10.0.0.0/8", "10.0.0.0/8 via 10.1.2.9", "0.0.0.0/0 via 10.1.2.1"];
        check(&["10.0.0.0/8", "10.0.0.0/8 via 10.1.2.9"], &dual()[..1], true, &wanted);
    }

    #[test]
    fn a_result_too_old_for_it_is_completed_from_the_configuration() {
        let in_table = CniRoute { table: Some(5000), mtu: Some(1400), ..route("10.0.0.0/8") };
        let answered = route("10.0.0.0/8 via 10.1.2.1");
        let recalled = |route: CniRoute, version| recalled(&route, &[in_table], &dual(), version);
        let whole = CniRoute { gw: answered.gw, ..in_table };
        assert_eq!(recalled(answered, Version::V040), whole);
        assert_eq!(recalled(route("10.0.0.0/8"), Version::V040), in_table);
        assert_eq!(recalled(answered, Version::V100), answered);
        let other = route("10.0.0.0/8 via 10.1.2.9");
        assert_eq!(recalled(other, Version::V040), other);
    }

    #[test]
    fn without_any_gateway_there_is_no_default_route() {
        check(&[], &assigned(&[("10.1.2.3/24", None)]), true, &[]);
    }

    #[test]
    fn a_route_without_a_gateway_takes_the_pods_or_lies_on_the_link() {
        let via = kernel_route(&route("192.0.2.0/24"), &dual());
        assert_eq!((via.gateway.unwrap().to_string().as_str(), via.scope), ("10.1.2.1", UNIVERSE));
        let via = kernel_route(&route("2001:db8::/32"), &dual());
        assert_eq!(via.gateway.unwrap().to_string(), "fd00::1");
        let device = kernel_route(&route("192.0.2.0/24"), &assigned(&[("10.1.2.3/24", None)]));
        assert_eq!((device.gateway, device.scope, device.table), (None, LINK, route::MAIN));
    }

    #[test]
    fn routes_to_one_destination_are_paths_of_one_route() {
        let text = ["10.0.0.0/8 via 10.1.2.8", "::/0 via fd00::1", "10.0.0.0/8 via 10.1.2.9"];
        let mut routes: Vec<Route> =
            text.iter().map(|text| kernel_route(&route(text), &[])).collect();
        routes.push(routes[0]);
        routes.push(Route { priority: Some(7), ..routes[0] });
        let counts: Vec<usize> = paths(&routes).iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 1, 1]);
    }

    #[test]
    fn table_scope_and_metrics_are_kept() {
        let requested = CniRoute {
            table: Some(5000),
            scope: Some(200),
            mtu: Some(1400),
            advmss: Some(1360),
            priority: Some(7),
            ..route("192.0.2.0/24")
        };
        let route = kernel_route(&requested, &[]);
        assert_eq!((route.table, route.scope, route.priority), (5000, 200, Some(7)));
        assert_eq!((route.mtu, route.advmss), (Some(1400), Some(1360)));
    }
}
