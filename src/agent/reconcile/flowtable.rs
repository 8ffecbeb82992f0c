//! Keeps the shortcut for packets of established connections, if it is wanted.

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, own_table};
use crate::inspect::Kernel;
use crate::inspect::host_state::HostState;
use crate::net::gather::Gather;
use crate::net::{Family, IfName, Object, Problem, ProblemKind};
use crate::plan::firewall::flowtable::{FLOWS_TABLE, ruleset};
use crate::plan::firewall::{TableRepair, changes, repair};
use crate::plan::tunnel::device_name;

/// Repairs differences; gives why the kernel refuses, if it does: pods then go on without.
pub fn reconcile(
    run: &Reconcile<'_>,
    host_state: &HostState,
    applier: &mut Applier,
) -> Option<Problem> {
    let (nft, settings) = (&run.kernel.nft, run.settings);
    let wanted = settings.flowtable.then(|| {
        let devices = host_state.uplinks.iter().cloned().chain(tunnels(run.kernel)).gather();
        ruleset(&settings.bridge, &devices)
    });
    let found = match nft.observe(FLOWS_TABLE) {
        Ok(found) => found,
        Err(error) => {
            applier.inspect_failed(Object::Table(FLOWS_TABLE.to_owned()), error);
            return None;
        }
    };
    let changes = changes(wanted.as_ref(), found.as_ref());
    match (repair(wanted.as_ref(), &changes), &wanted) {
        (TableRepair::Nothing, _) => None,
        (_, None) => {
            applier.apply_together(&changes, || nft.delete(FLOWS_TABLE));
            None
        }
        (_, Some(wanted)) => {
            let made = applier.attempt(&changes, || nft.replace(wanted));
            made.err().map(|error| {
                let what =
                    format!("FLOWTABLE=true, and the kernel has no flow table for pods: {error}");
                let subject = Object::Table(FLOWS_TABLE.to_owned());
                Problem::new(ProblemKind::Flowtable, subject, what)
                    .with_fix("modprobe -a nf_flow_table_inet nft_flow_offload")
            })
        }
    }
}

/// The tunnels' devices that are there.
fn tunnels(kernel: &Kernel) -> impl Iterator<Item = IfName> {
    let there = |name: &IfName| kernel.rtnl.link(name).is_ok_and(|link| link.is_some());
    Family::BOTH.map(device_name).into_iter().filter(there)
}

/// Removes the table, if it is there.
pub fn remove(kernel: &Kernel, applier: &mut Applier) {
    own_table::remove(&kernel.nft, FLOWS_TABLE, applier);
}
