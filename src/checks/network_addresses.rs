//! Pure. Networks of tenants with addresses that hosts have themselves: a block there would be a route over the
//! segment of the hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::lease::NodeName;
use crate::net::gather::Gather;
use crate::net::subnet::{contains, family};
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::{Networks, Scoped};

/// Why this host takes no block of a network, by the network's name. `segments`: prefixes on this host's interfaces
/// but the bridge; `hosts`: the addresses of all hosts. A network may be a part of a segment, as the pool of the
/// settings may: an administrator keeps it free there.
pub fn conflicts(
    networks: &Networks,
    segments: &[IpNetwork],
    hosts: &[(&NodeName, IpAddr)],
) -> BTreeMap<Scoped, String> {
    let of_pool = |pool: IpNetwork| {
        let family = family(pool);
        let host = hosts.iter().find(|(_, address)| pool.contains(*address));
        let host = host.map(|(host, address)| format!("{address}, the address of host {host}"));
        let what = host.or_else(|| {
            let segment = segments.iter().find(|segment| contains(pool, **segment))?;
            Some(format!("addresses of {segment}, where an interface of this host is"))
        });
        what.map(|what| format!("its {family} pool {pool} has {what}"))
    };
    let found = networks.iter().filter_map(|(name, network)| {
        let why = network.networks().find_map(of_pool)?;
        Some((name.clone(), why))
    });
    found.gather()
}

/// No new pod starts in `network` here.
pub fn problem(network: &Scoped, why: &str) -> Problem {
    let subject = Object::named(format!("Network {network}"));
    let what = format!("{why}; no new pod starts in network {network} here");
    let fix =
        format!("humanz-agent net show {network} # give it other subnets, by --cidr of net set");
    Problem::in_object(ProblemKind::AddressConflict, subject, what).with_fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    fn why(subnet: &str) -> Option<String> {
        let object = serde_json::json!({"apiVersion": "humanz.io/v1", "kind": "Network",
            "metadata": {"tenant": "blue", "name": "front"}, "spec": {"subnets": [subnet]}});
        let read = documents::read(&[object], true);
        assert_eq!(read.problems, []);
        let segments = ["192.0.2.0/24", "2001:db8::/64"].map(|text| text.parse().unwrap());
        let [h1, h2]: [NodeName; 2] = ["h1", "h2"].map(|name| name.parse().unwrap());
        let hosts = [(&h1, "192.0.2.11".parse().unwrap()), (&h2, "198.51.100.9".parse().unwrap())];
        conflicts(&read.networks, &segments, &hosts).into_values().next()
    }

    #[test]
    fn a_network_with_addresses_of_hosts_is_found_and_no_other_one() {
        for (subnet, what) in [
            ("192.0.2.0/24", "its IPv4 pool 192.0.2.0/24 has 192.0.2.11, the address of host h1"),
            ("198.51.0.0/16", "198.51.100.9, the address of host h2"),
            ("2001:db8::/56", "IPv6 pool 2001:db8::/56 has addresses of 2001:db8::/64"),
        ] {
            let found = why(subnet).unwrap_or_default();
            assert!(found.contains(what), "{subnet}: {found}");
        }
        for subnet in ["10.32.0.0/16", "2001:db8:1::/64", "192.0.2.128/25"] {
            assert_eq!(why(subnet), None, "{subnet}");
        }
    }
}
