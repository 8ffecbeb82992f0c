//! What a session writes, apart from the claim.

use tokio::time::timeout;

use super::{RETRY, Session};
use crate::lease::claim::{self, python};
use crate::lease::identity::Lease;
use crate::lease::records::Key;
use crate::lease::registry::error::EtcdError;
use crate::lease::registry::{Update, random};
use crate::lease::restore;
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

impl<P: FnMut(Update)> Session<'_, P> {
    /// Writes the settings of the network, unless another host does.
    pub(super) async fn found_network(&self, found: &Snapshot) -> Result<(), EtcdError> {
        let network = &self.own.network;
        let key = network.key(&Key::Config);
        let mut transaction = Transaction::default();
        transaction.unchanged(&key, found.modified(&network.roots, &Key::Config));
        transaction.put(key, network.config(&random::mark()).to_json());
        self.etcd.commit("write the settings of the network", &transaction).await.map(drop)
    }

    /// Puts the sign of life, as soon as there is an etcd lease for it.
    pub(super) async fn show_life(&mut self, found: &Snapshot) -> Result<(), EtcdError> {
        let kept = *self.kept.borrow_and_update();
        if let Some(lease) = kept {
            let transaction = claim::show_life(found, &self.own, self.since, lease);
            match self.etcd.commit("write the sign of life", &transaction).await {
                Ok(true) => self.shown_with = Some(lease),
                Ok(false) => {}
                Err(EtcdError::NoLease(_)) => self.await_lease().await,
                Err(error) => return Err(error),
            }
        } else {
            self.await_lease().await;
        }
        Ok(())
    }

    /// Waits for another etcd lease, but not for ever.
    async fn await_lease(&mut self) {
        // Whether it came is seen when it is used.
        drop(timeout(RETRY, self.kept.changed()).await);
    }

    /// Gives a fresh subnet back if a host of the Python agent took it too; says whether it did.
    pub(super) async fn give_way(
        &mut self,
        found: &Snapshot,
        fresh: &Lease,
    ) -> Result<bool, EtcdError> {
        let Some(other) = python::taken_by(found, &self.own, fresh) else { return Ok(false) };
        log::warn!("host {other} of the Python agent took this host's number: taking another");
        self.own.ticket = None;
        let transaction = claim::release(found, &self.own, fresh);
        self.etcd.commit("give a subnet back", &transaction).await?;
        Ok(true)
    }

    /// Puts back what etcd lost, and marks it as rebuilt.
    pub(super) async fn put_back(&mut self, found: &Snapshot) -> Result<(), EtcdError> {
        let Some(known) = self.known.clone() else { return Ok(()) };
        let network = &self.own.network;
        let batches = restore::transactions(&known, found, network);
        let hosts: usize = batches.iter().map(|batch| batch.writes.len()).sum();
        log::warn!("etcd lost its data: putting back {hosts} hosts as of {}", known.revision);
        for batch in &batches {
            match self.etcd.commit("put back a lost host", batch).await {
                Ok(_) => {}
                Err(EtcdError::Denied(why)) => {
                    log::warn!("{why}; this host remembers the others until they return");
                    self.absent = Some(Snapshot::clone(&known));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let ours = network.config("");
        let mark = restore::mark(&known, found, &ours, &random::mark(), &network.roots);
        match self.etcd.commit("mark etcd as rebuilt", &mark).await {
            Ok(_) => Ok(()),
            Err(EtcdError::Denied(why)) if found.config.is_some() => {
                log::warn!("{why}");
                self.known = None;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// What is published of `found`: with the hosts that are only remembered. Puts the sign of life
    /// if it is missing, but does not depend on it.
    pub(super) async fn complete(&mut self, found: Snapshot) -> Snapshot {
        let (own, network) = (&self.own.identity.name, &self.own.network);
        let found = match &mut self.absent {
            Some(absent) => {
                *absent = restore::still_absent(absent, &found);
                restore::remembering(absent, found, own, network)
            }
            None => found,
        };
        if !self.own.shown || !found.alive.contains_key(own) {
            let kept = *self.kept.borrow_and_update();
            if let Some(lease) = kept {
                let transaction = claim::show_life(&found, &self.own, self.since, lease);
                match self.etcd.commit("write the sign of life", &transaction).await {
                    Ok(_) => self.shown_with = Some(lease),
                    Err(error) => log::warn!("{error}"),
                }
            }
        }
        found
    }
}
