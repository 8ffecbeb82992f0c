//! This host's policies as they hold now, and as they would with those of files.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use crate::command::call::{Call, complain};
use crate::command::policy::found;
use crate::inspect::{Host, HostList};
use crate::net::gather::Gather;
use crate::policy::partial::Knowledge;
use crate::policy::read::documents::Documents;
use crate::policy::rule::{Origin, Tier};
use crate::policy::view::View;
use crate::policy::{Endpoint, Members, PolicySnapshot, Rule, Rules, members};
use crate::settings::exit::{self, Exit};

/// Kinds that say which policies there are, and not what pods are like.
const POLICIES: [&str; 6] = [
    "NetworkPolicy",
    "ClusterNetworkPolicy",
    "AdminNetworkPolicy",
    "BaselineAdminNetworkPolicy",
    GROUP,
    GROUP_POLICY,
];
const GROUP: &str = "Group";
const GROUP_POLICY: &str = "GroupPolicy";

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
    pub fn look(call: &mut Call<'_>) -> Result<HostPolicies, Exit> {
        let settings = call.load()?.settings;
        let (view, note) = found::view(&settings)?;
        note.into_iter().for_each(|note| complain(&note));
        let host = Host::inspect(&settings, HostList::Saved)?;
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
        Knowledge { rules, members, pods, subnets: &self.view.subnets, own: &self.own }
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
    /// `new` changes more than policies, or groups of which the files do not have all.
    pub fn changed(
        &self,
        (new, option): (&[Value], &str),
        before: &Documents,
        after: &Documents,
    ) -> Result<Rules, Exit> {
        let kinds: BTreeSet<&str> =
            new.iter().filter_map(|object| object["kind"].as_str()).gather();
        let refused = |why: String| Exit::new(exit::SETTINGS, why);
        if let Some(kind) = kinds.iter().find(|kind| !POLICIES.contains(kind)) {
            let why = "this host's pods are judged as they are now";
            return Err(refused(format!("{why}: take objects of kind {kind} out of {option}")));
        }
        let changes_groups = kinds.contains(GROUP) || kinds.contains(GROUP_POLICY);
        let files: BTreeSet<Origin> = before.rules.iter().map(|rule| rule.origin.object()).gather();
        let is_missing = |rule: &&Rule| {
            rule.tier == Tier::Group && changes_groups && !files.contains(&rule.origin.object())
        };
        if let Some(rule) = self.known.rules.iter().find(is_missing) {
            let why = "groups are read together with their policies, and -f lacks";
            let hint = "humanz-agent policy export prints those in etcd";
            return Err(refused(format!("{why} {}: {hint}", rule.origin)));
        }
        let is_changed = |rule: &&Rule| match rule.tier {
            Tier::Group => changes_groups,
            _ => new.iter().any(|object| is_of(&rule.origin, object)),
        };
        let kept = self.known.rules.iter().filter(|rule| !is_changed(rule));
        let added = after.rules.iter().filter(is_changed);
        Ok(Rules::new(kept.chain(added).cloned().collect()))
    }

    /// With what the files say of selectors that no rule had: what they find on other hosts is not known
    /// where the files have no pods.
    pub fn members_then(&self, rules: &Rules, after: &Documents) -> Members {
        // Of a selector that is not among them, this host did not ask what it finds elsewhere.
        let mut members = self.known.members.clone();
        if after.endpoints.pods.is_empty() {
            return members;
        }
        let mut wanted = members::peers(rules.iter());
        wanted.retain(|selector| !members.contains_key(selector));
        members.extend(members::find(&wanted, &after.endpoints));
        members
    }
}

fn is_of(origin: &Origin, object: &Value) -> bool {
    let metadata = &object["metadata"];
    object["kind"] == origin.source.name()
        && metadata["name"] == origin.name.as_str()
        && origin
            .namespace
            .as_ref()
            .is_none_or(|own| metadata["namespace"].as_str().unwrap_or("default") == own.as_str())
}
