//! Pure. This host, its network and its lease.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::lease::records::{
    Backend, ClusterConfig, Key, NodeName, NodeRecord, Roots, Tunnel, Vxlan, WireguardEnd,
};
use crate::lease::tenant_pools::TenantPools;
use crate::net::PerFamily;
use crate::net::subnet::Pool;

/// The identity of this host; constant while the agent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name in its keys.
    pub name: NodeName,
    /// `/etc/machine-id`: the owner of the keys.
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    pub version: String,
}

/// How other hosts reach this one; may change at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAttributes {
    pub addresses: PerFamily<IpAddr>,
    pub backend: Backend,
    /// VNI and port of its tunnel.
    pub tunnel: Option<Vxlan>,
    /// Key and port for encrypted packets.
    pub wireguard: Option<WireguardEnd>,
    /// Longest packet between hosts, in bytes.
    pub mtu: u32,
    /// As [`comparable_group`] says; empty: policies are off.
    ///
    /// [`comparable_group`]: crate::lease::records::comparable_group
    pub policy_group: Box<str>,
}

/// The network, as configured on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    pub roots: Roots,
    /// The pool of each family in use, at least one.
    pub pools: PerFamily<Pool>,
    /// The widest pool of each family that this host accepts from the network.
    pub limits: PerFamily<IpNetwork>,
    /// How every host can be reached; further ways are in the record of each.
    pub backend: Backend,
    /// Where its pools cannot grow; not read before one of them is to grow.
    pub tenants: TenantPools,
}

/// The pod subnets that this host holds, one of each family in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub subnets: PerFamily<IpNetwork>,
}

/// This host's side of the claim.
#[derive(Clone, Debug)]
pub struct Claimant {
    pub identity: Identity,
    pub attributes: HostAttributes,
    pub network: Network,
    /// Subnets in use by this host's pods: never given up, whatever etcd holds.
    pub keep: PerFamily<IpNetwork>,
    /// Subnets of an earlier run: claimed again if etcd records none and they are free.
    pub remembered: PerFamily<IpNetwork>,
    /// Subnets in which no pod of this host runs and none will start.
    pub vacated: PerFamily<IpNetwork>,
    /// Hosts whose node record went while their subnet stayed: those do not run the Python agent.
    pub without_record: BTreeSet<NodeName>,
    /// Surplus claims in its name stay: another host wrote them, and this one may not delete them.
    pub leaves_claims: bool,
    /// It may not claim the WireGuard key that it publishes.
    pub leaves_key_unclaimed: bool,
    /// A number that no other host has, once allocated.
    pub ticket: Option<i64>,
    /// Another host was first with a key that this one compared.
    pub has_raced: bool,
    /// Differs with every start of the agent.
    pub instance: String,
    /// The alive key was put with the current etcd lease.
    pub alive: bool,
}

impl Network {
    pub fn key(&self, key: &Key) -> String {
        self.roots.key(key)
    }

    /// The network settings for a store with this `id`.
    pub fn config(&self, id: &str) -> ClusterConfig {
        ClusterConfig::new(id, &self.pools, self.backend.clone())
    }
}

/// The record that this host publishes when it holds `lease`.
pub fn node_record(identity: &Identity, attributes: &HostAttributes, lease: &Lease) -> NodeRecord {
    let mut node = NodeRecord::new(&identity.machine_id, &identity.boot_id, &identity.version);
    node.subnets = lease.subnets;
    node.addresses = attributes.addresses;
    node.backend = attributes.backend.clone();
    node.tunnel = attributes.tunnel.and_then(|vxlan| Tunnel::of(&lease.subnets, vxlan));
    node.wireguard = attributes.wireguard;
    node.mtu = attributes.mtu;
    node.policy_group.clone_from(&attributes.policy_group);
    node
}
