//! Pure. Networks of tenants: where pods have their addresses from, and what may talk to what.
//!
//! The default network is that of the settings: `default/default`, of the tenant `default`. Networks lie side by
//! side, so that an address says which network its pod is in, whatever the pod says.

mod gone;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::net::subnet::{self, Pool, PoolError, contains};
use crate::net::{Family, Object, PerFamily, Problem, ProblemKind};
use crate::policy::entries;
use crate::policy::name::{PodName, Scoped};

/// The tenant of what has none, and the name of the network of the settings.
pub const DEFAULT: &str = "default";

/// Prefix bits between a pool and its blocks: what [`Pool`] can cut. A wider pool has no further blocks.
const MARGIN_LIMIT: u8 = 24;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantNetwork {
    /// None in either family: this is the network of the settings.
    pub pools: PerFamily<NetworkPool>,
    /// Parts of the pools whose addresses pods have by name alone ([`crate::policy::pin`]).
    #[serde(default)]
    pub pins: PerFamily<IpNetwork>,
    /// Bytes; `None`: as the bridge.
    pub mtu: Option<u16>,
    /// Pods reach what is outside the cluster by the node's address.
    pub nat: bool,
    /// Pods of other tenants reach it, and it reaches them.
    pub shared: bool,
    /// Its pods may have host ports.
    pub host_ports: bool,
}

/// The addresses of a network in one family, cut into blocks for hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(IpNetwork, u8)", into = "(IpNetwork, u8)")]
pub struct NetworkPool {
    network: IpNetwork,
    pool: Pool,
}

/// All networks of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networks {
    #[serde(with = "entries")]
    by_name: BTreeMap<Scoped, TenantNetwork>,
    /// Of the settings.
    default: Vec<IpNetwork>,
    /// Those whose objects are not understood.
    #[serde(default)]
    unread: BTreeSet<Scoped>,
    /// Fixed addresses of pods; none: they are not understood.
    #[serde(with = "entries", default)]
    pins: BTreeMap<PodName, Vec<IpAddr>>,
    /// Of networks that are objects in etcd: the revision at which what is known here was written.
    #[serde(with = "entries", default)]
    revisions: BTreeMap<Scoped, i64>,
    /// Those that are there for the blocks that this host has of them alone.
    #[serde(default)]
    gone: BTreeSet<Scoped>,
    /// Of those what their objects say, if they have other addresses now, with the revision.
    #[serde(with = "entries", default)]
    moved: BTreeMap<Scoped, (TenantNetwork, Option<i64>)>,
}

/// A pool in which another network has addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkOverlap {
    pub network: Scoped,
    pub pool: IpNetwork,
    pub other: Scoped,
    pub other_pool: IpNetwork,
}

impl NetworkPool {
    /// `network` in blocks of this prefix length.
    ///
    /// # Errors
    /// [`PoolError`]: blocks that are no part of it, or without room for pods.
    pub fn new(network: IpNetwork, block: u8) -> Result<NetworkPool, PoolError> {
        let margin = block.saturating_sub(network.prefix());
        let first = network.prefix() + margin.saturating_sub(MARGIN_LIMIT);
        let cut = subnet::with_prefix(network.network(), first);
        Ok(NetworkPool { network, pool: Pool::new(cut, margin.min(MARGIN_LIMIT))? })
    }

    /// All of its addresses.
    pub fn network(&self) -> IpNetwork {
        self.network
    }

    /// What blocks are cut from.
    pub fn pool(&self) -> Pool {
        self.pool
    }
}

impl TryFrom<(IpNetwork, u8)> for NetworkPool {
    type Error = PoolError;

    fn try_from((network, block): (IpNetwork, u8)) -> Result<NetworkPool, PoolError> {
        NetworkPool::new(subnet::masked(network), block)
    }
}

impl From<NetworkPool> for (IpNetwork, u8) {
    fn from(pool: NetworkPool) -> (IpNetwork, u8) {
        (pool.network, pool.pool.host_prefix())
    }
}

impl TenantNetwork {
    /// Its pools, IPv4 first.
    pub fn networks(&self) -> impl Iterator<Item = IpNetwork> {
        self.pools.iter().map(NetworkPool::network)
    }
}

impl Networks {
    /// More are not read: every network has rules about all others.
    pub const LIMIT: usize = 256;

    /// More pods with fixed addresses are not read: every plugin reads all of them.
    pub const PINS_LIMIT: usize = 4096;

    /// The network of the settings.
    pub fn default_name() -> Scoped {
        let name = || DEFAULT.parse().expect("a name");
        Scoped { tenant: name(), name: name() }
    }

    /// Adds it, or takes its place; false if there are too many.
    pub fn insert(&mut self, name: Scoped, network: TenantNetwork) -> bool {
        let has_room = self.by_name.len() < Networks::LIMIT || self.by_name.contains_key(&name);
        if has_room {
            self.by_name.insert(name, network);
        }
        has_room
    }

    /// What its object says is not understood.
    pub fn note_unread(&mut self, name: Scoped) {
        self.unread.insert(name);
    }

    /// Of a network that is not understood now, what `before` knew: its pods are not opened to others.
    pub fn keep_unread(&mut self, before: &Networks) {
        for name in &self.unread {
            if let Some(network) = before.get(name) {
                self.by_name.insert(name.clone(), network.clone());
                // What was written since is something else.
                let revision = before.revision(name).unwrap_or(0);
                self.revisions.insert(name.clone(), revision);
            }
        }
    }

    /// As etcd has them, where their objects were written at these revisions.
    pub fn as_of(mut self, revisions: BTreeMap<Scoped, i64>) -> Networks {
        let is_known = |name: &Scoped| self.by_name.contains_key(name);
        self.revisions = revisions.into_iter().filter(|(name, _)| is_known(name)).gather();
        self
    }

    /// The revision at which the object in etcd of the network was written that is known here; `None`: there is none.
    pub fn revision(&self, name: &Scoped) -> Option<i64> {
        self.revisions.get(name).copied()
    }

    pub fn get(&self, name: &Scoped) -> Option<&TenantNetwork> {
        self.by_name.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Scoped, &TenantNetwork)> {
        self.by_name.iter()
    }

    /// Every pool but those of the settings, with the name of its network.
    pub fn named_pools(&self) -> Vec<(IpNetwork, String)> {
        let of = |(name, network): (&Scoped, &TenantNetwork)| -> Vec<(IpNetwork, String)> {
            network.networks().map(|pool| (pool, name.to_string())).collect()
        };
        self.by_name.iter().flat_map(of).collect()
    }

    /// The pod has these addresses wherever it runs; false if there are too many such pods.
    pub fn pin(&mut self, pod: PodName, addresses: Vec<IpAddr>) -> bool {
        let has_room = self.pins.len() < Networks::PINS_LIMIT || self.pins.contains_key(&pod);
        if has_room {
            self.pins.insert(pod, addresses);
        }
        has_room
    }

    /// Pods that have fixed addresses, and those that are said of them.
    pub fn pins(&self) -> impl Iterator<Item = (&PodName, &Vec<IpAddr>)> {
        self.pins.iter()
    }

    /// There is the network of the settings alone, and nothing is said of it.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// With those of `other` that are not known here.
    pub fn and(mut self, other: &Networks) -> Networks {
        for (name, network) in &other.by_name {
            let (is_gone, was_gone) = (other.is_gone(name), self.is_gone(name));
            let is_new = !self.by_name.contains_key(name) || was_gone && !is_gone;
            if is_new && self.insert(name.clone(), network.clone()) {
                if is_gone {
                    self.gone.insert(name.clone())
                } else {
                    self.gone.remove(name)
                };
                self.moved.remove(name);
                let moved = other.moved.get(name).cloned();
                self.moved.extend(moved.map(|moved| (name.clone(), moved)));
                let revision = other.revision(name);
                self.revisions.extend(revision.map(|revision| (name.clone(), revision)));
            }
        }
        for (pod, addresses) in &other.pins {
            if !self.pins.contains_key(pod) {
                self.pin(pod.clone(), addresses.clone());
            }
        }
        self
    }

    /// Where the settings have these pools.
    pub fn beside(self, default: Vec<IpNetwork>) -> Networks {
        Networks { default, ..self }
    }

    /// Every pool and its network, those of the settings included.
    pub fn pools(&self) -> impl Iterator<Item = (IpNetwork, Scoped)> {
        let own = self.default.iter().map(|pool| (*pool, Networks::default_name()));
        let named = |(name, network): (&Scoped, &TenantNetwork)| {
            let name = name.clone();
            network.networks().map(move |pool| (pool, name.clone())).collect::<Vec<_>>()
        };
        own.chain(self.by_name.iter().flat_map(named))
    }

    /// The network that has `address`; `None`: it is no pod's.
    pub fn of(&self, address: IpAddr) -> Option<Scoped> {
        let has = |network: &TenantNetwork| network.networks().any(|it| it.contains(address));
        let named = self.by_name.iter().find(|(_, network)| has(network));
        let is_own = || self.default.iter().any(|pool| pool.contains(address));
        named.map(|(name, _)| name.clone()).or_else(|| is_own().then(Networks::default_name))
    }

    /// A pod with `address` is in the network `name`; `None`: not every pool is known that may have the address.
    pub fn is_in(&self, name: &Scoped, address: IpAddr) -> Option<bool> {
        let is_known =
            !self.default.is_empty() && self.unread.iter().all(|it| self.get(it).is_some());
        match self.of(address) {
            _ if self.is_empty() => None,
            Some(found) => Some(found == *name),
            None => is_known.then_some(false),
        }
    }

    /// The pods of tenants reach each other.
    pub fn is_shared(&self, name: &Scoped) -> bool {
        self.by_name.get(name).is_some_and(|network| network.shared)
    }

    /// Every two that share addresses.
    pub fn overlaps(&self) -> Vec<NetworkOverlap> {
        let mut pools: Vec<(IpNetwork, Scoped)> = self.pools().collect();
        pools.sort_unstable_by_key(|(pool, _)| {
            (subnet::family(*pool), pool.network(), pool.prefix())
        });
        let (mut overlaps, mut open) = (Vec::new(), Vec::<(IpNetwork, Scoped)>::new());
        for (pool, network) in pools {
            // Sorted so, what does not contain this one contains none of the later ones.
            open.retain(|(wider, _)| contains(*wider, pool));
            overlaps.extend(open.last().map(|(other_pool, other)| NetworkOverlap {
                network: network.clone(),
                pool,
                other: other.clone(),
                other_pool: *other_pool,
            }));
            open.push((pool, network));
        }
        overlaps
    }
}

impl NetworkOverlap {
    /// One of them is the network of the settings.
    pub fn is_with_settings(&self) -> bool {
        [&self.network, &self.other].contains(&&Networks::default_name())
    }

    pub fn problem(&self) -> Problem {
        let subject = Object::named(format!("Network {}", self.network));
        let fix = "humanz-agent net ls # give one of the two networks other subnets";
        Problem::in_object(ProblemKind::Policy, subject, self).with_fix(fix)
    }
}

impl fmt::Display for NetworkOverlap {
    /// `pool 10.1.0.0/24 lies in 10.1.0.0/16 of network blue/front`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NetworkOverlap { pool, other_pool, other, .. } = self;
        let family = Family::of(pool.ip());
        if *other == Networks::default_name() {
            write!(f, "{family} pool {pool} lies in {other_pool} of the default network")
        } else {
            write!(f, "{family} pool {pool} lies in {other_pool} of network {other}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    fn network(pools: &[(&str, u8)]) -> TenantNetwork {
        let mut by_family = PerFamily::default();
        for (pool, block) in pools {
            let pool = NetworkPool::new(net(pool), *block).unwrap();
            by_family.set(subnet::family(pool.network()), Some(pool));
        }
        let pins = PerFamily::default();
        TenantNetwork {
            pools: by_family,
            pins,
            mtu: None,
            nat: true,
            shared: false,
            host_ports: true,
        }
    }

    fn networks(all: &[(&str, &[(&str, u8)])]) -> Networks {
        let named = |(name, pools): &(&str, &[(&str, u8)])| {
            let (tenant, name) = name.split_once('/').unwrap();
            let name = Scoped { tenant: tenant.parse().unwrap(), name: name.parse().unwrap() };
            (name, network(pools))
        };
        let default = vec![net("10.244.0.0/16")];
        Networks { by_name: all.iter().map(named).collect(), default, ..Networks::default() }
    }

    #[test]
    fn a_pool_wider_than_can_be_cut_has_its_first_blocks() {
        let cut = |pool, block| NetworkPool::new(net(pool), block).map(|it| it.pool());
        assert_eq!(cut("10.1.0.0/16", 26), Pool::new(net("10.1.0.0/16"), 10));
        assert_eq!(cut("fd00:1::/64", 122), Pool::new(net("fd00:1::/98"), 24));
        assert!(cut("10.1.0.0/26", 26).is_err() && cut("10.1.0.0/24", 31).is_err());
    }

    #[test]
    fn networks_that_share_addresses_are_found_whichever_is_the_wider() {
        let overlaps = |all: &Networks| {
            let text = |one: &NetworkOverlap| format!("{}: {one}", one.network);
            all.overlaps().iter().map(text).collect::<Vec<_>>()
        };
        let apart: [(&str, &[(&str, u8)]); 2] = [
            ("a/x", &[("10.1.0.0/16", 26), ("fd00:1::/64", 122)]),
            ("b/x", &[("10.2.0.0/16", 26)]),
        ];
        assert_eq!(overlaps(&networks(&apart)), Vec::<String>::new());
        let inside: [(&str, &[(&str, u8)]); 3] = [
            ("a/x", &[("10.1.3.0/24", 26)]),
            ("b/x", &[("10.1.0.0/16", 26)]),
            ("c/x", &[("10.0.0.0/8", 26)]),
        ];
        assert_eq!(
            overlaps(&networks(&inside)),
            [
                "b/x: IPv4 pool 10.1.0.0/16 lies in 10.0.0.0/8 of network c/x",
                "a/x: IPv4 pool 10.1.3.0/24 lies in 10.1.0.0/16 of network b/x",
                "default/default: IPv4 pool 10.244.0.0/16 lies in 10.0.0.0/8 of network c/x",
            ]
        );
    }

    #[test]
    fn an_address_says_which_network_it_is_of() {
        let all = networks(&[("a/x", &[("10.1.0.0/16", 26)]), ("b/x", &[("fd00:2::/64", 122)])]);
        let of = |address: &str| all.of(address.parse().unwrap()).map(|it| it.to_string());
        assert_eq!(of("10.1.2.3").as_deref(), Some("a/x"));
        assert_eq!(of("fd00:2::9").as_deref(), Some("b/x"));
        assert_eq!(of("10.2.2.3"), None);
        assert_eq!(of("10.244.2.3").as_deref(), Some("default/default"));
    }

    #[test]
    fn a_network_that_is_not_understood_any_more_is_as_of_the_revision_that_was() {
        let name = |text: &str| {
            let (tenant, name) = text.split_once('/').unwrap();
            Scoped { tenant: tenant.parse().unwrap(), name: name.parse().unwrap() }
        };
        let revisions =
            |all: &[(&str, i64)]| all.iter().map(|(text, at)| (name(text), *at)).collect();
        let pools: [(&str, &[(&str, u8)]); 1] = [("a/x", &[("10.1.0.0/16", 26)])];
        let before = networks(&pools).as_of(revisions(&[("a/x", 7), ("b/none", 8)]));
        assert_eq!(before.revision(&name("a/x")), Some(7));
        assert_eq!(before.revision(&name("b/none")), None);
        let unread = || {
            let mut now = Networks::default();
            now.note_unread(name("a/x"));
            now.as_of(revisions(&[("a/x", 9)]))
        };
        let (mut now, mut unknown) = (unread(), unread());
        now.keep_unread(&before);
        assert_eq!(now.revision(&name("a/x")), Some(7));
        // Kept from before there were revisions: no object in etcd is as of revision 0.
        unknown.keep_unread(&networks(&pools));
        assert_eq!(unknown.revision(&name("a/x")), Some(0));
        let merged = Networks::default().and(&before);
        assert_eq!(merged.revision(&name("a/x")), Some(7));
        assert_eq!(networks(&pools).and(&before).revision(&name("a/x")), None, "another source");
    }

    #[test]
    fn networks_are_read_back_as_they_were_written() {
        let all = networks(&[("a/x", &[("10.1.0.0/16", 26), ("fd00:1::/64", 122)])]);
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Networks>(&text).unwrap(), all);
        assert!(serde_json::from_str::<NetworkPool>("[\"10.1.0.0/16\", 33]").is_err());
    }
}
