//! The reload: the settings file is read again, and what changed is carried out at once.

use std::time::Instant;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::run;
use crate::agent::reconcile_cache::ReconcileCache;
use crate::agent::trigger::Scope;
use crate::agent::{cleanup, dry_run, logger, notify};
use crate::inspect::host_state;
use crate::inspect::identity;
use crate::inspect::preflight;
use crate::lease::{Network, growth};
use crate::net::Problem;
use crate::settings::loader::LoadedSettings;
use crate::settings::reload::{self, ReloadPlan, SettingsView};
use crate::settings::{self, Settings, Source, invalid, values_only};

use crate::agent::serve::agent::Agent;

/// Settings that may be taken over.
pub(super) struct NewSettings {
    plan: ReloadPlan,
    settings: Settings,
}

impl Agent {
    /// Reads the settings again. With an invalid one nothing changes; otherwise what would
    /// change is logged, and the next reconcile, which is due at once, makes it so.
    pub(super) fn reload(&mut self) {
        log::info!("reload: reading the settings again");
        if self.state.ready {
            notify::reloading();
            self.state.reloading = true;
        }
        match self.new_settings() {
            Ok((new, loaded)) => {
                self.accept_settings();
                self.apply_settings(new, &loaded);
            }
            Err(faults) => {
                self.refuse_settings(faults);
                log::error!("reload: nothing is changed; the settings stay as they were");
            }
        }
        self.state.scope = Scope::ALL;
    }

    fn new_settings(&mut self) -> Result<(NewSettings, LoadedSettings), Vec<Problem>> {
        let loaded = self.loader.load(values_only)?;
        loaded.warnings.iter().for_each(|warning| log::warn!("reload: {warning}"));
        let plan = self.plan_settings(&loaded)?;
        plan.refusals.iter().for_each(|refusal| log::warn!("reload: {refusal}"));
        Ok((self.check_settings(plan)?, loaded))
    }

    /// What would become of these settings.
    ///
    /// # Errors
    /// This host would have no name.
    pub(super) fn plan_settings(
        &self,
        loaded: &LoadedSettings,
    ) -> Result<ReloadPlan, Vec<Problem>> {
        let name = identity::node_name(&loaded.settings)
            .map_err(|error| vec![invalid("NODE_NAME", "", error.why)])?;
        let found = self.state.snapshot.as_deref();
        let running =
            SettingsView { texts: &self.texts, settings: &self.settings, name: &self.name };
        let wanted = SettingsView { texts: &loaded.texts, settings: &loaded.settings, name: &name };
        Ok(reload::plan(&running, &wanted, found, &self.tenant_pools()))
    }

    /// The settings of `plan`.
    ///
    /// # Errors
    /// Every one that this host cannot be served with.
    pub(super) fn check_settings(&self, plan: ReloadPlan) -> Result<NewSettings, Vec<Problem>> {
        let found = self.state.snapshot.as_deref();
        let mut settings = settings::parse(&plan.texts, preflight::check)?;
        if plan.changes.iter().any(|change| change.variable == "NODE_IP") {
            let missing = preflight::missing_address(&settings.node_addresses, &self.kernel.rtnl);
            missing.map_or(Ok(()), |fault| Err(vec![fault]))?;
        }
        if let Some(found) = found {
            settings.pools = growth::followed(&settings.pools, &settings.limits, found);
            if matches!(settings.source, Source::Kubernetes(_))
                && settings.node_addresses.is_empty()
            {
                let rtnl = &self.kernel.rtnl;
                settings.node_addresses =
                    host_state::internal_addresses(rtnl, &settings, found, &self.name);
            }
        }
        Ok(NewSettings { plan, settings })
    }

    fn apply_settings(&mut self, new: NewSettings, loaded: &LoadedSettings) {
        let NewSettings { plan: ReloadPlan { texts, changes, .. }, settings } = new;
        changes.iter().for_each(|change| log::info!("reload: {change}"));
        if changes.is_empty() {
            log::info!("reload: no setting changes");
        }
        self.preview(&settings);
        logger::set(loaded.log.as_deref().unwrap_or(logger::USUAL));
        self.registry.set_up(&settings);
        if let Some(server) = &self.server {
            server.move_to(&settings);
        }
        self.shared.serve_with(texts.clone());
        self.texts = texts;
        self.state.superseded.get_or_insert_with(|| self.settings.clone());
        self.settings = settings;
        if let Some(found) = self.state.snapshot.clone() {
            self.hold_pools(&found);
        }
        self.state.policy_file_due = Some(Instant::now());
        self.want_policies();
        self.report_pools();
    }

    /// Logs what a reconcile with `settings` would change.
    fn preview(&self, settings: &Settings) {
        let Some(subnets) = self.state.subnets.filter(|_| self.state.peers.is_some()) else {
            return;
        };
        let run =
            Reconcile { settings, own_writes: None, ..self.input(&subnets, None, Scope::ALL) };
        let mut applier = Applier::new(true);
        if let (Source::Etcd { roots, .. }, Some(found)) = (&settings.source, &self.state.snapshot)
        {
            let tenants = self.tenant_pools();
            match dry_run::growth(found, &Network { tenants, ..settings.network(roots) }) {
                Ok(growth) => growth.iter().for_each(|line| log::info!("reload: {line}")),
                Err(error) => applier.failed(error.problem("pools")),
            }
        }
        run::run(&run, &mut ReconcileCache::default(), &mut applier);
        cleanup::remove_superseded(&self.settings, settings, &self.kernel, &mut applier);
        applier.lines().iter().for_each(|line| log::info!("reload: {line}"));
        applier.failures().iter().for_each(|failure| log::warn!("reload: ! {failure}"));
    }

    /// After a reconcile: removes what the settings before the reload had made and the present ones do
    /// not, and reports the end of the reload to the service manager.
    pub(super) fn conclude_reload(&mut self, whole: bool) {
        if whole && let Some(before) = self.state.superseded.take() {
            let mut applier = Applier::new(false);
            cleanup::remove_superseded(&before, &self.settings, &self.kernel, &mut applier);
            applier.failures().iter().for_each(|failure| log::error!("{failure}"));
        }
        if std::mem::take(&mut self.state.reloading) {
            self.publish();
            notify::ready(&self.state.status());
        }
    }
}
