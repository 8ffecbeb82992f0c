//! Pins in etcd, and the hosts that have their addresses.

use ipnetwork::IpNetwork;

use crate::command::call::Call;
use crate::command::objects::edit::StoredObjects;
use crate::command::objects::verbs::ObjectKind;
use crate::etcd;
use crate::inspect::cluster;
use crate::lease::blocks::OwnedBlocks;
use crate::lease::records::NodeName;
use crate::policy::Networks;
use crate::policy::pin::PinnedAddress;
use crate::policy::read::documents;
use crate::settings::exit::{self, Exit};

pub const KIND: ObjectKind = ObjectKind { kind: "Pin", columns: &[("ADDRESSES", "addresses")] };

/// What the objects say of networks and pins.
pub fn networks(there: &StoredObjects) -> Networks {
    documents::read(&there.values().cloned().collect::<Vec<_>>(), true).networks
}

/// The pins in etcd, and which host has which block.
pub struct FoundPins {
    pub networks: Networks,
    pub owned: OwnedBlocks,
}

impl FoundPins {
    /// # Errors
    /// etcd cannot be read.
    pub fn read(call: &mut Call<'_>, there: &StoredObjects) -> Result<FoundPins, Exit> {
        let networks = networks(there);
        let loaded = call.load()?;
        let (server, roots) = cluster::etcd(&loaded.settings)?;
        let unreachable = |why| Exit::new(exit::UNAVAILABLE, format!("blocks in etcd: {why}"));
        let (found, _) = etcd::blocks(server, roots).map_err(unreachable)?;
        let pools: Vec<_> = networks.pools().map(|(pool, _)| pool).collect();
        Ok(FoundPins { owned: found.owned(&pools), networks })
    }

    /// The hosts that have blocks of the pod now, each with its block.
    pub fn holders(&self, placed: &[PinnedAddress]) -> Vec<(NodeName, IpNetwork)> {
        let blocks = placed.iter().map(PinnedAddress::block);
        let holder = |block| self.owned.owner(block).map(|host| (host, block));
        let is_whole = |(host, block): &(NodeName, IpNetwork)| self.owned.of(host).contains(block);
        blocks.filter_map(holder).filter(is_whole).collect()
    }

    /// The hosts that have addresses of the pod now.
    pub fn hosts(&self, placed: &[PinnedAddress]) -> String {
        let mut hosts: Vec<String> = Vec::new();
        for host in placed.iter().filter_map(|it| self.owned.owner(it.block())) {
            if !hosts.contains(&host.to_string()) {
                hosts.push(host.to_string());
            }
        }
        hosts.join(",")
    }
}
