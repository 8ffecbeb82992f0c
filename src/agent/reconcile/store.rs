//! The folder of the IPAM store, which the plugin keeps. Where it cannot be used no pod starts, and little
//! of this host can be looked at.

use std::time::Duration;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, host_ports};
use crate::inspect::pods;
use crate::ipam::StoreError;

/// Looks whether the store can be read, and releases what ended while it was locked.
pub fn check(run: &Reconcile<'_>, applier: &mut Applier) {
    let dir = &run.settings.cni.ipam_dir;
    match pods::folder(dir) {
        Err(error) => applier.store_failed(dir, &error),
        Ok(_) if applier.is_dry() => {}
        Ok(networks) => networks.into_iter().flatten().flatten().for_each(|network| {
            let is_folder = network.file_type().is_ok_and(|kind| kind.is_dir());
            if let Some(name) = network.file_name().to_str().filter(|_| is_folder) {
                release_ended(run, name, applier);
            }
        }),
    }
}

/// Every holder of the lock does that. Calls of the plugin may be long in coming.
fn release_ended(run: &Reconcile<'_>, network: &str, applier: &mut Applier) {
    let Ok(store) = pods::store(run.settings, network) else { return };
    let ended = store.ended().unwrap_or_default();
    if ended.is_empty() {
        return;
    }
    host_ports::close_ended(run, &ended, applier);
    match store.lock(Duration::ZERO) {
        // It is held still: the next look tries again, and `status` shows what waits.
        Ok(_) | Err(StoreError::LockTimeout { .. }) => {}
        Err(error) => log::warn!("attachments that have ended are not released: {error}"),
    }
}
