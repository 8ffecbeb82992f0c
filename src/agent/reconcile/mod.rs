//! Keeps one kind of thing true, each in its file: observe, plan, apply.

pub mod run;

pub mod bridge;
pub mod bridge_ports;
pub mod conf;
pub mod firewall;
pub mod flowtable;
pub mod host_checks;
pub mod host_ports;
pub mod input;
pub mod plugin;
pub mod routes;
pub mod sysctls;
pub mod tunnel;

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::agent::trigger::Scope;
use crate::inspect::host::Facts;
use crate::lease::Resolved;
use crate::lease::peers::Peers;
use crate::net::PerFamily;
use crate::netlink::NetlinkError;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::nft::base_chains::Forward;
use crate::settings::Settings;

/// The kernel of this host.
pub struct Kernel {
    /// Links, addresses, routes.
    pub rtnl: Rtnl,
    /// Our own table.
    pub nft: Nft,
    /// The forward chains of others.
    pub forward: Forward,
    /// Identifies this machine: the bridge's MAC is made of it.
    pub machine_id: String,
}

impl Kernel {
    /// The network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open(machine_id: String) -> Result<Kernel, NetlinkError> {
        Ok(Kernel { rtnl: Rtnl::open()?, nft: Nft::open()?, forward: Forward::open()?, machine_id })
    }
}

/// What a reconcile works from.
pub struct Reconcile<'a> {
    /// What the operator wants.
    pub settings: &'a Settings,
    /// The kernel.
    pub kernel: &'a Kernel,
    /// This host's pod subnets.
    pub subnets: &'a PerFamily<IpNetwork>,
    /// The other hosts, once they are known.
    pub peers: Option<&'a Arc<Peers>>,
    /// The peers are complete: a route of ours to nobody may go.
    pub in_sync: bool,
    /// Addresses of hosts that publish none.
    pub resolved: &'a Resolved,
    /// What this host was when it was looked at last.
    pub previous: Option<&'a Facts>,
    /// All was as it should be once: runtimes were given the CNI configuration.
    pub was_ready: bool,
    /// What to look at.
    pub scope: Scope,
}
