//! Checks what other programs have on the host; changes nothing of it.

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::checks::host_checks::{Needs, problems};
use crate::inspect::other_programs;
use crate::inspect::preflight::missing_address;
use crate::inspect::service_manager::service_manager;
use crate::net::{Object, Problem};

/// What keeps packets from pods.
pub fn check(run: &Reconcile<'_>, applier: &mut Applier) -> Vec<Problem> {
    let mut faults = match other_programs::inspect(run.kernel, run.settings, run.subnets) {
        Ok(found) => problems(&needs(run), &found),
        Err(error) => {
            applier.inspect_failed(Object::named("links and routes of other programs"), error);
            Vec::new()
        }
    };
    // Other hosts send what is for pods of this one there, and an address may come and go.
    faults.extend(missing_address(&run.settings.node_addresses, &run.kernel.rtnl));
    faults
}

fn needs(run: &Reconcile<'_>) -> Needs {
    Needs {
        plugin: run.settings.cni.plugin.clone(),
        configuration: run.settings.cni.config.clone(),
        pools: run.settings.pool_networks(),
        subnets: *run.subnets,
        forwarding_is_others: (!run.settings.manage_sysctl)
            .then(|| run.settings.why_left_alone("MANAGE_SYSCTL=false")),
        manager: service_manager(),
    }
}
