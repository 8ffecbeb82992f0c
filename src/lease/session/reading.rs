//! Pure. Everything was read: which network it is, and what comes before the claim.

use std::sync::Arc;

use crate::lease::claim::refusal;
use crate::lease::etcd_error::EtcdError;
use crate::lease::growth;
use crate::lease::identity::Network;
use crate::lease::known_config;
use crate::lease::records::{ClusterConfig, Key};
use crate::lease::restore::{self, Continuity, Restoration};
use crate::lease::session::machine::{SessionMachine, State};
use crate::lease::session::messages::{Command, Found, Pause, SessionExit};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

/// Hosts that are back after their removal and are reported.
const REPORTED: usize = 20;

impl SessionMachine {
    pub(super) fn consider(&mut self, found: Found) -> Result<Command, SessionExit> {
        let Found {
            snapshot: mut found,
            configured,
            attributes,
            vacated,
            etcd_lease,
            new_store_id,
        } = found;
        if let Some(why) = self.other_cluster(&found) {
            return Err(EtcdError::Refused(why.into()).into());
        }
        known_config::keep(&mut found, self.last_known.as_deref(), &configured);
        self.own.vacated = vacated;
        self.own.network = self.network(configured, &found);
        self.own.attributes = attributes;
        // The permission may have come.
        self.own.leaves_key_unclaimed = false;
        self.etcd_lease = etcd_lease;
        self.new_store_id = new_store_id;
        if let Some(known) = self.last_known.clone()
            && restore::continuity(&known, &found) != Continuity::Same
        {
            self.note_went_back(&known, &found);
        }
        let network = &self.own.network;
        let lost = self.last_known.clone();
        let lost = lost.filter(|known| restore::continuity(known, &found) == Continuity::Lost);
        if lost.is_none() && found.modified(&network.roots, &Key::Config) == 0 {
            return Ok(self.configure(found));
        }
        self.progress.waited = false;
        match lost.filter(|_| refusal::config(&found, network).is_none()) {
            Some(known) => Ok(self.put_back(known, &found)),
            None => self.claim(found),
        }
    }

    /// The network settings were not written yet: after a pause, in which another host may.
    fn configure(&mut self, found: Snapshot) -> Command {
        if !std::mem::replace(&mut self.progress.waited, true) {
            return self.pause(Pause::Grace);
        }
        let settings = self.settings();
        let configuring = |transaction| State::Configuring(found, transaction);
        self.commit("write the network settings", settings, configuring)
    }

    /// etcd lost what this host `known`.
    fn put_back(&mut self, known: Arc<Snapshot>, found: &Snapshot) -> Command {
        let revision = known.revision;
        self.warnings
            .push(format!("etcd lost its data: putting back its content of revision {revision}"));
        let (rollback, id) = (self.rollback(&known), &self.new_store_id);
        let restoration = Restoration::new(known, found, &self.own.network, rollback, id);
        let back = restoration.brought_back.iter().take(REPORTED).map(|(removed, host)| {
            format!(
                "host {removed} had been removed and is back with an older snapshot of etcd: \
                 its subnet stays that of host {host}"
            )
        });
        self.warnings.extend(back);
        self.restore(Box::new(restoration))
    }

    /// Why `found` is not to be followed: the configured addresses lead to another etcd cluster, and nothing
    /// there is another network. One that was restored from a snapshot has another id, too, and an empty one
    /// has taken the place of one that lost its data.
    fn other_cluster(&self, found: &Snapshot) -> Option<String> {
        let known = self.last_known.as_deref()?;
        let (before, now) = (known.cluster?, found.cluster?);
        let network = known.config.as_ref().map(|config| &*config.value.id)?;
        let knows = |config: &ClusterConfig| {
            *config.id == *network
                || config.rebuilt_from.iter().any(|former| *former.id == *network)
        };
        let own = &self.own.identity;
        let is_empty = found.config.is_none() && found.hosts.is_empty() && found.nodes.is_empty();
        let is_ours = found.config.as_ref().is_some_and(|config| knows(&config.value))
            || found
                .nodes
                .get(&own.name)
                .is_some_and(|node| *node.value.machine_id == *own.machine_id);
        let is_other = before.addresses == now.addresses && before.id != now.id && now.id != 0;
        (is_other && !is_ours && !is_empty).then(|| {
            let key = self.own.network.key(&Key::Config);
            format!(
                "this is another etcd cluster (id {:x}, not {:x}) with another network; if it replaces \
                 the former one, put the network settings there under {key}, with the id {network}",
                now.id, before.id
            )
        })
    }

    /// Writes the network settings, unless another host does.
    fn settings(&self) -> Transaction {
        let key = self.own.network.key(&Key::Config);
        let mut transaction = Transaction::default();
        transaction.unchanged(&key, 0);
        transaction.put(key, self.own.network.config(&self.new_store_id).to_json());
        transaction
    }

    /// The `configured` network, with pools as wide as they have grown.
    fn network(&self, configured: Network, found: &Snapshot) -> Network {
        let mut pools = growth::followed(&configured.pools, &configured.limits, found);
        if let Some(last_known) = &self.last_known {
            pools = growth::followed(&pools, &configured.limits, last_known);
        }
        Network { pools, ..configured }
    }
}
