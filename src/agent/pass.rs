//! One pass: observe → plan → apply, one kind of thing after the other.
//!
//! The order is that of a start: sysctls, bridge, firewall, routes, plugin, and the CNI
//! configuration last, because runtimes start pods as soon as it is there.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use crate::agent::host::{self, Facts, Own};
use crate::agent::keep::{self, bridge::Kept};
use crate::agent::reach::{self, Resolved};
use crate::agent::report::Report;
use crate::agent::settings::Settings;
use crate::agent::wake::Look;
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
    pub peers: Option<&'a Peers>,
    /// The peers are complete: a route of ours to nobody may go.
    pub in_sync: bool,
    /// Addresses of hosts that publish none.
    pub resolved: &'a Resolved,
    /// What this host was when it was looked at last.
    pub before: Option<Own>,
    /// What to look at.
    pub look: Look,
}

/// What a pass saw that others want to know.
#[derive(Debug)]
pub struct Seen {
    /// What the other hosts must know of this one.
    pub own: Own,
    /// What is wrong and not ours to mend, if it was looked at: hosts without a way to them …
    pub unreachable: Option<BTreeSet<String>>,
    /// … and other people's firewall.
    pub obstacles: Option<BTreeSet<String>>,
}

impl Pass<'_> {
    /// Looks, and mends what is wrong. `None` if the host could not be looked at.
    pub fn run(&self, report: &mut Report) -> Option<Seen> {
        let facts = match host::observe(&self.world.rtnl, self.settings, self.before) {
            Ok(facts) => facts,
            Err(error) => {
                report.failed(format!("{error:#}"));
                return None;
            }
        };
        let mut bridge = Kept::Whole;
        if self.look.links {
            keep::sysctls::keep(self, &facts, report);
            bridge = keep::bridge::keep(self, &facts, report);
        }
        // Looking at every link is too much for every event of one.
        if bridge == Kept::New || self.look == Look::ALL {
            keep::ports::keep(self, report);
        }
        let obstacles = self.look.firewall.then(|| keep::firewall::keep(self, &facts, report));
        let unreachable = self.look.routes.then(|| self.routes(&facts, report));
        if self.look.files && keep::plugin::keep(self, report) && bridge != Kept::Broken {
            keep::conf::keep(self, &facts, report);
        }
        Some(Seen { own: facts.own, unreachable, obstacles })
    }

    fn routes(&self, facts: &Facts, report: &mut Report) -> BTreeSet<String> {
        let Some(peers) = self.peers else { return BTreeSet::new() };
        let (wanted, unreachable) =
            reach::routes(&peers.by_name, self.resolved, &facts.connected, &facts.own.addresses);
        keep::routes::keep(self, &wanted, report);
        let unreachable = unreachable.iter().map(ToString::to_string);
        unreachable.chain(peers.faults.iter().map(ToString::to_string)).collect()
    }
}
