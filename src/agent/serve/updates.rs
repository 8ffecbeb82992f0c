//! What the registry says: this host's subnets, all hosts, and how etcd is.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::agent::active_problems::ProblemSource;
use crate::agent::registry::{Registry, refused};
use crate::agent::serve::agent::Agent;
use crate::agent::serve::closed_subnets::Opens;
use crate::agent::trigger::Scope;
use crate::etcd::Update;
use crate::lease::snapshot::Snapshot;
use crate::lease::{Lease, LeaseError, Resolved, peers};
use crate::net::FailureReason;
use crate::net::gather::Gather;
use crate::settings::exit::Exit;

impl Agent {
    /// Where to look because of `update`.
    ///
    /// # Errors
    /// This host cannot have a subnet and has none.
    pub(super) fn handle_update(&mut self, update: Update) -> Result<Scope, Exit> {
        let store = self.registry.store();
        match update {
            Update::Connected { endpoint } => {
                log::info!("{store} answers: {endpoint}");
                self.state.etcd.endpoint = Some(endpoint);
                self.note_down(None);
            }
            Update::Disconnected { why } => self.note_down(Some(why)),
            Update::Refused(why) => {
                self.state.etcd.refused = why;
                self.note_store();
            }
            Update::Trouble(None) => {
                log::info!("{store} agrees with this host again");
                self.state.etcd.trouble = None;
                // No problem is left only once pods can start.
                self.follow_dispute();
                self.note_store();
            }
            Update::Files { problems, until } => {
                self.shared.problems.set(ProblemSource::StoreFiles, problems);
                self.state.etcd.certificate_until = until;
            }
            Update::Fatal(error) if self.state.subnets.is_none() => return Err(refused(&error)),
            Update::Trouble(Some(error)) | Update::Fatal(error) => self.dispute(error),
            Update::Lease(lease) => {
                self.take_lease(&lease);
                return Ok(Scope::ALL);
            }
            Update::Snapshot(snapshot) => {
                self.apply_snapshot(snapshot);
                let received = self.registry.contact().and_then(|contact| contact.take_changed());
                self.state.change_received_at = self.state.change_received_at.or(received);
                let first = !std::mem::replace(&mut self.state.in_sync, true);
                return Ok(if first { Scope::ALL } else { Scope::ROUTES.and(Scope::FIREWALL) });
            }
        }
        Ok(Scope::default())
    }

    /// The store contradicts what this host serves.
    fn dispute(&mut self, error: LeaseError) {
        self.release_if_copied(&error);
        self.state.etcd.trouble = Some(error);
        self.note_store();
        self.follow_dispute();
    }

    /// Before there is a lease: the last known good state may not be this host's.
    fn release_if_copied(&mut self, error: &LeaseError) {
        if let (None, Registry::Leased(leased)) = (&self.state.subnets, &mut self.registry) {
            leased.down = Some(error.with_fix());
            leased.held_back = leased.held_back.after(error);
            // The state of a copied machine is the other one's.
            leased.saved = leased.saved.take().filter(|_| !error.is_of_copy());
        }
    }

    fn take_lease(&mut self, lease: &Lease) {
        if self.state.subnets != Some(lease.subnets) {
            let subnets = lease.subnets.iter().map(ToString::to_string);
            log::info!("this host's subnet: {}", subnets.collect::<Vec<_>>().join(", "));
            self.state.since = Some(SystemTime::now());
        }
        self.state.subnets = Some(lease.subnets);
        self.state.closed.opens = Opens::Own;
        self.follow_dispute();
    }

    fn note_down(&mut self, why: Option<FailureReason>) {
        if why.is_some() {
            self.state.etcd.endpoint = None;
        }
        self.state.etcd.down.clone_from(&why);
        self.note_store();
        if let Registry::Leased(leased) = &mut self.registry {
            // A failed call does not decide whether this machine is a copy.
            leased.down = why.map(|why| why.to_string());
        }
    }

    fn note_store(&self) {
        let found = self.state.etcd.problems(&self.settings.source);
        self.shared.problems.set(ProblemSource::Store, found);
    }

    /// Computes the other hosts anew from everything that is known of them.
    fn apply_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        let Some(subnets) = self.state.subnets else { return };
        self.follow_pools(&snapshot);
        self.follow_addresses(&snapshot);
        let mut peers = peers(&snapshot, &self.name, &subnets, &self.settings.pools);
        peers.set_blocks(&self.state.networks.received.others);
        let python = peers.by_name.iter().filter(|(_, peer)| peer.python);
        self.names.want(python.map(|(name, _)| name.clone()).gather());
        self.shared.problems.set(ProblemSource::Records, snapshot.problems());
        self.state.snapshot = Some(snapshot);
        self.state.peers = Some(Arc::new(peers));
        self.keep_for_next_start();
    }

    /// Takes over what the names of hosts resolve to.
    pub(super) fn apply_names(&mut self, resolved: Resolved) {
        self.state.resolved = resolved;
        self.keep_for_next_start();
    }

    /// Keeps what is known for the next start.
    fn keep_for_next_start(&mut self) {
        if let (Some(subnets), Some(snapshot)) = (self.state.subnets, &self.state.snapshot) {
            self.registry.save_later(subnets, snapshot, &self.state.resolved);
        }
    }

    /// Each host that publishes no address has one by its name.
    pub(super) fn has_all_addresses(&self) -> bool {
        let peers = self.state.peers.iter().flat_map(|peers| &peers.by_name);
        let mut python = peers.filter(|(_, peer)| peer.python);
        python.all(|(name, _)| self.state.resolved.get(name).is_some_and(|it| !it.is_empty()))
    }

    /// Serves what the host knew last if no store has answered in time.
    pub(super) fn use_last_known_good(&mut self) {
        let waiting = self.state.peers.is_none();
        let ended = self.registry.patience_ends().is_some_and(|end| end <= Instant::now());
        if waiting
            && ended
            && let Some((known, down)) = self.registry.last_known_good()
        {
            log::warn!(
                "{}: {down}; serving the last known good state ({} hosts as of revision {})",
                self.registry.store(),
                known.snapshot.hosts.len(),
                known.snapshot.revision
            );
            if matches!(self.state.etcd.trouble, Some(LeaseError::MayBeCopy { .. })) {
                self.state.closed.note_no_copy();
            }
            self.state.etcd.trouble = self.registry.dispute(&self.settings, &known);
            self.note_store();
            self.state.subnets = Some(known.lease.subnets);
            self.follow_dispute();
            self.state.since = Some(SystemTime::now());
            self.apply_snapshot(known.snapshot);
        }
    }
}
