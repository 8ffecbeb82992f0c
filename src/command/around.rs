//! What this host knows of itself and the others, with or without its agent.

use std::net::IpAddr;

use anyhow::Context;
use ipnetwork::IpNetwork;

use crate::inspect::pods::{self, Network};
use crate::inspect::{cluster, identity};
use crate::ipam::StoreEntry;
use crate::lease::{NodeName, Peer, Peers};
use crate::net::{Family, PerFamily};
use crate::netlink::address::Address;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::nft::base_chains::Forward;
use crate::settings::exit::Exit;
use crate::settings::{Settings, Source};

/// A pod's interface, as the store has it.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The network whose store it is in.
    pub network: String,
    /// Whose it is.
    pub entry: StoreEntry,
}

/// The host, looked at once.
pub struct Around {
    pub settings: Settings,
    pub rtnl: Rtnl,
    pub nft: Nft,
    pub forward: Forward,
    pub addresses: Vec<Address>,
    pub attachments: Vec<Attachment>,
    /// Why some stores could not be read: `attachments` lacks what is in these.
    pub unread: Vec<String>,
    pub subnets: PerFamily<IpNetwork>,
    pub peers: Peers,
    /// What could not be known, and why.
    pub unknown: Vec<String>,
}

impl Around {
    pub fn look(settings: &Settings) -> Result<Around, Exit> {
        let rtnl = Rtnl::open().context("speak to the kernel's rtnetlink")?;
        let addresses = rtnl.addresses(None).context("list addresses")?;
        let nft = Nft::open().context("speak to the kernel's nftables")?;
        let forward = Forward::open().context("speak to the kernel's nftables")?;
        let mut unknown = Vec::new();
        let mut settings = settings.clone();
        let (subnets, peers) = cluster(&mut settings, &mut unknown);
        let (attachments, unread) = attachments(&settings);
        unknown.extend(unread.iter().map(|why| format!("pods are not known: {why}")));
        Ok(Around {
            settings,
            rtnl,
            nft,
            forward,
            addresses,
            attachments,
            unread,
            subnets,
            peers,
            unknown,
        })
    }

    /// The attachment that has this address.
    pub fn owner(&self, address: IpAddr) -> Option<&Attachment> {
        self.attachments.iter().find(|known| known.entry.addresses.contains(&address))
    }

    /// The other host with this address, or with a pod subnet around it.
    pub fn peer(&self, address: IpAddr) -> Option<(&NodeName, &Peer, Option<IpNetwork>)> {
        let family = Family::of(address);
        self.peers.by_name.iter().find_map(|(name, peer)| {
            let subnet = peer.subnets.get(family).filter(|subnet| subnet.contains(address));
            let own = peer.addresses.get(family) == Some(&address);
            (own || subnet.is_some()).then(|| (name, peer, subnet.copied()))
        })
    }
}

/// This host's subnets and the other hosts, as the agent saved them last. The pools of `settings`
/// follow those of the network.
fn cluster(settings: &mut Settings, unknown: &mut Vec<String>) -> (PerFamily<IpNetwork>, Peers) {
    if let Source::Static(subnets) = &settings.source {
        return (*subnets, Peers::default());
    }
    let own = identity::node_name(settings);
    match own.and_then(|own| cluster::known(settings, &own, "the other hosts are not known")) {
        Ok(cluster) => {
            let others = cluster.others(&mut settings.pools);
            (cluster.lease.subnets, others)
        }
        Err(exit) => {
            unknown.push(exit.why);
            Default::default()
        }
    }
}

/// Every attachment of every network, and why some could not be read. Nothing is locked or changed:
/// what is written meanwhile may be missed.
fn attachments(settings: &Settings) -> (Vec<Attachment>, Vec<String>) {
    let (networks, unread) =
        pods::readable(settings).unwrap_or_else(|exit| (Vec::new(), vec![exit.why]));
    let of = |network: Network| {
        let name = network.name;
        let entries = network.looked.entries.into_iter();
        entries.map(move |entry| Attachment { network: name.clone(), entry })
    };
    (networks.into_iter().flat_map(of).collect(), unread)
}
