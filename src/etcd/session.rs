//! Carries out the commands of the session state machine, and watches etcd in between.

mod crowd;
mod follow;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnetwork::IpNetwork;
use tokio::sync::{oneshot, watch as latest};
use tokio::time::{Instant, sleep, timeout};

use crate::etcd::client::Etcd;
use crate::etcd::contact::Contact;
use crate::etcd::reports::{self, Reports};
use crate::etcd::settings::{EtcdSetup, EtcdStart};
use crate::etcd::update::Update;
use crate::etcd::{files, liveness, pod_answers, survivors, test_answers};
use crate::lease::EtcdError;
use crate::lease::growth;
use crate::lease::session::{Command, Event, Found, Pause, SessionExit, SessionMachine, Settled};
use crate::lease::tenant_pools::{NetworkReader, TenantPools};
use crate::lease::{HostAttributes, LeaseError, Network, Snapshot};
use crate::net::{FailureReason, PerFamily};
use crate::os::random;

/// Longest time between two attempts while etcd does not answer: much shorter than the wait on an empty etcd, as a survivor
/// of a loss of data puts the keys back before a new host takes one of the subnets.
const RETRY: Duration = Duration::from_millis(500);

/// Hosts that read again at once after an interruption; more of them take up to 1 ms each longer.
const AT_ONCE: usize = 100;

/// Wait before a fresh subnet is used if there are hosts of the Python agent, which take a number and
/// write their key in two steps.
const PROBATION: Duration = Duration::from_secs(2);

/// How long an agent that was asked may take to show that it lives: in the boot of the one that asks, and
/// otherwise. Every further window is twice as long, and ends early with the alive key, which is read every
/// [`ANSWER`].
const ANSWER_SAME_BOOT: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(1);

/// Time between two looks of the agent of a copied machine.
const COPY: Duration = Duration::from_secs(20);

/// Longest time before another attempt after a lost race; doubled for each one lost, six times.
const LOST_RACE: Duration = Duration::from_millis(10);

/// How long revoking the etcd lease may take at the end.
pub const STOP_WITHIN: Duration = Duration::from_secs(1);

/// What a session shares with the agent while it runs.
pub struct EtcdInputs {
    pub setup: latest::Receiver<EtcdSetup>,
    pub attributes: latest::Receiver<HostAttributes>,
    pub vacated: latest::Receiver<PerFamily<IpNetwork>>,
    pub contact: Arc<Contact>,
    pub reports: Arc<Reports>,
}

/// Runs until `stopped` or a fatal error.
pub async fn run(
    start: EtcdStart,
    inputs: EtcdInputs,
    stopped: &mut oneshot::Receiver<()>,
    publish: impl FnMut(Update),
) {
    let publish = RefCell::new(publish);
    let report = |update| (publish.borrow_mut())(update);
    let EtcdStart { etcd, network, identity, attributes, saved, read_networks, follows_networks } =
        start;
    let etcd = Etcd::new(etcd, network.roots.clone());
    let (kept_alive, etcd_lease) = latest::channel(None);
    let (name, since) = (identity.name.clone(), SystemTime::now());
    let (contact, shared) = (Arc::clone(&inputs.contact), Arc::clone(&inputs.reports));
    let (setup, lease_setup) = (inputs.setup.clone(), inputs.setup.clone());
    let session = Session {
        etcd: &etcd,
        machine: SessionMachine::new(identity, attributes, network, saved, since, random::mark()),
        trouble: None,
        endpoint: None,
        failures: BTreeSet::new(),
        etcd_lease: etcd_lease.clone(),
        read_networks,
        follows_networks,
        inputs,
        publish: report,
    };
    // Changed settings apply before the next request.
    tokio::select! { biased;
        _ = follow_setup(&etcd, setup) => {}
        () = session.run() => {}
        _ = liveness::keep(&etcd, kept_alive, lease_setup, &contact, report) => {}
        _ = files::follow(&etcd, report) => {}
        _ = reports::serve(&etcd, &shared, &name, etcd_lease.clone()) => {}
        _ = pod_answers::serve(&etcd, &shared.pods, &name, &etcd_lease) => {}
        _ = test_answers::serve(&etcd, &shared.tests, &name, &etcd_lease) => {}
        _ = stopped => {}
    }
    let lease = *etcd_lease.borrow();
    if let Some(lease) = lease
        && let Ok(Err(error)) = timeout(STOP_WITHIN, etcd.revoke(lease)).await
    {
        log::debug!("{error}");
    }
}

/// Applies changed settings.
async fn follow_setup(etcd: &Etcd, mut setup: latest::Receiver<EtcdSetup>) -> Infallible {
    setup.mark_unchanged();
    while setup.changed().await.is_ok() {
        etcd.reconnect(setup.borrow_and_update().etcd.clone());
    }
    // The agent has ended, and `stopped` ends all of this.
    std::future::pending().await
}

struct Session<'a, P> {
    etcd: &'a Etcd,
    machine: SessionMachine,
    /// As published last.
    trouble: Option<LeaseError>,
    /// The member that answers, as published: a reload may lead to another one.
    endpoint: Option<String>,
    /// The reasons published since one answered: reasons that alternate are published once.
    failures: BTreeSet<FailureReason>,
    /// The etcd lease that is kept alive.
    etcd_lease: latest::Receiver<Option<i64>>,
    read_networks: NetworkReader,
    follows_networks: bool,
    inputs: EtcdInputs,
    publish: P,
}

impl<P: FnMut(Update)> Session<'_, P> {
    async fn run(mut self) {
        let mut attempts = 0;
        loop {
            let Err(exit) = self.serve(&mut attempts).await;
            match exit {
                // The key by which it asked shows the other agent that it is still there.
                SessionExit::Refused(LeaseError::HeldByCopy { .. })
                    if self.machine.lease().is_none() =>
                {
                    self.publish_connected();
                    sleep(random::jittered(COPY)).await;
                    continue;
                }
                SessionExit::Refused(error) if self.machine.lease().is_none() => {
                    return (self.publish)(Update::Fatal(error));
                }
                SessionExit::Refused(_) => {}
                SessionExit::Failed(error) => {
                    self.inputs.contact.failed(&error);
                    if let EtcdError::Refused(_) = error {
                        self.etcd.next_member();
                    }
                    self.publish_disconnected(error.into());
                }
            }
            attempts += 1;
            sleep(self.pause(attempts)).await;
        }
    }

    /// Serves until something breaks; `attempts` is reset once etcd has answered.
    async fn serve(&mut self, attempts: &mut u32) -> Result<Infallible, SessionExit> {
        loop {
            let Settled { lease, snapshot, behind } = self.settle().await?;
            let is_fresh = lease.is_some();
            *attempts = 0;
            self.publish_connected();
            if let Some(lease) = lease {
                (self.publish)(Update::Lease(lease));
            }
            self.publish_trouble();
            (self.publish)(Update::Snapshot(Arc::clone(&snapshot)));
            let behind = if is_fresh { behind } else { 0 };
            self.follow(Arc::unwrap_or_clone(snapshot), behind).await?;
        }
    }

    /// Reads and writes until there is nothing to write.
    async fn settle(&mut self) -> Result<Settled, SessionExit> {
        let mut command = self.machine.begin();
        loop {
            self.inputs.contact.beat.beat();
            if let Command::Follow(settled) = command {
                return Ok(settled);
            }
            let event = self.execute(command).await;
            let next = self.machine.next(event);
            self.machine.take_warnings().iter().for_each(|warning| log::warn!("{warning}"));
            // That it is over is published with the lease that ended it.
            if self.machine.trouble().is_some() {
                self.publish_trouble();
            }
            command = next?;
        }
    }

    async fn execute(&mut self, command: Command) -> Result<Event, EtcdError> {
        Ok(match command {
            Command::Read => Event::Found(Box::new(self.read().await?)),
            Command::ReadHosts => Event::FoundHosts(Box::new(self.etcd.read_hosts().await?)),
            Command::Commit { what, transaction } => {
                Event::Committed(self.etcd.commit(what, &transaction).await?)
            }
            Command::AllocateTicket => Event::TicketAllocated(self.etcd.allocate_ticket().await?),
            Command::Pause(pause) => {
                sleep(match pause {
                    Pause::Grace => {
                        let roots = &self.machine.claimant().network.roots;
                        survivors::wait(self.etcd, roots).await?;
                        return Ok(Event::Elapsed);
                    }
                    Pause::Probation => PROBATION,
                    Pause::Answer { same_boot: true, waits: 0, .. } => ANSWER_SAME_BOOT,
                    Pause::Answer { waits: 0, .. } => ANSWER,
                    Pause::Answer { waits, modified, .. } => {
                        self.await_answer(ANSWER * 2u32.pow(waits), modified).await?;
                        return Ok(Event::Elapsed);
                    }
                    Pause::LostRace(races) => random::up_to(LOST_RACE * 2u32.pow(races.min(6))),
                })
                .await;
                Event::Elapsed
            }
            Command::AwaitLease => {
                // The machine checks whether it came.
                drop(timeout(RETRY, self.etcd_lease.changed()).await);
                Event::LeaseKept(*self.etcd_lease.borrow_and_update())
            }
            Command::Follow(_) => Event::Elapsed,
        })
    }

    async fn read(&mut self) -> Result<Found, EtcdError> {
        let mut configured = self.inputs.setup.borrow_and_update().network.clone();
        let attributes = self.inputs.attributes.borrow_and_update().clone();
        let vacated = *self.inputs.vacated.borrow_and_update();
        let etcd_lease = *self.etcd_lease.borrow_and_update();
        let (snapshot, new_store_id) = (self.etcd.read().await?, random::mark());
        configured.tenants = self.read_tenants(&snapshot, &configured).await?;
        self.inputs.contact.received();
        Ok(Found { snapshot, configured, attributes, vacated, etcd_lease, new_store_id })
    }

    /// The networks of tenants, if the pool of the settings is to grow: not over one of them.
    async fn read_tenants(
        &self,
        found: &Snapshot,
        configured: &Network,
    ) -> Result<TenantPools, EtcdError> {
        if !growth::is_wanted(found, configured) {
            return Ok(TenantPools::default());
        }
        match self.etcd.tenant_pools(self.read_networks).await {
            Err(EtcdError::Denied(why)) => {
                let denied = self.follows_networks.then_some(why);
                Ok(TenantPools { denied, ..TenantPools::default() })
            }
            found => found,
        }
    }

    /// Waits for that long, or until the alive key of this host is no longer as at the revision `modified`.
    async fn await_answer(&self, long: Duration, modified: i64) -> Result<(), EtcdError> {
        let name = &self.machine.claimant().identity.name;
        let end = Instant::now() + long;
        while Instant::now() < end && self.etcd.alive_modified(name).await? == modified {
            self.inputs.contact.beat.beat();
            sleep(ANSWER.min(end.saturating_duration_since(Instant::now()))).await;
        }
        Ok(())
    }

    /// Wait after that many failed attempts.
    fn pause(&self, attempts: u32) -> Duration {
        self.spread() + random::jittered(RETRY.min(Duration::from_millis(50) * attempts * attempts))
    }

    /// Random wait, so that not all hosts read everything at once.
    fn spread(&self) -> Duration {
        random::up_to(self.most_spread())
    }

    fn most_spread(&self) -> Duration {
        let hosts = self.machine.last_known().map_or(0, |known| known.hosts.len());
        Duration::from_millis(hosts.saturating_sub(AT_ONCE) as u64)
    }

    fn publish_connected(&mut self) {
        let endpoint = self.etcd.endpoint();
        self.failures.clear();
        if self.endpoint.as_ref() != Some(&endpoint) {
            self.endpoint = Some(endpoint.clone());
            (self.publish)(Update::Connected { endpoint });
        }
    }

    fn publish_disconnected(&mut self, why: FailureReason) {
        self.endpoint = None;
        if self.failures.insert(why.clone()) {
            (self.publish)(Update::Disconnected { why });
        }
    }

    fn publish_trouble(&mut self) {
        if self.trouble.as_ref() != self.machine.trouble() {
            self.trouble = self.machine.trouble().cloned();
            (self.publish)(Update::Trouble(self.trouble.clone()));
        }
    }
}
