//! Keeps one kind of thing true, each in its file: observe, plan, apply.

pub mod bridge;
pub mod conf;
pub mod firewall;
pub mod flows;
pub mod hostports;
pub mod input;
pub mod plugin;
pub mod ports;
pub mod routes;
pub mod surroundings;
pub mod sysctls;
pub mod tunnel;

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::agent::host::Facts;
use crate::agent::settings::Settings;
use crate::agent::wake::Look;
use crate::lease::Resolved;
use crate::lease::peers::Peers;
use crate::linux::forward::Forward;
use crate::linux::netlink::NetlinkError;
use crate::linux::nft::Nft;
use crate::linux::rtnl::Rtnl;
use crate::net::PerFamily;

/// The kernel of this host.
pub struct World {
    /// Links, addresses, routes.
    pub rtnl: Rtnl,
    /// Our own table.
    pub nft: Nft,
    /// The forward chains of others.
    pub forward: Forward,
    /// Identifies this machine: the bridge's MAC is made of it.
    pub machine_id: String,
}

impl World {
    /// The network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open(machine_id: String) -> Result<World, NetlinkError> {
        Ok(World { rtnl: Rtnl::open()?, nft: Nft::open()?, forward: Forward::open()?, machine_id })
    }
}

/// What a pass works from.
pub struct Pass<'a> {
    /// What the operator wants.
    pub settings: &'a Settings,
    /// The kernel.
    pub world: &'a World,
    /// This host's pod subnets.
    pub subnets: &'a PerFamily<IpNetwork>,
    /// The other hosts, once they are known.
    pub peers: Option<&'a Arc<Peers>>,
    /// The peers are complete: a route of ours to nobody may go.
    pub in_sync: bool,
    /// Addresses of hosts that publish none.
    pub resolved: &'a Resolved,
    /// What this host was when it was looked at last.
    pub before: Option<&'a Facts>,
    /// All was as it should be once: runtimes were given the CNI configuration.
    pub was_ready: bool,
    /// What to look at.
    pub look: Look,
}
