//! What this host knows of itself and the others, with or without its agent.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Context;
use ipnetwork::IpNetwork;

use crate::agent::exit::Exit;
use crate::agent::settings::{Settings, Source};
use crate::agent::start;
use crate::ipam::Entry;
use crate::lease::{NodeName, Peer, Peers, Saved, peers};
use crate::linux::address::Address;
use crate::linux::forward::Forward;
use crate::linux::nft::Nft;
use crate::linux::rtnl::Rtnl;
use crate::net::{Family, PerFamily};

/// A pod's interface, as the store has it.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The network whose store it is in.
    pub network: String,
    /// Whose it is.
    pub entry: Entry,
}

/// The host, looked at once.
pub struct Around {
    pub settings: Settings,
    pub rtnl: Rtnl,
    pub nft: Nft,
    pub forward: Forward,
    pub addresses: Vec<Address>,
    pub attachments: Vec<Attachment>,
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
        let (subnets, peers) = cluster(settings, &mut unknown);
        let attachments = attachments(&settings.cni.ipam_dir, &mut unknown);
        let settings = settings.clone();
        Ok(Around { settings, rtnl, nft, forward, addresses, attachments, subnets, peers, unknown })
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

/// This host's subnets and the other hosts, as the agent saved them last.
fn cluster(settings: &Settings, unknown: &mut Vec<String>) -> (PerFamily<IpNetwork>, Peers) {
    if let Source::Static(subnets) = &settings.source {
        return (*subnets, Peers::default());
    }
    let saved = match Saved::peek(&settings.state_dir.join("state.json")) {
        Ok(Some(saved)) => saved,
        Ok(None) => {
            unknown.push("no agent has served this host: other hosts are not known".to_owned());
            return Default::default();
        }
        Err(error) => {
            unknown.push(format!("other hosts are not known: {error}"));
            return Default::default();
        }
    };
    let name = start::node_name(settings).unwrap_or_else(|_| saved.host.clone());
    let others = peers(&saved.snapshot, &name, &saved.lease.subnets, &settings.pools);
    (saved.lease.subnets, others)
}

/// Every attachment of every network. Nothing is locked or changed: what is written meanwhile may
/// be missed.
fn attachments(dir: &Path, unknown: &mut Vec<String>) -> Vec<Attachment> {
    let names = |dir: &Path| -> std::io::Result<Vec<String>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    };
    let mut found = Vec::new();
    let networks = names(dir).unwrap_or_else(|error| {
        unknown.push(format!("pods are not known: read {}: {error}", dir.display()));
        Vec::new()
    });
    for network in networks.into_iter().filter(|name| !name.starts_with('.')) {
        let owners = dir.join(&network).join("owners");
        for name in names(&owners).unwrap_or_default() {
            let bytes = fs::read(owners.join(name)).ok();
            let entry = bytes.and_then(|bytes| Entry::parse(&bytes).ok());
            let network = network.clone();
            found.extend(entry.map(|entry| Attachment { network, entry }));
        }
    }
    found
}
