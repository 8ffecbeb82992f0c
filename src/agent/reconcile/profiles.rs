//! Keeps what the plugin goes by for profiles of pods, and notices when the ports of running pods need others.

use std::collections::{BTreeMap, BTreeSet};

use crate::agent::applier::Applier;
use crate::agent::reconcile::policy::CachedPolicy;
use crate::agent::reconcile::{Reconcile, port_queues, shaper};
use crate::agent::trigger::Scope;
use crate::inspect::port_profiles;
use crate::net::gather::Gather;
use crate::net::{IfName, Object};
use crate::os::files;
use crate::plan::profiles::{PortProfiles, classes, guards_differ, host_end, port_profiles, shape};

/// What was found out by earlier reconciles.
#[derive(Debug, Default)]
pub struct CachedProfiles {
    /// As they are in the file; `None`: it has not been read.
    written: Option<PortProfiles>,
    /// Of the pods that were known then.
    ports: BTreeSet<IfName>,
    /// Guards of running pods do otherwise than their profiles say.
    is_stale: bool,
    /// No pod has a limit any longer, and the device is still there for guards that lead to it.
    is_device_unused: bool,
}

impl CachedProfiles {
    /// Those in force.
    pub fn in_force(&self) -> PortProfiles {
        self.written.clone().unwrap_or_default()
    }

    /// Guards of running pods are to be looked at, once.
    pub fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.is_stale)
    }

    /// Removes the device if no pod needs it, once guards have been looked at.
    pub fn remove_unused_device(&mut self, run: &Reconcile<'_>, applier: &mut Applier) {
        if std::mem::take(&mut self.is_device_unused) {
            shaper::remove(run, applier);
        }
    }
}

/// Writes what new pods begin with, before their plugins are answered. While policies are not known, those of the
/// agent's earlier life hold.
pub fn reconcile(
    run: &Reconcile<'_>,
    policy: &CachedPolicy,
    cache: &mut CachedProfiles,
    applier: &mut Applier,
) {
    let folder = &run.settings.cni.ipam_dir;
    let before = cache.written.get_or_insert_with(|| port_profiles::read(folder));
    let Some(mut wanted) = wanted(run, policy) else { return };
    if wanted.values().any(|it| it.profile.egress.is_some()) {
        cache.is_device_unused = false;
        limit(run, before, &mut wanted, applier);
    } else {
        cache.is_device_unused |= unlimit(run, before, applier);
    }
    port_queues::reconcile(run, before, &wanted, applier);
    if *before == wanted && wanted.is_empty() {
        return cache.ports.clear();
    }
    // The plugin looks after those of new pods.
    let present = policy.pods.iter().flat_map(|pods| pods.iter()).map(|pod| host_end(pod));
    let present: BTreeSet<IfName> = present.gather();
    let running: BTreeSet<IfName> = match cache.ports.is_empty() {
        true => present.clone(),
        false => present.intersection(&cache.ports).cloned().gather(),
    };
    cache.is_stale |= guards_differ(before, &wanted, &running);
    cache.ports = present;
    if *before == wanted || applier.is_dry() {
        return;
    }
    let file = port_profiles::path(folder);
    let written = match serde_json::to_vec(&wanted) {
        Ok(text) if !wanted.is_empty() => files::replace(&file, &text, 0o600),
        _ => files::remove(&file),
    };
    match written {
        Ok(()) => cache.written = Some(wanted),
        Err(error) => applier.inspect_failed(Object::File("profiles of pods", file), error),
    }
}

/// Keeps the classes of ports with a limit; where there can be none, the ports have no limit.
fn limit(
    run: &Reconcile<'_>,
    before: &PortProfiles,
    wanted: &mut PortProfiles,
    applier: &mut Applier,
) {
    if let Some(device) = shaper::device(run, applier) {
        shape(wanted, before, device);
        shaper::classes(run, device, &classes(wanted), applier);
    }
}

/// No port has a limit. True if the device may be there.
fn unlimit(run: &Reconcile<'_>, before: &PortProfiles, applier: &mut Applier) -> bool {
    let shaped = before.values().find_map(|it| it.shaped);
    if let Some(shaped) = shaped {
        // Guards lead there for a moment: without a class packets pass at once.
        shaper::classes(run, shaped.device, &BTreeMap::new(), applier);
    }
    shaped.is_some() || run.scope == Scope::ALL
}

/// `None`: not known yet.
fn wanted(run: &Reconcile<'_>, policy: &CachedPolicy) -> Option<PortProfiles> {
    if run.settings.policy.is_none() {
        return Some(PortProfiles::new());
    }
    let known = run.policies?.known.as_ref()?;
    policy.pods.as_ref()?;
    let pods = policy.described.iter().map(|(pod, endpoint)| (pod, &**endpoint));
    Some(port_profiles(&known.profiles, pods))
}
