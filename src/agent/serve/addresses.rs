//! This host's node addresses, as Kubernetes or a reload gives them.

use crate::agent::trigger::Scope;
use crate::inspect::host_state;
use crate::lease::Snapshot;
use crate::settings::Source;

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
}
