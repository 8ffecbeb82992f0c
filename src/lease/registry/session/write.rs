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
    /// Writes, and takes what was written into `found`; whether `found` was still true.
    pub(super) async fn commit(
        &self,
        what: &str,
        transaction: &Transaction,
        found: &mut Snapshot,
    ) -> Result<bool, EtcdError> {
        let written = self.etcd.commit(what, transaction).await?;
        if let Some(revision) = written {
            found.written(&self.own.network.roots, transaction, revision);
        }
        Ok(written.is_some())
    }

    /// Writes the settings of the network, unless another host does.
    pub(super) async fn found_network(&self, found: &mut Snapshot) -> Result<bool, EtcdError> {
        let key = self.own.network.key(&Key::Config);
        let mut transaction = Transaction::default();
        transaction.unchanged(&key, 0);
        transaction.put(key, self.own.network.config(&random::mark()).to_json());
        self.commit("write the settings of the network", &transaction, found).await
    }

    /// Puts the sign of life, if there is an etcd lease for it; whether `found` was still true.
    pub(super) async fn show_life(&mut self, found: &mut Snapshot) -> Result<bool, EtcdError> {
        let kept = *self.kept.borrow_and_update();
        let Some(lease) = kept else {
            self.await_lease().await;
            return Ok(true);
        };
        let Some(transaction) = claim::show_life(found, &self.own, self.since, lease) else {
            return Ok(true);
        };
        match self.commit("write the sign of life", &transaction, found).await {
            Ok(true) => {
                self.shown_with = Some(lease);
                Ok(true)
            }
            Err(EtcdError::NoLease(_)) => {
                self.await_lease().await;
                Ok(true)
            }
            other => other,
        }
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
        log::warn!("etcd lost its data: putting back what it had at revision {}", known.revision);
        for batch in restore::transactions(&known, found, network) {
            match self.etcd.commit("put back lost hosts", &batch).await {
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
    pub(super) async fn complete(&mut self, mut found: Snapshot) -> Snapshot {
        if (!self.own.shown || !found.alive.contains_key(&self.own.identity.name))
            && let Err(error) = self.show_life(&mut found).await
        {
            log::warn!("{error}");
        }
        let (own, network) = (&self.own.identity.name, &self.own.network);
        match &mut self.absent {
            Some(absent) => {
                *absent = restore::still_absent(absent, &found);
                restore::remembering(absent, found, own, network)
            }
            None => found,
        }
    }
}
