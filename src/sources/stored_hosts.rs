//! Pure. What hosts have in etcd that a network must not take.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::lease::Snapshot;
use crate::lease::records::{Key, NodeName, Roots};
use crate::net::subnet::{contains, family};

/// What hosts have in etcd, for a change of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHosts {
    /// The key of the network settings, and the revision of their last change.
    pub settings: (String, i64),
    /// The pools there: an agent may have widened them since this host was configured.
    pools: Vec<IpNetwork>,
    /// The address of each host in each family.
    addresses: Vec<(NodeName, IpAddr)>,
}

impl StoredHosts {
    pub fn of(found: &Snapshot, roots: &Roots) -> StoredHosts {
        let addresses = found.nodes.iter().flat_map(|(host, node)| {
            let all = node.value.addresses.iter();
            all.map(|address| (host.clone(), *address)).collect::<Vec<_>>()
        });
        let config = found.config.as_ref().map(|config| config.value.pools()).unwrap_or_default();
        StoredHosts {
            settings: (roots.key(&Key::Config), found.modified(roots, &Key::Config)),
            pools: config.iter().map(|pool| pool.network()).collect(),
            addresses: addresses.collect(),
        }
    }

    /// Why no network can have the addresses of `pool`.
    pub fn refuses(&self, pool: IpNetwork) -> Option<String> {
        let (host, address) = self.addresses.iter().find(|(_, it)| pool.contains(*it))?;
        let family = family(pool);
        Some(format!("{family} pool {pool} has {address}, the address of host {host}"))
    }

    /// The pools of the settings where they are `configured` so on one host.
    pub fn pools_beside(&self, configured: &[IpNetwork]) -> Vec<IpNetwork> {
        let is_inside = |pool: &IpNetwork, others: &[IpNetwork]| {
            others.iter().any(|other| contains(*other, *pool))
        };
        let wider = configured.iter().filter(|pool| !is_inside(pool, &self.pools)).copied();
        let wider: Vec<IpNetwork> = wider.collect();
        let own = self.pools.iter().filter(|pool| !is_inside(pool, &wider)).copied();
        own.chain(wider.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wider_one_of_two_pools_of_the_settings_counts() {
        let net = |text: &&str| text.parse().unwrap();
        let beside = |stored: &[&str], configured: &[&str]| {
            let pools = stored.iter().map(net).collect();
            let settings = (String::new(), 0);
            let hosts = StoredHosts { settings, pools, addresses: Vec::new() };
            let configured: Vec<IpNetwork> = configured.iter().map(net).collect();
            let mut found: Vec<String> =
                hosts.pools_beside(&configured).iter().map(ToString::to_string).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(beside(&["10.244.0.0/15"], &["10.244.0.0/16"]), ["10.244.0.0/15"]);
        assert_eq!(beside(&["10.244.0.0/16"], &["10.244.0.0/15"]), ["10.244.0.0/15"]);
        assert_eq!(beside(&["10.244.0.0/16"], &["10.244.0.0/16"]), ["10.244.0.0/16"]);
        assert_eq!(beside(&[], &["10.244.0.0/16", "fd10::/48"]), ["10.244.0.0/16", "fd10::/48"]);
        let both = ["10.244.0.0/15", "fd10::/48"];
        assert_eq!(beside(&both, &["10.244.0.0/16", "fd10::/48"]), both);
    }
}
