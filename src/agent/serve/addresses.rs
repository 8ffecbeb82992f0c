//! This host's node addresses, as Kubernetes or a reload gives them.

use std::net::IpAddr;

use crate::agent::trigger::Scope;
use crate::inspect::host_state;
use crate::lease::Snapshot;
use crate::net::Problem;
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
        let rtnl = &self.kernel.rtnl;
        let addresses = host_state::internal_addresses(rtnl, &self.settings, found, &self.name);
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
}
