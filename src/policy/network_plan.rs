//! Pure. What a plugin needs to start a pod in a network of a tenant, without asking anybody: the agent writes it
//! below the folder of the store of addresses. It asks for one thing, a block of a network of which this host
//! has none with a free address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::net::subnet::{contains, family};
use crate::net::{Family, IfName};
use crate::policy::labels::Labels;
use crate::policy::name::{ObjectName, PodName, Scoped};
use crate::policy::network::Networks;
use crate::policy::pin::{PinFault, PinnedAddress};
use crate::policy::read::cluster::Cluster;
use crate::policy::read::interfaces::{AskedInterface, asked_network};
use crate::policy::read::membership::Refusal;

/// How long a plugin waits for a block, and the agent for etcd.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Written by the agent while there are networks of tenants.
pub fn file(ipam_dir: &Path) -> PathBuf {
    ipam_dir.join(".networks.json")
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPlans {
    /// The name of the CNI network that they are for.
    pub cni_network: String,
    networks: Vec<(Scoped, NetworkPlan)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pins: Vec<(PodName, PinPlan)>,
    /// Rules of namespaces, without labels; `None`: the agent has not received yet which networks there are.
    cluster: Option<Cluster>,
}

/// A network on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPlan {
    /// A pod gets an address of each.
    pub pools: Vec<IpNetwork>,
    /// This host's, in place.
    pub blocks: Vec<IpNetwork>,
    /// Bytes; `None`: as the bridge.
    pub mtu: Option<u16>,
    pub host_ports: bool,
    /// Why no pod starts in it.
    pub refused: Option<String>,
}

/// A pod with fixed addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinPlan {
    pub addresses: Vec<PinnedAddress>,
    /// The addresses that this host has for it, in place.
    pub here: Vec<IpAddr>,
    /// Why the pod does not start.
    pub refused: Option<String>,
}

/// An interface of a new pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenInterface<'a> {
    /// `None`: the one that the runtime names.
    pub ifname: Option<IfName>,
    /// `None`: that of the settings.
    pub network: Option<(&'a Scoped, &'a NetworkPlan)>,
    /// Its fixed addresses, one of each family at most.
    pub pinned: Vec<&'a PinnedAddress>,
}

/// What a host has to get so that a pod can start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    /// A block of each of these pools.
    pub pools: Vec<IpNetwork>,
    /// Fixed addresses of the pod.
    pub pinned: Vec<IpAddr>,
}

impl Lacking {
    /// One of them, if it is anything: `block of 10.32.0.0/16`.
    pub fn first(&self) -> Option<String> {
        let pinned = self.pinned.iter().map(|address| format!("address {address}"));
        pinned.chain(self.pools.iter().map(|pool| format!("block of {pool}"))).next()
    }
}

/// A plugin that lacks addresses of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockQuestion {
    pub network: Scoped,
    /// The blocks that it knows and that have no free address.
    pub full: BTreeSet<IpNetwork>,
    /// The pod, if it has fixed addresses in the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<PodName>,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockAnswer {
    /// The file has a block with room.
    pub ready: bool,
    #[serde(default)]
    pub why: String,
}

/// Why a pod is in no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("the agent does not know yet which networks there are: it has not read etcd")]
    NotRead,
    #[error("the value of namespace {0} in etcd is not understood")]
    Closed(ObjectName),
    #[error("network {0} is not known on this host")]
    Unknown(Scoped),
    #[error("network {0}: {1}")]
    Unusable(Scoped, String),
    #[error("pin of pod {0}: {1}")]
    Pin(PodName, String),
    #[error("pod {0} has the address {1} in network {2}, which is none of its networks")]
    PinnedElsewhere(PodName, IpAddr, Scoped),
}

impl NetworkPlans {
    /// The plans of a host whose blocks are `blocks` and whose pods have addresses of `families`; `closed`: networks
    /// that no pod starts in here, and why; `None`: there are no networks of tenants.
    pub fn of(
        cni_network: &str,
        networks: &Networks,
        cluster: Option<&Cluster>,
        blocks: &BTreeSet<IpNetwork>,
        families: &[Family],
        closed: &BTreeMap<Scoped, String>,
    ) -> Option<NetworkPlans> {
        if networks.iter().all(|(_, network)| network.pools.is_empty()) {
            return None;
        }
        let overlaps = networks.overlaps();
        let ranges: Vec<IpNetwork> = networks.pin_ranges().map(|(_, range)| range).collect();
        let is_pin = |block: &IpNetwork| ranges.iter().any(|range| contains(*range, *block));
        let plan = |(name, network): (&Scoped, &crate::policy::network::TenantNetwork)| {
            let pools: Vec<IpNetwork> = network.networks().collect();
            let is_part = |block: &&IpNetwork| pools.iter().any(|pool| contains(*pool, **block));
            let overlap = overlaps.iter().find(|it| it.network == *name || it.other == *name);
            let missing = pools.iter().find(|pool| !families.contains(&family(**pool)));
            let refused =
                overlap.map(|overlap| format!("its addresses are not its own: {overlap}"));
            let refused = refused.or_else(|| {
                missing.map(|pool| {
                    format!("this host has no {} subnet (IP_SUBNET, IPV6_SUBNET)", family(*pool))
                })
            });
            let refused = refused.or_else(|| closed.get(name).cloned());
            let plan = NetworkPlan {
                blocks: blocks.iter().filter(is_part).filter(|it| !is_pin(it)).copied().collect(),
                pools,
                mtu: network.mtu,
                host_ports: network.host_ports,
                refused,
            };
            (name.clone(), plan)
        };
        let named = networks.iter().filter(|(_, network)| !network.pools.is_empty());
        let pins = pin_plans(networks, blocks);
        let networks: Vec<_> = named.map(plan).collect();
        let cluster = cluster.map(Cluster::without_labels).unwrap_or_default();
        let cluster = Some(cluster);
        Some(NetworkPlans { cni_network: cni_network.to_owned(), networks, pins, cluster })
    }

    /// No pod starts: its network is not known.
    pub fn not_read(cni_network: &str) -> NetworkPlans {
        NetworkPlans { cni_network: cni_network.to_owned(), ..NetworkPlans::default() }
    }

    pub fn are_read(&self) -> bool {
        self.cluster.is_some()
    }

    /// The interfaces of a new pod, at least one; `has`: an earlier interface of the pod has this address.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn choose(
        &self,
        (namespace, name): &(ObjectName, ObjectName),
        annotations: &BTreeMap<String, String>,
        labels: &BTreeMap<String, String>,
        has: impl Fn(IpAddr) -> bool,
    ) -> Result<Vec<ChosenInterface<'_>>, NetworkError> {
        let cluster = self.cluster.as_ref().ok_or(NetworkError::NotRead)?;
        if cluster.is_closed(namespace) {
            return Err(NetworkError::Closed(namespace.clone()));
        }
        let asked = cluster.interfaces(name, namespace, &said(annotations), &said(labels))?;
        let pod = PodName { namespace: namespace.clone(), name: name.clone() };
        let mut pinned = self.pinned(&pod)?;
        let chosen = asked.into_iter().map(|AskedInterface { ifname, network }| {
            let is_own = |network: &Scoped| *network != Networks::default_name();
            let network = network.filter(is_own).map(|network| self.usable(network)).transpose()?;
            let is_here =
                |it: &&PinnedAddress| network.is_some_and(|(name, _)| it.network == *name);
            let (here, others) = std::mem::take(&mut pinned).into_iter().partition(is_here);
            pinned = others;
            Ok(ChosenInterface { ifname, network, pinned: here })
        });
        let chosen = chosen.collect::<Result<Vec<_>, NetworkError>>()?;
        match pinned.iter().find(|it| !has(it.address)) {
            Some(PinnedAddress { network, address }) => {
                Err(NetworkError::PinnedElsewhere(pod, *address, network.clone()))
            }
            None => Ok(chosen),
        }
    }

    /// The fixed addresses of the pod, if it has some.
    fn pinned(&self, pod: &PodName) -> Result<Vec<&PinnedAddress>, NetworkError> {
        match self.pin(pod) {
            None => Ok(Vec::new()),
            Some(PinPlan { refused: Some(why), .. }) => {
                Err(NetworkError::Pin(pod.clone(), why.clone()))
            }
            Some(pin) => Ok(pin.addresses.iter().collect()),
        }
    }

    pub fn pin(&self, pod: &PodName) -> Option<&PinPlan> {
        self.pins.iter().find(|(known, _)| known == pod).map(|(_, pin)| pin)
    }

    /// What this host lacks of the network for a pod that has the fixed addresses of `pod`, where the blocks `full`
    /// have no free address. `None`: the network is not known.
    pub fn lacking(
        &self,
        network: &Scoped,
        full: &BTreeSet<IpNetwork>,
        pod: Option<&PodName>,
    ) -> Option<Lacking> {
        let (_, plan) = self.get(network)?;
        let pin = pod.and_then(|pod| self.pin(pod));
        let addresses = pin.iter().flat_map(|pin| &pin.addresses);
        let pinned: Vec<IpAddr> =
            addresses.filter(|it| it.network == *network).map(|it| it.address).collect();
        let is_open = |pool: &IpNetwork| !pinned.iter().any(|address| pool.contains(*address));
        let pools = plan.lacking(full).filter(is_open).collect();
        let is_away = |address: &IpAddr| !pin.is_some_and(|pin| pin.here.contains(address));
        Some(Lacking { pools, pinned: pinned.iter().copied().filter(is_away).collect() })
    }

    fn usable(&self, chosen: Scoped) -> Result<(&Scoped, &NetworkPlan), NetworkError> {
        match self.get(&chosen) {
            Some((name, NetworkPlan { refused: Some(why), .. })) => {
                Err(NetworkError::Unusable(name.clone(), why.clone()))
            }
            Some(found) => Ok(found),
            None => Err(NetworkError::Unknown(chosen)),
        }
    }

    pub fn get(&self, name: &Scoped) -> Option<(&Scoped, &NetworkPlan)> {
        self.networks.iter().find(|(known, _)| known == name).map(|(name, plan)| (name, plan))
    }

    /// Why no pod starts in the network.
    pub fn refusal(&self, name: &Scoped) -> Option<&str> {
        self.get(name)?.1.refused.as_deref()
    }

    /// The network that has `address`.
    pub fn network_of(&self, address: IpAddr) -> Option<&Scoped> {
        let has = |plan: &NetworkPlan| plan.pools.iter().any(|pool| pool.contains(address));
        self.networks.iter().find(|(_, plan)| has(plan)).map(|(name, _)| name)
    }

    /// All blocks, in which pods may start.
    pub fn blocks(&self) -> impl Iterator<Item = IpNetwork> {
        let pins = self.pins.iter().flat_map(|(_, pin)| pin.blocks());
        self.networks.iter().flat_map(|(_, plan)| plan.blocks.iter().copied()).chain(pins)
    }
}

/// The network that a pod with these words asks for, where this host knows of none.
///
/// # Errors
/// It asks for what cannot be.
pub fn asked_in_vain(
    annotations: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> Result<Option<Scoped>, NetworkError> {
    Ok(asked_network(&said(annotations), &said(labels))?)
}

fn said(words: &BTreeMap<String, String>) -> Labels {
    words.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).gather()
}

impl PinPlan {
    /// Those that this host has.
    fn blocks(&self) -> impl Iterator<Item = IpNetwork> {
        let here = self.addresses.iter().filter(|it| self.here.contains(&it.address));
        here.map(PinnedAddress::block)
    }
}

/// The pods with fixed addresses of a host with these `blocks`.
fn pin_plans(networks: &Networks, blocks: &BTreeSet<IpNetwork>) -> Vec<(PodName, PinPlan)> {
    let plan = |(pod, placed): (&PodName, Result<Vec<PinnedAddress>, PinFault>)| {
        let (addresses, refused) = match placed {
            Ok(addresses) => (addresses, None),
            Err(fault) => (Vec::new(), Some(fault.to_string())),
        };
        let here = addresses.iter().filter(|it| blocks.contains(&it.block()));
        let here = here.map(|it| it.address).collect();
        (pod.clone(), PinPlan { addresses, here, refused })
    };
    networks.placed_pins().into_iter().map(plan).collect()
}

impl NetworkPlan {
    /// The pools without a block that is not `full`.
    fn lacking(&self, full: &BTreeSet<IpNetwork>) -> impl Iterator<Item = IpNetwork> {
        let has_room = |pool: &IpNetwork| {
            let mut blocks = self.blocks.iter().filter(|block| contains(*pool, **block));
            blocks.any(|block| !full.contains(block))
        };
        self.pools.iter().copied().filter(move |pool| !has_room(pool))
    }
}
