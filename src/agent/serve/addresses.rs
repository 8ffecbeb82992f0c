//! This host's node addresses, as Kubernetes or a reload gives them.

use std::net::IpAddr;

use crate::agent::trigger::Scope;
use crate::lease::Snapshot;
use crate::net::{PerFamily, Problem};
use crate::netlink::rtnl::Rtnl;
use crate::settings::{Settings, Source, invalid};

use crate::agent::serve::agent::Agent;

impl Agent {
    /// Uses the addresses by which the other hosts know this one, unless the operator named some: on a
    /// host with several interfaces the default route may lead elsewhere.
    pub(super) fn follow_addresses(&mut self, found: &Snapshot) {
        let is_set = self.texts.get("NODE_IP").is_some_and(|text| !text.trim().is_empty());
        if is_set || !matches!(self.settings.source, Source::Kubernetes(_)) {
            return;
        }
        let addresses = self.addresses_of_node(&self.settings, found);
        if addresses != self.settings.node_addresses {
            let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            log::info!("this host's address for the others: {} (InternalIP)", listed.join(", "));
            self.settings.node_addresses = addresses;
            self.state.scope = Scope::ALL;
        }
    }

    /// Refuses a NODE_IP that this host does not have: packets to the others would come from it, and
    /// none would go. At a start it may still come.
    pub(super) fn own_addresses_are_here(&self, settings: &Settings) -> Result<(), Problem> {
        let here = self.kernel.rtnl.addresses(None);
        let here = here.map_err(|error| {
            invalid("NODE_IP", "", format!("read this host's addresses: {error}"))
        })?;
        let is_here = |wanted: &IpAddr| here.iter().any(|found| found.address.ip() == *wanted);
        let Some(missing) = settings.node_addresses.iter().find(|wanted| !is_here(wanted)) else {
            return Ok(());
        };
        let why = "no interface of this host has this address";
        let fix = "ip address show # set one that it has, or add this one first";
        Err(invalid("NODE_IP", &missing.to_string(), why).with_fix(fix))
    }

    /// The InternalIPs of this host's node that it really has, outside the pools of `settings`.
    pub(super) fn addresses_of_node(
        &self,
        settings: &Settings,
        found: &Snapshot,
    ) -> PerFamily<IpAddr> {
        let node = found.nodes.get(&self.name);
        let wanted = node.map(|node| node.value.addresses).unwrap_or_default();
        present(&self.kernel.rtnl, settings, &wanted)
    }
}

fn present(rtnl: &Rtnl, settings: &Settings, wanted: &PerFamily<IpAddr>) -> PerFamily<IpAddr> {
    let here = rtnl.addresses(None).unwrap_or_default();
    let mut present = PerFamily::default();
    for (family, address) in wanted.entries() {
        let is_here = here.iter().any(|found| found.address.ip() == *address);
        let pool = settings.pools.get(family).map(|pool| pool.network());
        if is_here && !pool.is_some_and(|pool| pool.contains(*address)) {
            present.set(family, Some(*address));
        }
    }
    present
}
