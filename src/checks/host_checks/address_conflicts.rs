//! Pure. Addresses and routes of other programs inside the pools.

use ipnetwork::IpNetwork;

use crate::net::{IfName, Object, PerFamily, Problem, ProblemKind, subnet};

/// Addresses of other links and routes of others inside a pool: packets there do not reach pods.
/// Typically left behind by another pod network.
pub fn inside(
    pools: &PerFamily<IpNetwork>,
    addresses: &[(IfName, IpNetwork)],
    routes: &[IpNetwork],
) -> Vec<Problem> {
    let pool_of =
        |network: IpNetwork| pools.iter().find(|pool| subnet::contains(**pool, network)).copied();
    let addresses = addresses.iter().filter_map(|(link, address)| {
        let pool = pool_of(subnet::host(address.ip()))?;
        let what = format!(
            "{link} has the address {address} inside the pool {pool}, and pods there cannot be \
             reached"
        );
        let subject = Object::Link("interface".to_owned(), link.clone());
        let fix = format!(
            "ip address show dev {link} # if it is left from another pod network: ip link delete {link}"
        );
        Some(Problem::new(ProblemKind::AddressConflict, subject, what).with_fix(fix))
    });
    let routes = routes.iter().filter_map(|route| {
        let pool = pool_of(*route)?;
        let what = format!(
            "the route {route} is not humanz's and lies inside the pool {pool}, and pods there may \
             not be reached"
        );
        let fix = format!(
            "ip route show {route} # if it is left from another pod network: ip route delete {route}"
        );
        let problem = Problem::new(ProblemKind::RouteConflict, Object::Route(*route), what);
        Some(problem.with_fix(fix))
    });
    addresses.chain(routes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, route: &str, wanted: &[(ProblemKind, &str)]) {
        let pools = PerFamily {
            v4: Some("10.244.0.0/16".parse().unwrap()),
            v6: Some("fd10::/48".parse().unwrap()),
        };
        let address = ("cni0".parse().unwrap(), address.parse().unwrap());
        let found = inside(&pools, &[address], &[route.parse().unwrap()]);
        let found: Vec<(ProblemKind, String)> =
            found.iter().map(|problem| (problem.kind, problem.subject.to_string())).collect();
        let wanted: Vec<(ProblemKind, String)> =
            wanted.iter().map(|(kind, subject)| (*kind, (*subject).to_owned())).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn leftovers_of_another_network_are_reported() {
        let link = (ProblemKind::AddressConflict, "interface cni0");
        check("10.244.9.1/24", "192.0.2.0/24", &[link]);
        let route = (ProblemKind::RouteConflict, "route fd10:0:0:5::/64");
        check("192.0.2.1/24", "fd10:0:0:5::/64", &[route]);
    }

    #[test]
    fn wider_routes_do_no_harm() {
        check("192.0.2.1/24", "10.0.0.0/8", &[]);
        check("192.0.2.1/24", "0.0.0.0/0", &[]);
    }
}
