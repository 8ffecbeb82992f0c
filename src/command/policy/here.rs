//! This host's policies as they hold now, and as they would with those of files.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::command::call::{Call, complain};
use crate::command::policy::found;
use crate::inspect::{Host, HostList};
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::policy::change::{self, Replaced};
use crate::policy::partial::Knowledge;
use crate::policy::running::RuleChange;
use crate::policy::view::View;
use crate::policy::{Endpoint, Endpoints, Members, PolicySnapshot, Rules, members};
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// What is known of policies on this host.
pub struct HostPolicies {
    pub host: Host,
    pub view: View,
    pub known: PolicySnapshot,
    /// Addresses of the host itself.
    pub own: BTreeSet<IpAddr>,
}

impl HostPolicies {
    /// Looks at this host.
    ///
    /// # Errors
    /// Policies are off, or this user may not ask the agent.
    pub fn inspect(call: &mut Call<'_>) -> Result<HostPolicies, Exit> {
        let settings = call.load()?.settings;
        let (view, note) = found::view(&settings)?;
        note.into_iter().for_each(|note| complain(&note));
        HostPolicies::of(&settings, view)
    }

    /// With what is in force.
    ///
    /// # Errors
    /// A setting is invalid, or the kernel's sockets cannot be opened.
    pub fn of(settings: &Settings, view: View) -> Result<HostPolicies, Exit> {
        let host = Host::inspect(settings, HostList::Saved)?;
        let own = host.addresses()?.iter().map(|found| found.address.ip()).gather();
        let known = view.known.as_deref().cloned().unwrap_or_default();
        Ok(HostPolicies { host, view, known, own })
    }

    /// What it can say with these rules.
    pub fn knowledge<'a>(
        &'a self,
        rules: &'a Rules,
        members: &'a Members,
        pods: &'a [Endpoint],
    ) -> Knowledge<'a> {
        let (subnets, networks) = (&*self.view.subnets, &self.known.networks);
        Knowledge { rules, members, pods, subnets, networks, own: &self.own }
    }

    /// The pod of this host that has `address`.
    pub fn pod_name(&self, address: IpAddr) -> Option<String> {
        let pod = self.view.pods.iter().find(|pod| pod.addresses.contains(&address))?;
        Some(pod.pod.clone().unwrap_or_else(|| pod.container_id.clone()))
    }

    /// The rules that hold here, with those of `new` in place of the ones of the same objects. `option`: the
    /// one that `new` was given with.
    ///
    /// # Errors
    /// `new` changes more than policies, or a group whose policies are not known.
    pub fn changed(&self, (new, option): (&[Value], &str)) -> Result<Replaced, Exit> {
        let refused = |why: String| Exit::new(exit::SETTINGS, format!("{option}: {why}"));
        change::replaced(&self.known.rules, new).map_err(refused)
    }

    /// `None`: no pod has `address`; else the other host whose pod may have it, where that is known.
    pub fn pod_host(&self, address: IpAddr) -> Option<Option<&NodeName>> {
        match self.host.peer(address) {
            Some((name, _, Some(_))) => Some(Some(name)),
            Some((_, _, None)) => None,
            None => {
                let pools = self.pools();
                (pools.is_empty() || pools.iter().any(|it| it.contains(address))).then_some(None)
            }
        }
    }

    /// Where pods have their addresses; empty: that is not known.
    pub fn pools(&self) -> Vec<IpNetwork> {
        let settings = self.host.settings.pool_networks();
        if settings.is_empty() {
            return Vec::new();
        }
        let networks = self.known.networks.pools().map(|(pool, _)| pool);
        settings.iter().copied().chain(networks).gather::<BTreeSet<_>>().into_iter().collect()
    }

    /// With what `endpoints` of files say of selectors that no rule had: what they find on other hosts is not known
    /// where there are none.
    pub fn members_then(&self, rules: &Rules, endpoints: &Endpoints) -> Members {
        // Of a selector that is not among them, this host did not ask what it finds elsewhere.
        let mut members = self.known.members.clone();
        if endpoints.pods.is_empty() {
            return members;
        }
        let mut wanted = members::peers(rules.iter());
        wanted.retain(|selector| !members.contains_key(selector));
        members.extend(members::find(&wanted, endpoints));
        members
    }

    /// From the rules that hold to `rules`, with what is known of pods then.
    pub fn change<'a>(
        &'a self,
        rules: &'a Rules,
        members: &'a Members,
        pods: &'a [Endpoint],
    ) -> RuleChange<'a> {
        RuleChange {
            before: self.knowledge(&self.known.rules, &self.known.members, pods),
            after: self.knowledge(rules, members, pods),
        }
    }
}
