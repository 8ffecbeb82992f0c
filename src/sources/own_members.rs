//! What this host says of its own members of groups: its keys in etcd as they should be.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch as latest};
use tokio::time::{Instant, sleep};

use crate::etcd::Etcd;
use crate::lease::EtcdError;
use crate::net::gather::Gather;
use crate::net::{FailureReason, Object, Problem, ProblemKind};
use crate::policy::held::{PodOwners, Published};
use crate::sources::exchanged::{
    ExchangeInputs, ExchangeStart, Exchanged, HOSTS_LIMIT, LEARNED, retry,
};
use crate::sources::publication::{Publication, PublicationChanges};
use crate::sources::published::{self, PublishedAt};

/// Rest between two writes.
const REST: Duration = Duration::from_millis(100);

/// Time between two looks at the keys.
const LOOK: Duration = Duration::from_secs(60);

/// The fix of a failure that has none of its own.
const UNPUBLISHED: &str = "humanz-agent doctor # says whether the disk is full; else check the certificates and permissions for etcd";

/// This host's keys in etcd.
struct PublishedKeys {
    /// There were some before.
    had_some: bool,
    has_changed: bool,
}

pub struct Writer<'a, P> {
    etcd: &'a Etcd,
    start: &'a ExchangeStart,
    publish: &'a P,
    at: PublishedAt,
    /// As it is noted on disk.
    published: Published,
    /// Of what was sent last.
    generation: u64,
    noted: Option<Arc<PodOwners>>,
    /// What was said last of what etcd has.
    said: Option<Arc<PodOwners>>,
    /// From when on other hosts learn of each change at once; `None` while etcd is away.
    received_at: Option<Instant>,
    /// etcd was asked before, in this life of the agent or in one that noted what it sent.
    was_tried: bool,
    fault: Option<FailureReason>,
}

impl<'a, P: Fn(Exchanged)> Writer<'a, P> {
    pub fn new(etcd: &'a Etcd, start: &'a ExchangeStart, publish: &'a P) -> Self {
        let at = PublishedAt::of(&start.etcd, &start.roots, &start.host);
        let (published, generation) = published::read(&start.state_dir, &at);
        let (noted, said, fault, received_at) = Default::default();
        let was_tried = !published.addresses().is_empty();
        Writer {
            etcd,
            start,
            publish,
            at,
            published,
            generation,
            noted,
            said,
            received_at,
            was_tried,
            fault,
        }
    }

    /// Keeps the keys as they should be, forever.
    pub async fn run(
        &mut self,
        mut inputs: latest::Receiver<ExchangeInputs>,
        returned: &Notify,
    ) -> Infallible {
        let mut failures = 0;
        loop {
            let now = inputs.borrow_and_update().clone();
            let result = self.write(&now).await;
            failures = if result.is_ok() { 0 } else { failures + 1 };
            if let Err(error) = &result {
                log::debug!("publish members of groups: {error}");
                self.received_at = None;
            }
            self.complain(result.err());
            sleep(REST).await;
            let until_received =
                self.received_at.map(|at| at.saturating_duration_since(Instant::now()));
            let wait = match until_received.filter(|wait| !wait.is_zero()) {
                _ if failures > 0 => retry(failures),
                Some(wait) => wait.min(LOOK),
                None => LOOK,
            };
            // Other inputs, or a look at what is there: etcd may be back with older data.
            tokio::select! {
                () = sleep(wait) => {}
                _ = inputs.changed() => {}
                () = returned.notified() => self.received_at = None,
            }
        }
    }

    async fn write(&mut self, inputs: &ExchangeInputs) -> Result<(), EtcdError> {
        let Some(record) = inputs.record else { return Ok(()) };
        let owners = &inputs.owners;
        let was_tried = std::mem::replace(&mut self.was_tried, true);
        let PublishedKeys { had_some, has_changed } = self.publish_own(inputs, record).await?;
        if has_changed {
            // Other hosts that follow etcd have it in force by then.
            sleep(REST).await;
        }
        let now = Instant::now();
        // What was never there is not known to any host.
        let wait = if was_tried || had_some { LEARNED } else { Duration::ZERO };
        let is_received = *self.received_at.get_or_insert(now + wait) <= now;
        let is_said = self.said.as_ref().is_some_and(|said| Arc::ptr_eq(said, owners));
        if is_received && !is_said {
            // Noted before a pod is released for it: else the next start would hold that pod again.
            let mut published = self.published.clone();
            published.commit(owners);
            self.note(&published)?;
            self.published = published;
            (self.publish)(Exchanged::Published(Arc::clone(owners)));
            self.said = Some(Arc::clone(owners));
        }
        Ok(())
    }

    async fn publish_own(
        &mut self,
        inputs: &ExchangeInputs,
        record: i64,
    ) -> Result<PublishedKeys, EtcdError> {
        let ExchangeStart { roots, host, .. } = self.start;
        let publication = Publication::new(roots, host, &inputs.own, record);
        let found = self.found().await?;
        let generation = roots.members_generation(host);
        let had_some = found.keys().any(|key| *key != generation);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let PublicationChanges { generation, transactions } =
            publication.changes(found, self.generation, now);
        self.generation = generation.unwrap_or(self.generation);
        self.note_sent(&inputs.owners)?;
        let has_changed = !transactions.is_empty();
        for transaction in transactions {
            if self.etcd.commit("publish members of groups", &transaction).await?.is_none() {
                return Err(EtcdError::Refused("this host's record was changed".into()));
            }
        }
        Ok(PublishedKeys { had_some, has_changed })
    }

    /// This host's keys in etcd with their values.
    async fn found(&self) -> Result<BTreeMap<String, Vec<u8>>, EtcdError> {
        let ExchangeStart { roots, host, .. } = self.start;
        let (keys, _) = self.etcd.keys(&[(roots.members_of(host), HOSTS_LIMIT)]).await?;
        let keys: Vec<String> = keys
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|key| String::from_utf8(key).ok())
            .collect();
        let values = self.etcd.values(&keys).await?;
        let found = keys.into_iter().zip(values);
        Ok(found.filter_map(|(key, value)| Some((key, value?.bytes))).gather())
    }

    /// Before `owners` are sent. The generation is noted with them: one that was not is in etcd, or below the clock.
    fn note_sent(&mut self, owners: &Arc<PodOwners>) -> Result<(), EtcdError> {
        if !self.noted.as_ref().is_some_and(|noted| Arc::ptr_eq(noted, owners)) {
            self.published.send(owners);
            self.note(&self.published)?;
            self.noted = Some(Arc::clone(owners));
        }
        Ok(())
    }

    fn note(&self, published: &Published) -> Result<(), EtcdError> {
        let noted = published::write(&self.start.state_dir, &self.at, published, self.generation);
        noted.map_err(|error| EtcdError::Refused(format!("note what is published: {error}").into()))
    }

    fn complain(&mut self, error: Option<EtcdError>) {
        let is_away = |error: &EtcdError| matches!(error, EtcdError::Unreachable(_));
        let fault = error.filter(|error| !is_away(error)).map(FailureReason::from);
        if fault != self.fault {
            self.fault.clone_from(&fault);
            (self.publish)(Exchanged::NotPublished(fault.map(unpublished)));
        }
    }
}

fn unpublished(why: FailureReason) -> Problem {
    let mut why = why.at("not published; other hosts do not know new pods");
    why.fix.get_or_insert_with(|| UNPUBLISHED.to_owned());
    Problem::of_failure(ProblemKind::Etcd, Object::named("members of this host"), why)
}
