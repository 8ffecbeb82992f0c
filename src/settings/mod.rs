//! Pure. The settings of the agent.

pub mod choices;
pub mod env_file;
pub mod exit;
pub mod flags;
pub mod loader;
pub mod reload;
pub mod values;

mod parse;
mod reserved;
mod source;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::cni::config::{AgentDown, GuardConf};
use crate::cni::version::Version;
use crate::etcd::EtcdSettings;
use crate::kube::KubeSettings;
use crate::lease::Network;
use crate::lease::records::{NodeName, Roots, Vxlan};
use crate::net::subnet::Pool;
use crate::net::{IfName, Object, PerFamily, Problem, ProblemKind};
use crate::plan::peer_routes::LocalBackend;
use crate::policy::compile::MarkBits;
use crate::policy::{ObjectSource, PodDefaults, Provider, Scoped};

pub use parse::{HostCheck, Texts, parse, values_only};

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where this host's subnet comes from.
    pub source: Source,
    /// The cluster's pods: one pool for each family in use, at least one.
    pub pools: PerFamily<Pool>,
    /// The widest pools that this host accepts from the network.
    pub limits: PerFamily<IpNetwork>,
    /// Name of this host in etcd, if given.
    pub node_name: Option<NodeName>,
    /// Addresses of this host for the others, where given.
    pub node_addresses: PerFamily<IpAddr>,
    pub bridge: IfName,
    /// MTU in bytes; `None`: that of the way to the other hosts.
    pub mtu_bytes: Option<u32>,
    pub backend: LocalBackend,
    /// VNI and port of the tunnels of this network.
    pub vxlan: Vxlan,
    /// `None`: pods reach pods of other hosts in clear text.
    pub encryption: Option<EncryptionSettings>,
    /// With encryption: the file of the secret that hosts make their pre-shared keys of; `None`: they have none.
    pub psk_file: Option<PathBuf>,
    /// Masquerade what leaves the pool.
    pub masquerade: bool,
    /// Destinations that are not masqueraded although outside the pool.
    pub non_masquerade: Vec<IpNetwork>,
    /// Let forwarded pod traffic through foreign rules.
    pub manage_forward: bool,
    /// Packets of established connections take the kernel's shortcut.
    pub flowtable: bool,
    /// What pods may send, and which way it takes.
    pub guard: GuardConf,
    /// `None`: no policies.
    pub policy: Option<PolicySettings>,
    /// Turn on forwarding in the kernel.
    pub manage_sysctl: bool,
    pub cni: CniSettings,
    /// The socket of status, metrics and health; `None`: none.
    pub socket: Option<PathBuf>,
    /// A loopback address for metrics and health.
    pub metrics: Option<SocketAddr>,
    pub state_dir: PathBuf,
    /// Time between full reconciles.
    pub resync: Duration,
    /// A block of a network without pods is given back after this time.
    pub block_release_after: Duration,
    /// Time between two echo requests to each other host; `None`: none are sent.
    pub probe: Option<Duration>,
    pub cleanup_on_stop: bool,
    /// `init` set this machine up: no agent is meant to run, and the plugin alone serves it.
    pub agentless: bool,
}

impl Settings {
    /// Why what `setting` turns off is left to others.
    pub fn why_left_alone(&self, setting: &'static str) -> &'static str {
        if self.agentless { "no agent runs here" } else { setting }
    }

    /// Where the cluster's pods have their addresses.
    pub fn pool_networks(&self) -> PerFamily<IpNetwork> {
        let network = |pool: &Pool| pool.network();
        PerFamily {
            v4: self.pools.v4.as_ref().map(network),
            v6: self.pools.v6.as_ref().map(network),
        }
    }

    /// What holds of pods of which nothing else is said.
    pub fn pod_defaults(&self) -> PodDefaults {
        let group = self.policy.as_ref().and_then(|policy| policy.group.clone());
        PodDefaults { pools: self.pool_networks(), group }
    }

    /// The file of the last known good state.
    pub fn state_file(&self) -> PathBuf {
        self.state_dir.join(STATE_FILE)
    }

    /// The network of the hosts that share the keys below `roots`.
    pub fn network(&self, roots: &Roots) -> Network {
        Network {
            roots: roots.clone(),
            pools: self.pools,
            limits: self.limits,
            backend: Default::default(),
            tenants: Default::default(),
        }
    }

    /// etcd has the subnets, and its endpoints are not known: it cannot be asked.
    pub fn is_etcd_unknown(&self) -> bool {
        matches!(&self.source, Source::Etcd { server, .. } if server.endpoints.is_empty())
    }

    /// There can be other hosts.
    pub fn has_others(&self) -> bool {
        !matches!(self.source, Source::Static(_))
    }

    /// This host may send to others in clear text, through VXLAN tunnels.
    pub fn has_tunnels(&self) -> bool {
        let is_strict = self.encryption.is_some_and(|encryption| encryption.strict);
        self.backend != LocalBackend::Direct && self.has_others() && !is_strict
    }
}

/// Where this host's subnet comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Leased from etcd.
    Etcd {
        /// How to reach it.
        server: EtcdSettings,
        /// Where the keys are.
        roots: Roots,
    },
    /// Given by Kubernetes: the podCIDRs of the nodes.
    Kubernetes(KubeSettings),
    /// Given by the operator; there is no etcd and there are no other hosts.
    Static(PerFamily<IpNetwork>),
}

/// Encryption between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncryptionSettings {
    /// UDP port that this host listens on.
    pub port: u16,
    /// Nothing to or from pods of other hosts in clear text.
    pub strict: bool,
    /// How old a key becomes; `None`: it is changed on demand alone.
    pub rotate: Option<Duration>,
}

impl EncryptionSettings {
    /// UDP port of the second device, which is there while a host changes its key.
    pub fn rotation_port(self) -> u16 {
        self.port.checked_add(1).unwrap_or(self.port - 1)
    }
}

/// Policies, if they are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// `POLICY=kubernetes`, where subnets come from etcd: policies, namespaces and this host's pods are there.
    pub api: Option<KubeSettings>,
    /// Where groups, networks and so on are.
    pub objects: ObjectSource,
    pub file: Option<PathBuf>,
    /// That of pods that nothing else puts into a group.
    pub group: Option<Scoped>,
    pub on_agent_down: AgentDown,
    /// Of a connection's mark, those that say by which policies it was judged.
    pub mark: MarkBits,
    /// Connections and denied packets are counted.
    pub flows: bool,
}

impl PolicySettings {
    /// Where policies come from on a host with this source of subnets.
    pub fn providers(&self, source: &Source) -> Vec<Provider> {
        let file = self.file.is_some().then_some(Provider::File);
        let api = self.api.is_some().then_some(Provider::Kubernetes);
        let cluster: &[Provider] = match source {
            Source::Kubernetes(_) => &[Provider::Kubernetes],
            Source::Etcd { .. } => &[Provider::Etcd, Provider::Members],
            Source::Static(_) => &[],
        };
        file.into_iter().chain(api).chain(cluster.iter().copied()).collect()
    }
}

/// The CNI configuration and its place.
#[derive(Clone, Debug)]
pub struct CniSettings {
    /// `cniVersion`.
    pub version: Version,
    /// Name of the network.
    pub name: String,
    /// Name of the plugin: the last part of `plugin`.
    pub plugin_type: String,
    /// The file to write.
    pub config: PathBuf,
    /// The plugin to install.
    pub plugin: PathBuf,
    /// The plugin's log; `None` for no log.
    pub log_file: Option<PathBuf>,
    /// The store of pod addresses.
    pub ipam_dir: PathBuf,
}

/// The settings that must fit the host, as far as they are valid.
#[derive(Clone, Debug, Default)]
pub struct HostSettings {
    /// With an invalid setting it may lack members of etcd.
    pub source: Option<Source>,
    pub pools: PerFamily<Pool>,
    pub bridge: Option<IfName>,
    /// The kernel must have WireGuard.
    pub encrypts: bool,
    pub psk_file: Option<PathBuf>,
    pub policy_api: Option<KubeSettings>,
    /// There may be networks of tenants.
    pub has_policies: bool,
    pub state_dir: PathBuf,
}

/// The folder of the plugin, unless CNI_PLUGIN_LOCATION says otherwise.
pub const PLUGINS: &str = "/opt/cni/bin";

/// The file of the last known good state, in the state directory.
pub const STATE_FILE: &str = "state.json";

/// `variable` is set to `value` (empty if it is not set): `why` that is invalid, and what would be valid.
pub fn invalid(variable: &'static str, value: &str, why: impl fmt::Display) -> Problem {
    let value = values::without_secrets(value);
    let what = match value.as_str() {
        "" => format!("{variable} is not set: {why}"),
        value => format!("{variable}={value}: {why}"),
    };
    Problem::new(ProblemKind::InvalidSetting, Object::Setting(variable, value), what)
}

#[cfg(test)]
mod tests;
