//! Pure. Networks of tenants as a host serves them.

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;

use crate::net::subnet::contains;
use crate::policy::name::Scoped;
use crate::policy::network::Networks;

/// Networks of tenants, and a host's blocks of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedNetworks {
    /// Where pods of this host may have addresses beside its subnets.
    pub blocks: Vec<IpNetwork>,
    /// Of all networks but that of the settings.
    pub pools: Vec<IpNetwork>,
    /// Parts of the pools whose blocks are of one pod each.
    pub pin_ranges: Vec<IpNetwork>,
    /// Bytes that packets to the pods of a block may have, where the network says so.
    pub mtus: BTreeMap<IpNetwork, u16>,
    /// Blocks whose pods reach the outside by their own addresses.
    unmasqueraded: BTreeSet<IpNetwork>,
    /// etcd has said in this life who has which block: what no host has may be removed.
    pub in_sync: bool,
}

impl ServedNetworks {
    /// Where there are no networks of tenants.
    pub fn none() -> ServedNetworks {
        ServedNetworks { in_sync: true, ..ServedNetworks::default() }
    }

    /// A host with the blocks `own`, as far as they are parts of `networks`. A network with addresses of another one, or
    /// of the settings, is closed to new pods; those that run there keep gateway and routes.
    pub fn of(networks: &Networks, own: &BTreeSet<IpNetwork>, in_sync: bool) -> ServedNetworks {
        let mut served = ServedNetworks { in_sync, ..ServedNetworks::default() };
        served.pin_ranges = networks.pin_ranges().map(|(_, range)| range).collect();
        for (_, network) in networks.iter() {
            let pools: Vec<IpNetwork> = network.networks().collect();
            let is_part = |block: &&IpNetwork| pools.iter().any(|pool| contains(*pool, **block));
            let blocks = own.iter().filter(is_part);
            served.unmasqueraded.extend(blocks.clone().filter(|_| !network.nat));
            served
                .mtus
                .extend(network.mtu.iter().flat_map(|mtu| blocks.clone().map(|it| (*it, *mtu))));
            served.blocks.extend(blocks);
            served.pools.extend(pools);
        }
        served
    }

    /// The block is of one pod.
    pub fn is_pin(&self, block: &IpNetwork) -> bool {
        self.pin_ranges.iter().any(|range| contains(*range, *block))
    }

    /// The blocks, each with the name of its network.
    pub fn named_blocks(&self, networks: &Networks) -> Vec<(IpNetwork, Scoped)> {
        let name = |block: &IpNetwork| Some((*block, networks.of(block.ip())?.clone()));
        self.blocks.iter().filter_map(name).collect()
    }

    /// The blocks whose pods reach the outside by the node's address.
    pub fn masqueraded(&self) -> impl Iterator<Item = IpNetwork> {
        self.blocks.iter().copied().filter(|block| !self.unmasqueraded.contains(block))
    }
}
