//! Pure. What changed settings mean for an agent that runs: taken over at once, or after a restart.

use std::fmt;

use crate::lease::records::NodeName;
use crate::lease::{Snapshot, TenantPools, growth};
use crate::net::subnet::Pool;
use crate::net::{Family, PerFamily};
use crate::settings::{Settings, Source, Texts};

/// A setting that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    pub variable: &'static str,
    /// Its text so far.
    pub from: String,
    /// Its text now.
    pub to: String,
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} → {}", self.variable, shown(&self.from), shown(&self.to))
    }
}

/// A changed setting that stays as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedChange {
    pub change: SettingChange,
    /// Why, and what would make it so.
    pub why: String,
}

impl fmt::Display for RefusedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingChange { variable, from, to } = &self.change;
        write!(f, "{variable} stays {}, not {}: {}", shown(from), shown(to), self.why)
    }
}

fn shown(text: &str) -> &str {
    if text.is_empty() { "(not set)" } else { text }
}

/// What becomes of changed settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadPlan {
    /// The texts that hold from now on: the wanted ones but for what is refused.
    pub texts: Texts,
    /// What is taken over.
    pub changes: Vec<SettingChange>,
    /// What is not.
    pub refusals: Vec<RefusedChange>,
}

/// Settings as they are, or as they would be.
pub struct SettingsView<'a> {
    pub texts: &'a Texts,
    pub settings: &'a Settings,
    /// This host's name by them.
    pub name: &'a NodeName,
}

/// What becomes of the changes between `running` and `wanted`. `found`: what etcd holds, as far as
/// that is known; `tenants`: the networks of tenants, as far as they are.
pub fn plan(
    running: &SettingsView<'_>,
    wanted: &SettingsView<'_>,
    found: Option<&Snapshot>,
    tenants: &TenantPools,
) -> ReloadPlan {
    let mut plan = ReloadPlan { texts: wanted.texts.clone(), ..ReloadPlan::default() };
    let pools = pools(running, wanted, found, tenants);
    let why = |variable: &'static str| {
        let of_pool = pools.iter().find(|(variables, _)| variables.contains(&variable));
        of_pool.map(|(_, why)| why.clone()).or_else(|| fixed(variable, running, wanted))
    };
    for (variable, to) in wanted.texts {
        let from = running.texts.get(variable).cloned().unwrap_or_default();
        if from == *to {
            continue;
        }
        let change = SettingChange { variable, from, to: to.clone() };
        match why(variable) {
            Some(why) => {
                plan.texts.insert(variable, change.from.clone());
                plan.refusals.push(RefusedChange { change, why });
            }
            None => plan.changes.push(change),
        }
    }
    plan
}

/// Why `variable` cannot change while the agent runs.
fn fixed(variable: &str, running: &SettingsView<'_>, wanted: &SettingsView<'_>) -> Option<String> {
    let is_etcd = matches!(running.settings.source, Source::Etcd { .. });
    let why = match variable {
        "NODE_NAME" if running.name != wanted.name => {
            "this host's subnet bears the name in etcd; drain the host and restart its agent, which \
             takes another subnet under the new name"
        }
        "ETCD_PREFIX" | "ETCD_COUNTER_KEY" | "HUMANZ_PREFIX" if is_etcd => {
            "the keys of all hosts are there; a restart joins the network that is under the new one, \
             with the subnet this host has if it is free there"
        }
        "SUBNET_SOURCE" => {
            "pods have addresses of this host's subnet; drain the host and restart its agent, which \
             gets its subnet from the new source"
        }
        "SUBNET" if subnet_changes(running, wanted) => {
            "pods have addresses of the subnet; drain the host and restart its agent, which serves \
             the new one"
        }
        "BRIDGE_NAME" => {
            "pods are plugged into the bridge; drain the host, delete the bridge and restart the \
             agent, which makes the new one"
        }
        "CNI_NAME" => {
            "pods and their addresses are booked under the name; drain the host and restart its \
             agent, which gives new pods to the new network"
        }
        "IPAM_DIR" => {
            "the addresses of running pods are booked there; drain the host and restart its agent, \
             which begins with an empty store"
        }
        "STATE_DIR" => {
            "the agent's lock and what it knew last are there; move the directory and restart the \
             agent, which without it needs etcd to start"
        }
        _ => return None,
    };
    Some(format!("restart needed: {why}"))
}

/// The variables of pools that cannot become what is wanted, and why.
fn pools(
    running: &SettingsView<'_>,
    wanted: &SettingsView<'_>,
    found: Option<&Snapshot>,
    tenants: &TenantPools,
) -> Vec<([&'static str; 2], String)> {
    let mut refused = Vec::new();
    for (family, variables) in [
        (Family::V4, ["IP_SUBNET", "IP_SUBNET_MARGIN"]),
        (Family::V6, ["IPV6_SUBNET", "IPV6_SUBNET_MARGIN"]),
    ] {
        let (from, to) = (running.settings.pools.get(family), wanted.settings.pools.get(family));
        let why = match (from, to) {
            (Some(from), Some(to)) if from == to => None,
            (Some(from), Some(to)) if !to.widens(from) => Some(not_wider(from, to, family, found)),
            (Some(_), Some(_)) if subnet_changes(running, wanted) => Some(
                "this host's own subnet would change with it; set SUBNET to what it is".to_owned(),
            ),
            (Some(from), Some(to)) => match (found, &running.settings.source) {
                (Some(found), Source::Etcd { roots, .. }) => {
                    growth::why_not(found, roots, tenants, from, to)
                }
                _ => None,
            },
            (None, None) => None,
            _ => Some(format!(
                "all hosts of a network have {family} or none; stop all agents, delete the etcd key \
                 HUMANZ_PREFIX/config and every state.json, and start them with the new settings"
            )),
        };
        refused.extend(why.map(|why| (variables, why)));
    }
    refused
}

fn not_wider(from: &Pool, to: &Pool, family: Family, found: Option<&Snapshot>) -> String {
    let (network, length) = (from.network(), from.host_prefix());
    let mut why = format!(
        "a pool in use can only grow, to one that contains {network} and is cut into /{length} as well"
    );
    let mut narrow = PerFamily::default();
    narrow.set(family, Some(*to));
    let outside: Vec<String> =
        found.into_iter().flat_map(|found| growth::outside(found, &narrow)).take(10).collect();
    if !outside.is_empty() {
        why.push_str(&format!("; outside of the new one are: {}", outside.join(", ")));
    }
    why
}

/// The subnet in the settings would change.
fn subnet_changes(running: &SettingsView<'_>, wanted: &SettingsView<'_>) -> bool {
    match (&running.settings.source, &wanted.settings.source) {
        (Source::Static(before), Source::Static(after)) => before != after,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
