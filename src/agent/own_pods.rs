//! The pods of this host, for a host that asks for those of all.

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::agent::shared_state::SharedState;
use crate::inspect::interface_counters::{counters, uptime};
use crate::inspect::pods;
use crate::lease::records::{HostPod, HostPods};

/// Answers other hosts from now on.
pub fn answer(shared: &Arc<SharedState>) {
    let weak = Arc::downgrade(shared);
    shared.reports.pods.answer_with(Arc::new(move || own_pods(&*weak.upgrade()?)));
}

/// Those with addresses that other hosts reach: in this host's subnets, or its blocks of tenants' networks.
/// `None` while the agent has served nothing yet.
fn own_pods(shared: &SharedState) -> Option<HostPods> {
    let known = shared.snapshot()?;
    let subnets = known.subnets.iter().flat_map(|subnets| subnets.iter().copied());
    let ranges: Vec<IpNetwork> = subnets.chain(known.blocks.iter().map(|(it, _)| *it)).collect();
    let (attachments, _) = pods::attachments(&known.settings);
    // Without them the pods are known all the same.
    let (counters, at) = counters().map_or_else(|_| Default::default(), |it| (it, uptime()));
    let own = attachments.iter().filter_map(|it| it.reported(&ranges, &counters));
    let mut own: Vec<HostPod> = own.collect();
    own.sort_unstable_by(|a, b| a.pod.cmp(&b.pod));
    Some(HostPods::new(own).counted(at))
}
