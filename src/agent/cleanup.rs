//! Removes what the agent made: after a reload, and when it stops with CLEANUP_ON_STOP.

use std::path::Path;

use crate::agent::applier::Applier;
use crate::agent::reconcile;
use crate::inspect::Kernel;
use crate::net::Object;
use crate::os::files;
use crate::plan::{Describe, Line};
use crate::settings::Settings;

struct Configuration<'a>(&'a Path);

impl Describe for Configuration<'_> {
    fn line(&self) -> Line {
        Line::removed(Object::Configuration(self.0.to_owned()))
    }
}

struct Bridge<'a>(&'a Settings);

impl Describe for Bridge<'_> {
    fn line(&self) -> Line {
        Line::removed(Object::Bridge(self.0.bridge.clone()))
    }
}

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
    applier.apply(&Configuration(config), || files::remove(config));
    reconcile::routes::remove_all(&kernel.rtnl, &mut applier);
    reconcile::tunnel::remove_all(&kernel.rtnl, &mut applier);
    reconcile::firewall::remove_all(kernel, settings, &mut applier);
    reconcile::guard::remove(kernel, settings, &mut applier);
    applier.apply(&Bridge(settings), || reconcile::bridge::remove(&kernel.rtnl, &settings.bridge));
    applier
}
