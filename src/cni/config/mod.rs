//! Pure. The plugin's configuration: what the runtime writes to stdin.
//!
//! Keys match in any case and null is absent, as in the runtimes' JSON library. Unknown keys are
//! ignored; the values of known ones must be valid, and all errors are reported at once.

mod document;
mod guard;
mod policy;
mod range;
mod read;
mod reserved;
mod runtime;
mod vlans;

use std::collections::BTreeSet;
use std::path::PathBuf;

use ipnetwork::IpNetwork;

pub use document::MAX_BYTES;
pub use guard::GuardConf;
pub use policy::AgentDown;
pub use range::RangeConf;
pub use runtime::RuntimeConfig;
pub use vlans::VlanConf;

use crate::cni::attachment::Attachment;
use crate::cni::bandwidth::Bandwidth;
use crate::cni::dns::Dns;
use crate::cni::name::Name;
use crate::cni::requested::RequestedAddresses;
use crate::cni::result::CniResult;
use crate::cni::route::CniRoute;
use crate::cni::tuning::Tuning;
use crate::cni::version::Version;
use crate::cni::words::Words;
use crate::net::{IfName, Mac, ReservedPort};

/// A network's configuration with what the runtime added for one call.
#[derive(Clone, Debug, PartialEq)]
pub struct NetConf {
    /// `cniVersion`, also of the reply.
    pub version: Version,
    pub name: Name,
    pub bridge: IfName,
    /// `createBridge`: create a missing bridge. False in the agent's configuration.
    pub create_bridge: bool,
    /// `delegated`: pods may be in the networks of tenants that the agent knows.
    pub delegated: bool,
    /// `network`: the pod networks of all hosts, to which nothing is masqueraded.
    pub network: Vec<IpNetwork>,
    /// `mtu`, bytes: absent, the bridge's. (That of pods is in `tuning`.)
    pub mtu: Option<u32>,
    /// `hairpinMode`: a pod may reach itself through a service.
    pub hairpin_mode: bool,
    /// `portIsolation`: the bridge forwards nothing between pods of this host.
    pub port_isolation: bool,
    /// `macspoofchk`: the bridge drops frames from foreign MACs.
    pub mac_spoof_check: bool,
    /// `vlan`, `vlanTrunk`, `preserveDefaultVlan`.
    pub vlans: VlanConf,
    /// What pods may send.
    pub guard: GuardConf,
    /// `policy`; `None`: the network has no policies.
    pub policy: Option<AgentDown>,
    /// `reservedPorts`: ports of the host that lead to no pod.
    pub reserved_ports: Vec<ReservedPort>,
    /// `isGateway`: the bridge has the gateways' addresses.
    pub is_gateway: bool,
    /// `isDefaultGateway`: pods get a default route for each family, unless `routes` has one.
    pub is_default_gateway: bool,
    /// `ipMasq`: packets to destinations outside `network` and the pods' subnet are masqueraded.
    pub ip_masq: bool,
    /// Range sets; a pod gets one address from each.
    pub ranges: Vec<Vec<RangeConf>>,
    pub routes: Vec<CniRoute>,
    /// `dns`, for the result; the runtime's takes precedence over the network's.
    pub dns: Dns,
    /// `dataDir`: the parent of the stores of all networks.
    pub data_dir: PathBuf,
    /// `logFile`; none for the empty text.
    pub log_file: Option<PathBuf>,
    /// `ingressRate` … `egressBurst`; if the configuration has none of them, the runtime's `bandwidth`.
    pub bandwidth: Bandwidth,
    /// `args.cni` takes precedence over the configuration.
    pub tuning: Tuning,
    /// `mac`: the MAC of pods that request no other.
    pub mac: Option<Mac>,
    /// `args.cni`.
    pub args: RequestedAddresses,
    /// Labels in `args.cni`.
    pub labels: Words,
    /// `runtimeConfig`.
    pub runtime: RuntimeConfig,
    /// `prevResult`.
    pub prev_result: Option<CniResult>,
    /// `cni.dev/valid-attachments`; `None` if absent.
    pub valid_attachments: Option<BTreeSet<Attachment>>,
}

impl NetConf {
    /// The interface of the host that has the gateways' addresses.
    pub fn gateway_device(&self) -> &IfName {
        self.vlans.gateway.as_ref().unwrap_or(&self.bridge)
    }
}

/// `dataDir` by default: it does not survive a reboot, nor do the interfaces of the addresses.
pub const DATA_DIR: &str = "/run/humanz/ipam";

/// `logFile` by default.
pub const LOG_FILE: &str = "/var/log/humanz.log";

#[cfg(test)]
mod tests;
