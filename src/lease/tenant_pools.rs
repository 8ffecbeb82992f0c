//! Pure. Pools of tenants' networks, for who lets the pool of the settings grow.

use ipnetwork::IpNetwork;

use crate::net::subnet;

/// Reads values of `Network` objects, each with its path below the range of policies: their pools, each with the
/// name of the network.
pub type NetworkReader = fn(&[(Vec<u8>, Vec<u8>)]) -> Vec<(IpNetwork, String)>;

/// The pools of tenants' networks, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPools {
    /// Each with the name of its network.
    pub pools: Vec<(IpNetwork, String)>,
    /// Of etcd, when they were read there; 0: they were not.
    pub revision: i64,
    /// Why etcd does not say which there are.
    pub denied: Option<String>,
}

impl TenantPools {
    /// Why no other network can have the addresses of `pool`.
    pub fn refuses(&self, pool: IpNetwork) -> Option<String> {
        let denied = self.denied.as_ref();
        let denied = denied.map(|why| format!("networks of tenants cannot be read: {why}"));
        denied.or_else(|| {
            let (theirs, name) = self.pools.iter().find(|(it, _)| subnet::overlap(*it, pool))?;
            Some(format!("it has addresses of {theirs} of network {name}"))
        })
    }
}
