//! Pure. What this host is, and what network it wants to belong to.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::lease::records::{
    Backend, ClusterConfig, Key, NodeName, NodeRecord, Roots, Tunnel, Vxlan,
};
use crate::net::PerFamily;
use crate::net::subnet::Pool;

/// Who this host is; does not change while the agent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name in keys.
    pub name: NodeName,
    /// `/etc/machine-id`: who owns the keys.
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Version of humanz.
    pub version: String,
}

/// How the others reach this host; may change at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its addresses for the others.
    pub addresses: PerFamily<IpAddr>,
    /// How it can be reached.
    pub backend: Backend,
    /// What its tunnel is told by, if it has one.
    pub tunnel: Option<Vxlan>,
    /// Bytes that a packet between hosts may have.
    pub mtu: u32,
}

/// The network, as this host is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Where its keys are.
    pub roots: Roots,
    /// The pool of each family in use, at least one.
    pub pools: PerFamily<Pool>,
    /// How every host can be reached; how each may be reached besides is in its own record.
    pub backend: Backend,
}

/// What this host holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its pod subnet of each family in use.
    pub subnets: PerFamily<IpNetwork>,
}

/// This host's side of the claim.
#[derive(Clone, Debug)]
pub struct Claimant {
    pub identity: Identity,
    pub attributes: Attributes,
    pub network: Network,
    /// Subnets in use by this host's pods: never given up, whatever etcd holds.
    pub keep: PerFamily<IpNetwork>,
    /// Subnets of an earlier run: claimed again if etcd records none and they are free.
    pub remembered: PerFamily<IpNetwork>,
    /// A number that no other host has, once allocated.
    pub ticket: Option<i64>,
    /// The alive key was put with the current etcd lease.
    pub alive: bool,
}

impl Network {
    /// The text of a key.
    pub fn key(&self, key: &Key) -> String {
        self.roots.key(key)
    }

    /// The settings that all hosts share, kept in the store marked `id`.
    pub fn config(&self, id: &str) -> ClusterConfig {
        ClusterConfig::new(id, &self.pools, self.backend.clone())
    }
}

/// What this host says about itself when it holds `lease`.
pub fn node_record(identity: &Identity, attributes: &Attributes, lease: &Lease) -> NodeRecord {
    let mut node = NodeRecord::new(&identity.machine_id, &identity.boot_id, &identity.version);
    node.subnets = lease.subnets;
    node.addresses = attributes.addresses;
    node.backend = attributes.backend.clone();
    node.tunnel = attributes.tunnel.and_then(|vxlan| Tunnel::of(&lease.subnets, vxlan));
    node.mtu = attributes.mtu;
    node
}
