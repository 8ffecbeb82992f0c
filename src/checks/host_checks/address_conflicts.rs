//! Pure. Who else uses addresses of the pools.

use ipnetwork::IpNetwork;

use crate::net::{IfName, PerFamily, subnet};

/// A line for each address of another link, and for each route of somebody else, inside a pool: what
/// goes there does not reach pods. Typically left behind by another pod network.
pub fn inside(
    pools: &PerFamily<IpNetwork>,
    addresses: &[(IfName, IpNetwork)],
    routes: &[IpNetwork],
) -> Vec<String> {
    let pool_of =
        |network: IpNetwork| pools.iter().find(|pool| subnet::contains(**pool, network)).copied();
    let addresses = addresses.iter().filter_map(|(link, address)| {
        let pool = pool_of(subnet::host(address.ip()))?;
        Some(format!(
            "{link} has the address {address} inside the pool {pool}, and pods there cannot be \
             reached; if it is left from another pod network: ip link delete {link}"
        ))
    });
    let routes = routes.iter().filter_map(|route| {
        let pool = pool_of(*route)?;
        Some(format!(
            "the route {route} is not humanz's and lies inside the pool {pool}, and pods there may \
             not be reached; if it is left from another pod network: ip route delete {route}"
        ))
    });
    addresses.chain(routes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, route: &str, wanted: &[&str]) {
        let pools = PerFamily {
            v4: Some("10.244.0.0/16".parse().unwrap()),
            v6: Some("fd10::/48".parse().unwrap()),
        };
        let address = ("cni0".parse().unwrap(), address.parse().unwrap());
        let lines = inside(&pools, &[address], &[route.parse().unwrap()]);
        assert_eq!(lines.len(), wanted.len(), "{lines:?}");
        for (line, wanted) in lines.iter().zip(wanted) {
            assert!(line.contains(wanted), "{line}");
        }
    }

    #[test]
    fn leftovers_of_another_network_are_named() {
        let link = "cni0 has the address 10.244.9.1/24 inside the pool 10.244.0.0/16";
        check("10.244.9.1/24", "192.0.2.0/24", &[link]);
        check("192.0.2.1/24", "fd10:0:0:5::/64", &["the route fd10:0:0:5::/64 is not humanz's"]);
    }

    #[test]
    fn wider_routes_are_no_trap() {
        check("192.0.2.1/24", "10.0.0.0/8", &[]);
        check("192.0.2.1/24", "0.0.0.0/0", &[]);
    }
}
