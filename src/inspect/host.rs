//! One look at this host: settings, kernel, pods and the other hosts, each read once.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::Value;

use crate::inspect::cluster::{self, ClusterView};
use crate::inspect::host_state::{self, HostState};
use crate::inspect::pods::{self, PodAttachment};
use crate::inspect::{Kernel, agent_socket, identity, last_policies, names, networks, state_file};
use crate::lease::{NodeName, Peer, Peers, Resolved, Snapshot};
use crate::net::gather::Gather;
use crate::net::{Family, PerFamily, Problem, subnet};
use crate::netlink::address::Address;
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::policy::knowledge::HostKnowledge;
use crate::policy::served::ServedNetworks;
use crate::policy::{Networks, PolicySnapshot, Scoped};
use crate::settings::exit::Exit;
use crate::settings::{Settings, Source};

/// Where the list of hosts is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostList {
    /// Nowhere: only this host matters.
    Skip,
    /// The state file that the agent saved.
    Saved,
    /// etcd or the Kubernetes API; the state file if it does not answer.
    Live,
}

/// This host. Parts that are methods are read when they are first asked for.
pub struct Host {
    /// Their pools are those of the network.
    pub settings: Settings,
    pub kernel: Kernel,
    /// This host's pod subnets; empty if unknown.
    pub subnets: PerFamily<IpNetwork>,
    /// All hosts, if there are others.
    pub cluster: Option<ClusterView>,
    /// The other hosts, if they are known.
    pub peers: Option<Arc<Peers>>,
    /// The list of hosts is complete: a route of ours to no host may be removed.
    pub in_sync: bool,
    /// Why the other hosts are not known.
    pub peers_unknown: Option<String>,
    resolved: OnceCell<Resolved>,
    policies: OnceCell<Option<HostKnowledge>>,
    with_networks: OnceCell<Option<Arc<PolicySnapshot>>>,
    networks: OnceCell<ServedNetworks>,
    links: OnceCell<BTreeMap<u32, Link>>,
    addresses: OnceCell<Vec<Address>>,
    attachments: OnceCell<(Vec<PodAttachment>, Vec<Problem>)>,
    agent: OnceCell<Result<Value, String>>,
}

impl Host {
    /// # Errors
    /// No rtnetlink or nftables socket can be opened.
    pub fn inspect(settings: &Settings, list: HostList) -> Result<Host, Exit> {
        let mut host = Host {
            settings: settings.clone(),
            kernel: Kernel::open(settings)?,
            subnets: PerFamily::default(),
            cluster: None,
            peers: None,
            in_sync: matches!(settings.source, Source::Static(_)),
            peers_unknown: None,
            resolved: OnceCell::new(),
            policies: OnceCell::new(),
            with_networks: OnceCell::new(),
            networks: OnceCell::new(),
            links: OnceCell::new(),
            addresses: OnceCell::new(),
            attachments: OnceCell::new(),
            agent: OnceCell::new(),
        };
        if let Source::Static(subnets) = &settings.source {
            host.subnets = *subnets;
            return Ok(host);
        }
        let cluster = match list {
            HostList::Skip => return Ok(host),
            HostList::Live => cluster::read(settings),
            HostList::Saved => identity::node_name(settings)
                .and_then(|own| cluster::saved(settings, &own, "the other hosts are unknown")),
        };
        match cluster {
            Ok(cluster) => host.join(cluster),
            Err(exit) => host.peers_unknown = Some(exit.why),
        }
        Ok(host)
    }

    fn join(&mut self, mut cluster: ClusterView) {
        if cluster.stale.is_none()
            && let Some(served) = self.served()
        {
            cluster.lease.subnets = served;
        }
        if cluster.lease.subnets.is_empty() {
            // Its keys were deleted: an agent puts them back.
            let saved = state_file::read(&self.settings.state_file()).ok().flatten();
            let own = saved.filter(|saved| {
                saved.host == cluster.own && saved.machine_id == self.kernel.machine_id
            });
            cluster.lease = own.map(|saved| saved.lease).unwrap_or_default();
        }
        let peers = cluster.others(&mut self.settings);
        self.follow_addresses(&cluster.snapshot, &cluster.own);
        self.peers = Some(self.with_blocks(peers, cluster.stale.is_none()));
        self.subnets = cluster.lease.subnets;
        self.in_sync = cluster.stale.is_none();
        self.cluster = Some(cluster);
    }

    /// `peers` with their blocks of tenants' networks, as etcd has them if it `answers`.
    pub fn with_blocks(&self, mut peers: Peers, answers: bool) -> Arc<Peers> {
        let blocks = networks::at_start(&self.settings, self.known_networks(), answers).1;
        peers.set_blocks(&blocks.by_host);
        Arc::new(peers)
    }

    /// Where Kubernetes has the addresses of hosts, an agent uses those, unless some are set.
    pub fn follow_addresses(&mut self, found: &Snapshot, own: &NodeName) {
        let settings = &mut self.settings;
        if settings.node_addresses.is_empty() && matches!(settings.source, Source::Kubernetes(_)) {
            settings.node_addresses =
                host_state::internal_addresses(&self.kernel.rtnl, settings, found, own);
        }
    }

    /// The subnets that a running agent serves: it keeps them for its pods, whatever its node has by now.
    fn served(&self) -> Option<PerFamily<IpNetwork>> {
        let status = ServedStatus::deserialize(self.agent().as_ref().ok()?).ok()?;
        let mut served = PerFamily::default();
        let subnets = status.lease.subnets.into_iter();
        subnets.for_each(|it| served.set(subnet::family(it), Some(it)));
        (!served.is_empty()).then_some(served)
    }

    /// The other hosts by name; none if they are unknown.
    pub fn others(&self) -> impl Iterator<Item = (&NodeName, &Peer)> {
        self.peers.iter().flat_map(|peers| peers.by_name.iter())
    }

    /// The other host with this address, or with a pod subnet around it.
    pub fn peer(&self, address: IpAddr) -> Option<(&NodeName, &Peer, Option<IpNetwork>)> {
        let family = Family::of(address);
        self.others().find_map(|(name, peer)| {
            let subnet = peer.pod_subnets().find(|subnet| subnet.contains(address));
            let own = peer.addresses.get(family) == Some(&address);
            (own || subnet.is_some()).then_some((name, peer, subnet))
        })
    }

    /// Addresses of hosts that publish none.
    pub fn resolved(&self) -> &Resolved {
        let resolve = |peers: &Arc<Peers>| names::resolve_all(peers, &self.settings);
        self.resolved.get_or_init(|| self.peers.as_ref().map(resolve).unwrap_or_default())
    }

    /// The policies that an agent would start with: those of `POLICY_FILE`, and what was kept of others.
    pub fn policies(&self) -> Option<&HostKnowledge> {
        let read =
            || last_policies::at_start(&self.settings, &identity::node_name(&self.settings).ok()?);
        self.policies.get_or_init(read).as_ref()
    }

    /// Networks of tenants, as the agent would start with them.
    pub fn networks(&self) -> &ServedNetworks {
        self.networks
            .get_or_init(|| networks::at_start(&self.settings, self.known_networks(), false).0)
    }

    /// This host's blocks of tenants' networks, each with its network.
    pub fn named_blocks(&self) -> Vec<(IpNetwork, Scoped)> {
        self.known_networks().map_or_else(Vec::new, |known| self.networks().named_blocks(known))
    }

    fn known_networks(&self) -> Option<&Networks> {
        let read = || match self.settings.policy {
            Some(_) => self.policies()?.known.clone(),
            None => last_policies::of_networks(
                &self.settings,
                &identity::node_name(&self.settings).ok()?,
            ),
        };
        self.with_networks.get_or_init(read).as_ref().map(|known| &known.networks)
    }

    /// Node addresses, uplinks and MTU.
    ///
    /// # Errors
    /// As [`host_state::observe`].
    pub fn state(&self) -> anyhow::Result<HostState> {
        host_state::observe(&self.kernel.rtnl, &self.settings, None)
    }

    /// All links, by index.
    ///
    /// # Errors
    /// The kernel's.
    pub fn links(&self) -> anyhow::Result<&BTreeMap<u32, Link>> {
        let list = || self.kernel.rtnl.links(None).context("list links");
        once(&self.links, || Ok(list()?.into_iter().map(|link| (link.index, link)).gather()))
    }

    /// All addresses.
    ///
    /// # Errors
    /// The kernel's.
    pub fn addresses(&self) -> anyhow::Result<&[Address]> {
        let list = || self.kernel.rtnl.addresses(None).context("list addresses");
        once(&self.addresses, list).map(Vec::as_slice)
    }

    /// The attachments of all networks. What is written meanwhile may be missed.
    pub fn attachments(&self) -> &[PodAttachment] {
        &self.stores().0
    }

    /// What of the stores could not be read: [`Host::attachments`] lacks what is there.
    pub fn unread_stores(&self) -> &[Problem] {
        &self.stores().1
    }

    fn stores(&self) -> &(Vec<PodAttachment>, Vec<Problem>) {
        self.attachments.get_or_init(|| pods::attachments(&self.settings))
    }

    /// The attachment that has this address.
    pub fn owner(&self, address: IpAddr) -> Option<&PodAttachment> {
        self.attachments().iter().find(|known| known.entry.addresses.contains(&address))
    }

    /// The address that the pod of `known` sends from to `to`, by its own routes: one with several interfaces has
    /// several addresses of a family. `None` where it has one interface, or cannot be looked into.
    pub fn source(&self, known: &PodAttachment, to: IpAddr) -> Option<IpAddr> {
        let is_of = |it: &&PodAttachment| it.entry.container_id == known.entry.container_id;
        self.attachments().iter().filter(is_of).nth(1)?;
        let netns = NetNs::open(Path::new(known.entry.netns.as_deref()?)).ok()?;
        let way = netns.run(|| Rtnl::open()?.lookup_route(to)).ok()?.ok()??;
        way.source.filter(|source| self.owner(*source).as_ref().is_some_and(is_of))
    }

    /// The status of the agent, by its socket; an error is why it does not answer.
    pub fn agent(&self) -> &Result<Value, String> {
        let ask = |path| agent_socket::get(path, "/v1/status");
        self.agent.get_or_init(|| agent_socket::of(&self.settings).and_then(ask))
    }
}

/// Of the status of an agent: the lease that it serves.
#[derive(Deserialize)]
struct ServedStatus {
    lease: ServedLease,
}

#[derive(Deserialize)]
struct ServedLease {
    subnets: Vec<IpNetwork>,
}

fn once<T>(cell: &OnceCell<T>, read: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = read()?;
    Ok(cell.get_or_init(|| value))
}
