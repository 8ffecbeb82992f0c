//! Pure. The pool of a network, widened while hosts use it.
//!
//! A pool may become one that contains it and is cut into subnets of the same size. The first agent
//! that is configured with the wider pool writes it to the network settings; the others follow. Every
//! subnet is claimed by its address, so hosts with the narrow pool and hosts with the wide one never
//! get the same subnet. It may not become one that has addresses of hosts, or of tenants' networks.

use ipnetwork::IpNetwork;

use crate::lease::claim::python;
use crate::lease::error::LeaseError;
use crate::lease::identity::Network;
use crate::lease::records::{Key, Roots};
use crate::lease::snapshot::Snapshot;
use crate::lease::tenant_pools::TenantPools;
use crate::lease::transaction::Transaction;
use crate::net::PerFamily;
use crate::net::subnet::{self, Pool};

/// `ours`, with each pool that grew as wide as the network has it.
///
/// Only inside `limits`: otherwise anybody with write access to etcd could redirect the hosts' traffic to
/// any address.
pub fn followed(
    ours: &PerFamily<Pool>,
    limits: &PerFamily<IpNetwork>,
    found: &Snapshot,
) -> PerFamily<Pool> {
    let theirs = found.config.as_ref().map(|config| config.value.pools()).unwrap_or_default();
    let mut followed = *ours;
    for (family, pool) in ours.entries() {
        let wider = theirs.get(family).filter(|theirs| theirs.widens(pool));
        let limit = limits.get(family);
        let allowed =
            |wider: &&Pool| limit.is_some_and(|limit| subnet::contains(*limit, wider.network()));
        if let Some(wider) = wider.filter(allowed) {
            followed.set(family, Some(*wider));
        }
    }
    followed
}

/// `ours`, with each pool that the network cannot have as narrow as the network has it. `tenants`: the
/// networks that this host knows.
pub fn held_back(
    ours: &PerFamily<Pool>,
    found: &Snapshot,
    roots: &Roots,
    tenants: &TenantPools,
) -> PerFamily<Pool> {
    let theirs = found.config.as_ref().map(|config| config.value.pools()).unwrap_or_default();
    let mut held = *ours;
    for (family, wide) in ours.entries() {
        let narrow = theirs.get(family).filter(|narrow| wide.widens(narrow));
        if let Some(narrow) = narrow.filter(|it| why_not(found, roots, tenants, it, wide).is_some())
        {
            held.set(family, Some(*narrow));
        }
    }
    held
}

/// A pool of `ours` is wider than that of the network.
pub fn is_wanted(found: &Snapshot, ours: &Network) -> bool {
    let theirs = found.config.as_ref().map(|config| config.value.pools()).unwrap_or_default();
    let mut ours = ours.pools.entries();
    ours.any(|(family, wide)| theirs.get(family).is_some_and(|narrow| wide.widens(narrow)))
}

/// Widens the pools of the network to those of `ours`, if they are narrower, and if no network of a tenant
/// has been made or changed since those of `ours` were read.
///
/// # Errors
/// [`LeaseError::CannotGrow`].
pub fn of(found: &Snapshot, ours: &Network) -> Result<Option<Transaction>, LeaseError> {
    let Some(config) = &found.config else { return Ok(None) };
    let theirs = config.value.pools();
    let mut grown = theirs;
    for (family, pool) in ours.pools.entries() {
        let Some(narrow) = theirs.get(family).filter(|theirs| pool.widens(theirs)) else {
            continue;
        };
        if let Some(why) = why_not(found, &ours.roots, &ours.tenants, narrow, pool) {
            let (narrow, wide) = (narrow.network(), pool.network());
            return Err(LeaseError::CannotGrow { narrow, wide, why });
        }
        grown.set(family, Some(*pool));
    }
    if grown == theirs {
        return Ok(None);
    }
    let mut settings = config.value.clone();
    settings.set_pools(&grown);
    let mut transaction = Transaction::default();
    let key = found.unchanged(&mut transaction, &ours.roots, &Key::Config);
    if ours.tenants.revision > 0 {
        transaction.range_unchanged(ours.roots.networks_range(), ours.tenants.revision);
    }
    transaction.put(key, settings.to_json());
    Ok(Some(transaction))
}

/// Why the network cannot have `wide` instead of `narrow`.
pub fn why_not(
    found: &Snapshot,
    roots: &Roots,
    tenants: &TenantPools,
    narrow: &Pool,
    wide: &Pool,
) -> Option<String> {
    if let Some(why) = tenants.refuses(wide.network()) {
        return Some(why);
    }
    let mut addresses = found
        .nodes
        .iter()
        .flat_map(|(host, node)| node.value.addresses.iter().map(move |address| (host, *address)));
    if let Some((host, address)) = addresses.find(|(_, a)| wide.network().contains(*a)) {
        return Some(format!("it contains {address}, the address of host {host}"));
    }
    // Such a host counts slots from the beginning of its configured pool and takes them without a check.
    let python = found.hosts.keys().find(|host| python::is_python(found, roots, host));
    let moved = wide.network().network() != narrow.network().network();
    python.filter(|_| moved && wide.network().is_ipv4()).map(|host| {
        format!(
            "host {host} runs the Python agent, so the pool must still begin at {}",
            narrow.network().network()
        )
    })
}

/// The subnets of hosts that lie in `wide` and not in `narrow`, with their hosts.
pub fn outside<'a>(
    found: &'a Snapshot,
    narrow: &'a PerFamily<Pool>,
) -> impl Iterator<Item = String> + 'a {
    let hosts = found.claims.iter().map(|(subnet, claim)| (*subnet, &claim.value));
    let outside = hosts.filter(|(subnet, _)| {
        let pool = narrow.get(subnet::family(*subnet));
        pool.is_some_and(|pool| !subnet::contains(pool.network(), *subnet))
    });
    outside.map(|(subnet, host)| format!("{host} ({subnet})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::Backend;
    use crate::lease::snapshot::Raw;
    use crate::lease::transaction::Condition;

    fn pool(text: &str, margin: u8) -> Pool {
        Pool::new(subnet::parse(text).unwrap(), margin).unwrap()
    }

    fn network(v4: (&str, u8), v6: Option<(&str, u8)>) -> Network {
        Network {
            roots: Roots {
                hosts: "/h".to_owned(),
                counter: "/c".to_owned(),
                humanz: "/z".to_owned(),
            },
            pools: PerFamily {
                v4: Some(pool(v4.0, v4.1)),
                v6: v6.map(|(text, margin)| pool(text, margin)),
            },
            limits: PerFamily::default(),
            backend: Backend::Direct,
            tenants: TenantPools::default(),
        }
    }

    /// A store of `network` with these keys besides.
    fn store(network: &Network, keys: &[(&str, &str)]) -> Snapshot {
        let config = network.config("a").to_json();
        let mut found = Snapshot::default();
        for (key, value) in [("/z/config", config.as_str())].iter().chain(keys) {
            let modified = found.revision + 1;
            let raw =
                Raw { key: key.as_bytes(), value: value.as_bytes(), created: modified, modified };
            found.put(&network.roots, raw);
        }
        found
    }

    const NODE: &str = r#"{"schema":1,"machineId":"m2","bootId":"b","version":"0.1.0","subnets":["10.244.2.0/24"],"addresses":["10.245.9.9"],"backend":"direct","mtu":1500}"#;

    /// What the pools of the network become if one host is configured with `wide`.
    fn grown(
        narrow: &Network,
        wide: &Network,
        keys: &[(&str, &str)],
    ) -> Result<Option<PerFamily<Pool>>, String> {
        let mut found = store(narrow, keys);
        match of(&found, wide) {
            Ok(None) => Ok(None),
            Err(error) => Err(error.to_string()),
            Ok(Some(transaction)) => {
                found.written(&wide.roots, &transaction, 99);
                let config = found.config.unwrap();
                assert_eq!(&*config.value.id, "a", "same store");
                Ok(Some(config.value.pools()))
            }
        }
    }

    #[test]
    fn a_wider_pool_is_written_and_a_narrower_one_is_not() {
        let narrow = network(("10.244.0.0/16", 8), None);
        let wide = network(("10.244.0.0/15", 9), None);
        assert_eq!(grown(&narrow, &wide, &[]), Ok(Some(wide.pools)));
        assert_eq!(grown(&wide, &narrow, &[]), Ok(None));
        assert_eq!(grown(&wide, &wide, &[]), Ok(None));
    }

    #[test]
    fn each_family_grows_by_itself() {
        let narrow = network(("10.244.0.0/15", 9), Some(("fd10::/48", 16)));
        let wide = network(("10.244.0.0/16", 8), Some(("fd10::/44", 20)));
        let both = network(("10.244.0.0/15", 9), Some(("fd10::/44", 20)));
        assert_eq!(grown(&narrow, &wide, &[]), Ok(Some(both.pools)));
    }

    #[test]
    fn a_pool_does_not_grow_over_a_node_address() {
        let narrow = network(("10.244.0.0/16", 8), None);
        let wide = network(("10.244.0.0/15", 9), None);
        let why = grown(&narrow, &wide, &[("/h/h2", "10.244.2.0/24"), ("/z/nodes/h2", NODE)]);
        assert!(why.unwrap_err().contains("10.245.9.9, the address of host h2"));
    }

    #[test]
    fn a_pool_does_not_grow_over_a_network_of_a_tenant() {
        let narrow = network(("10.244.0.0/16", 8), Some(("fd10::/48", 16)));
        let mut wide = network(("10.244.0.0/15", 9), Some(("fd10::/48", 16)));
        let known = |pool: &str| TenantPools {
            pools: vec![(pool.parse().unwrap(), "blue/front".to_owned())],
            revision: 7,
            ..TenantPools::default()
        };
        let found = store(&narrow, &[]);
        for (pool, overlaps) in [
            ("10.245.0.0/16", true),
            ("10.245.128.0/17", true),
            ("10.240.0.0/12", true),
            ("10.246.0.0/16", false),
            ("fd10:0:1::/48", false),
        ] {
            wide.tenants = known(pool);
            let held = held_back(&wide.pools, &found, &wide.roots, &wide.tenants);
            if overlaps {
                let why = grown(&narrow, &wide, &[]).unwrap_err();
                assert!(why.contains(&format!("{pool} of network blue/front")), "{why}");
                assert_eq!(held, narrow.pools, "{pool}");
            } else {
                assert_eq!(grown(&narrow, &wide, &[]), Ok(Some(wide.pools)), "{pool}");
                assert_eq!(held, wide.pools, "{pool}");
            }
        }
        let growth = of(&found, &wide).unwrap().unwrap();
        let unchanged =
            Condition::RangeUnchanged { prefix: "/z-policies/Network/".into(), since: 7 };
        assert!(growth.conditions.contains(&unchanged), "a network that is made meanwhile");
        wide.tenants = TenantPools { denied: Some("no permission".into()), ..Default::default() };
        assert!(grown(&narrow, &wide, &[]).unwrap_err().contains("no permission"));
        assert_eq!(grown(&narrow, &narrow, &[]), Ok(None));
    }

    #[test]
    fn python_hosts_keep_the_first_address_of_the_pool() {
        let python = [("/h/p1", "10.245.1.0/24")];
        let narrow = network(("10.245.0.0/16", 8), None);
        let down = network(("10.244.0.0/15", 9), None);
        assert!(grown(&narrow, &down, &python).unwrap_err().contains("p1 runs the Python agent"));
        assert_eq!(grown(&narrow, &down, &[]), Ok(Some(down.pools)));
        let narrow = network(("10.244.0.0/16", 8), None);
        assert_eq!(grown(&narrow, &down, &[("/h/p1", "10.244.1.0/24")]), Ok(Some(down.pools)));
    }

    #[test]
    fn a_grown_pool_is_followed_as_far_as_this_host_allows() {
        let limit = |text: &str| PerFamily { v4: subnet::parse(text).ok(), v6: None };
        for (narrow, limited, wide, follows) in [
            (("10.244.0.0/16", 8), "10.244.0.0/14", ("10.244.0.0/15", 9), true),
            (("10.244.0.0/16", 8), "10.244.0.0/15", ("10.244.0.0/15", 9), true),
            (("10.244.0.0/16", 8), "10.244.0.0/16", ("10.244.0.0/15", 9), false),
            (("10.244.0.0/16", 8), "10.244.0.0/14", ("10.128.0.0/9", 15), false),
            (("10.244.0.0/16", 8), "0.0.0.0/0", ("8.0.0.0/6", 18), true),
            (("10.244.0.0/15", 9), "10.0.0.0/8", ("10.244.0.0/16", 8), false),
            (("10.244.0.0/16", 8), "10.0.0.0/8", ("10.244.0.0/15", 8), false),
            (("10.244.0.0/16", 8), "10.0.0.0/8", ("10.99.0.0/16", 8), false),
        ] {
            let (ours, theirs) = (network(narrow, None), network(wide, None));
            let expected = if follows { theirs.pools } else { ours.pools };
            let found = store(&theirs, &[]);
            assert_eq!(followed(&ours.pools, &limit(limited), &found), expected, "{wide:?}");
        }
        let ours = network(("10.244.0.0/16", 8), None).pools;
        let found = Snapshot::default();
        assert_eq!(followed(&ours, &limit("10.0.0.0/8"), &found), ours);
        let wide = store(&network(("10.244.0.0/15", 9), None), &[]);
        assert_eq!(followed(&ours, &PerFamily::default(), &wide), ours, "no limit, no growth");
    }

    #[test]
    fn hosts_outside_the_narrow_pool_are_listed() {
        let wide = network(("10.244.0.0/15", 9), None);
        let found = store(
            &wide,
            &[("/z/subnets/4/10.245.3.0-24", "h3"), ("/z/subnets/4/10.244.3.0-24", "h4")],
        );
        let narrow = network(("10.244.0.0/16", 8), None).pools;
        assert_eq!(outside(&found, &narrow).collect::<Vec<_>>(), ["h3 (10.245.3.0/24)"]);
    }
}
