//! Removes what the agent made: after a reload, and when it stops with CLEANUP_ON_STOP.

use crate::agent::applier::Applier;
use crate::agent::reconcile;
use crate::inspect::Kernel;
use crate::net::Object;
use crate::os::files;
use crate::plan::Line;
use crate::settings::Settings;

/// Removes what `before` had made and `now` does not replace: our rules in the chains of others. (A
/// CNI configuration that moved went with the reconcile.) The plugin stays: the DELs of pods still come to
/// it.
pub fn remove_superseded(
    before: &Settings,
    now: &Settings,
    kernel: &Kernel,
    applier: &mut Applier,
) {
    if before.manage_forward && !now.manage_forward {
        reconcile::firewall::leave_foreign(kernel, before, applier);
    }
}

/// Removes the CNI configuration first, so that no new pod is plugged in, then routes, tunnels,
/// firewall and bridge. The lease, the plugin and the state stay: DELs must go on working.
pub fn clean_up(settings: &Settings, kernel: &Kernel) -> Applier {
    let mut applier = Applier::new(false);
    let config = &settings.cni.config;
    let file = Line::removed(Object::Configuration(config.clone()));
    applier.apply(&file, || files::remove(config));
    reconcile::routes::remove_all(&kernel.rtnl, &mut applier);
    reconcile::tunnel::remove_all(&kernel.rtnl, &mut applier);
    // Its guard stays: a stop lets no clear text out.
    reconcile::encryption::remove_all(&kernel.rtnl, &mut applier);
    reconcile::firewall::remove_all(kernel, settings, &mut applier);
    reconcile::policy::remove(kernel, &mut applier);
    reconcile::guard::remove(kernel, settings, &mut applier);
    let bridge = Line::removed(Object::Bridge(settings.bridge.clone()));
    applier.apply(&bridge, || reconcile::bridge::remove(&kernel.rtnl, &settings.bridge));
    applier
}
