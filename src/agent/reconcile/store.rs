//! The folder of the IPAM store, which the plugin keeps. Where it cannot be used no pod starts, and little
//! of this host can be looked at.

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::inspect::pods;

/// Looks whether the store can be read.
pub fn check(run: &Reconcile<'_>, applier: &mut Applier) {
    let dir = &run.settings.cni.ipam_dir;
    if let Err(error) = pods::folder(dir) {
        applier.store_failed(dir, &error);
    }
}
