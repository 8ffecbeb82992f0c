//! The folder of the IPAM store, which the plugin keeps. Where it cannot be used no pod starts, and little
//! of this host can be looked at.

use std::fs;
use std::io::ErrorKind;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;

/// Looks whether the store can be read.
pub fn check(run: &Reconcile<'_>, applier: &mut Applier) {
    let dir = &run.settings.cni.ipam_dir;
    match fs::read_dir(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let what = format!("read {} (IPAM_DIR)", dir.display());
            applier.store_failed(dir, &anyhow::Error::from(error).context(what));
        }
        _ => {}
    }
}
