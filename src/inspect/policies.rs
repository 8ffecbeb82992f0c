//! What this host knows of policies: as its agent says, or as its disk has it.

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;
use serde::Deserialize;

use crate::inspect::{agent_socket, identity, last_policies, pods};
use crate::net::Family;
use crate::netlink::NetlinkError;
use crate::nft::{Nft, Value};
use crate::policy::compile::{POLICY_TABLE, address};
use crate::policy::local::Pods;
use crate::policy::sources::{Policies, SourceState};
use crate::policy::view::View;
use crate::settings::Settings;
use crate::settings::exit::Exit;

#[derive(Deserialize)]
struct PoliciesAnswer {
    view: Option<View>,
}

/// What the agent knows; `None` if it serves without policies, or knows nothing yet. An error says why
/// it does not answer.
pub fn asked(settings: &Settings) -> Result<Option<View>, String> {
    let PoliciesAnswer { view } = agent_socket::get(agent_socket::of(settings)?, "/v1/policies")?;
    Ok(view)
}

/// What held last, the pods that the store has, and which of them the kernel's table has; `None` if `settings`
/// have no policies.
///
/// # Errors
/// The store of addresses cannot be read, or this host has no name.
pub fn last(
    settings: &Settings,
    subnets: impl IntoIterator<Item = IpNetwork>,
    nft: &Nft,
) -> Result<Option<View>, Exit> {
    let Some(policy) = &settings.policy else { return Ok(None) };
    let providers = policy.providers(&settings.source);
    let kept = last_policies::kept(&settings.state_dir, true);
    let policies = Policies::kept(kept, &providers, settings.pod_defaults());
    let read = last_policies::written(&settings.state_dir);
    let dated = |state: SourceState| SourceState { read: read.filter(|_| state.holds), ..state };
    let network = &settings.cni.name;
    let contents = pods::store(settings, network).and_then(|store| Ok(store.contents()?));
    let contents = contents.map_err(|error| pods::store_problem(&settings.cni.ipam_dir, &error))?;
    let pods = Pods::of(network, &contents.entries, &Pods::default());
    // Who may not read the table sees the store alone.
    let not_in_force = not_in_force(nft, &pods).unwrap_or(Some(BTreeSet::new()));
    let known = policies.snapshot().cloned();
    Ok(Some(View {
        host: identity::node_name(settings)?,
        subnets: subnets.into_iter().collect(),
        sources: policies.states(&providers).into_iter().map(dated).collect(),
        unjudged: known.is_none() && not_in_force.is_none(),
        known,
        pods,
        held: BTreeMap::new(),
        not_in_force: not_in_force.unwrap_or_default(),
    }))
}

/// The containers with an address that the table does not have; `None`: there is no table.
fn not_in_force(nft: &Nft, pods: &Pods) -> Result<Option<BTreeSet<String>>, NetlinkError> {
    if !nft.tables()?.iter().any(|name| name == POLICY_TABLE) {
        return Ok(None);
    }
    let mut found = BTreeSet::new();
    for pod in pods.iter() {
        for address in &pod.addresses {
            let [to_pod, ..] = address::sets(Family::of(*address));
            if nft.element(POLICY_TABLE, &to_pod, &[Value::address(*address)])?.is_none() {
                found.insert(pod.container_id.clone());
            }
        }
    }
    Ok(Some(found))
}
