//! Follows the policies in etcd.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::etcd::{Etcd, EtcdSettings};
use crate::lease::EtcdError;
use crate::lease::records::Roots;
use crate::lease::snapshot::Raw;
use crate::net::{FailureReason, Object, Problem, ProblemKind};
use crate::os::event_loop::{self, EventLoop};
use crate::os::random;
use crate::policy::{ObjectSource, PolicySnapshot, Provider, SourceUpdate};
use crate::sources::known_values::KnownValues;
use crate::sources::ranges::WrittenValue;
use crate::sources::stored::{BYTES_LIMIT, OBJECTS_LIMIT, StoredPolicies};

/// Longest wait before another attempt after the first failure; doubled for each further one …
const RETRY: Duration = Duration::from_millis(200);

/// … up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Rest after an update, in multiples of the time that it took.
const REST: u32 = 3;

/// What to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoliciesStart {
    pub etcd: EtcdSettings,
    pub roots: Roots,
}

/// Starts following. `ruling`: the source of groups, networks and so on; `had_some`: policies of etcd are in force, so that an etcd without any has lost them.
/// `publish` is called from its thread and must not block for long.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn policies(
    start: PoliciesStart,
    ruling: ObjectSource,
    had_some: bool,
    publish: impl FnMut(SourceUpdate) + Send + 'static,
) -> io::Result<EventLoop> {
    EventLoop::spawn("policies", async move |stopped| {
        let etcd = Etcd::new(start.etcd.clone(), start.roots.clone());
        let range = start.roots.policies_range();
        let mut follower = PolicyFollower {
            etcd: &etcd,
            range,
            ruling,
            publish,
            stored: StoredPolicies::default(),
            values: KnownValues::default(),
            had_some,
            known: None,
            said: None,
        };
        tokio::select! {
            _ = stopped => {}
            never = follower.run() => match never {},
        }
    })
}

/// What is there now, and at which revision.
///
/// # Errors
/// No member answers, or reading is not permitted.
pub fn read_policies(start: &PoliciesStart) -> Result<(StoredPolicies, i64), String> {
    event_loop::once(async || {
        let etcd = Etcd::new(start.etcd.clone(), start.roots.clone());
        let range = start.roots.policies_range();
        read_stored(&etcd, &range).await.map_err(|error| error.to_string())
    })
}

/// The same, by a connection that there is.
///
/// # Errors
/// As [`read_policies`].
pub async fn read_stored(etcd: &Etcd, range: &str) -> Result<(StoredPolicies, i64), EtcdError> {
    let mut stored = StoredPolicies::default();
    let mut take = |raw: Raw<'_>| {
        let value = WrittenValue { bytes: raw.value.to_vec(), revision: raw.modified };
        stored.set(&raw.key[range.len()..], Some(value));
        !stored.is_too_much()
    };
    let (revision, _) = etcd.read_range(range, 0, &mut take).await?;
    Ok((stored, revision))
}

struct PolicyFollower<'a, P> {
    etcd: &'a Etcd,
    range: String,
    ruling: ObjectSource,
    publish: P,
    stored: StoredPolicies,
    values: KnownValues,
    had_some: bool,
    /// What is there, if it could be read.
    known: Option<(PolicySnapshot, Vec<Problem>)>,
    /// What was published last.
    said: Option<(Option<PolicySnapshot>, Vec<Problem>)>,
}

impl<P: FnMut(SourceUpdate)> PolicyFollower<'_, P> {
    async fn run(&mut self) -> Infallible {
        let mut failures = 0;
        loop {
            let Err(error) = self.follow(&mut failures).await;
            failures += 1;
            self.complain(&error);
            let wait = LONGEST_RETRY.min(RETRY * 2u32.saturating_pow(failures.min(8)));
            sleep(random::jittered(wait)).await;
        }
    }

    /// Reads everything at one revision, and watches from there.
    async fn follow(&mut self, failures: &mut u32) -> Result<Infallible, EtcdError> {
        let (stored, revision) = read_stored(self.etcd, &self.range).await?;
        self.stored = stored;
        // Another etcd may have another value of the same revision.
        self.values = KnownValues::default();
        self.keep_lost()?;
        self.publish()?;
        *failures = 0;
        let ranges = [self.range.clone()];
        let mut watch = self.etcd.watch_ranges(&ranges, revision + 1).await?;
        // The rest after each update is for those that come together.
        watch.wait = Duration::ZERO;
        loop {
            let changes = watch.next().await?;
            if changes.is_empty() {
                continue;
            }
            let was_marked = self.stored.is_marked();
            for change in changes {
                let revision = change.modified;
                let value = change.value.map(|bytes| WrittenValue { bytes, revision });
                self.stored.set(&change.key[self.range.len()..], value);
            }
            if was_marked {
                self.keep_lost()?;
            }
            let begun = Instant::now();
            self.publish()?;
            sleep(begun.elapsed() * REST).await;
        }
    }

    /// # Errors
    /// There were policies, and neither they nor the mark are there any more: what removes policies leaves the mark.
    fn keep_lost(&self) -> Result<(), EtcdError> {
        match self.stored.is_untouched() && self.had_some {
            true => Err(EtcdError::Refused(FailureReason::new(LOST, APPLY_AGAIN))),
            false => Ok(()),
        }
    }

    fn publish(&mut self) -> Result<(), EtcdError> {
        if self.stored.is_too_much() {
            let why = format!("more than {OBJECTS_LIMIT} objects or {BYTES_LIMIT} bytes");
            return Err(EtcdError::Refused(format!("{}: {why}", self.range).into()));
        }
        let read = self.stored.read_again(&mut self.values, &self.range, self.ruling);
        let snapshot = PolicySnapshot {
            rules: read.rules,
            unread: read.unread,
            standalone: Some(read.cluster),
            networks: read.networks,
            profiles: read.profiles,
            without_objects: self.ruling != ObjectSource::Etcd,
            ..PolicySnapshot::default()
        };
        self.had_some = !self.stored.is_empty();
        self.known = Some((snapshot, read.problems));
        self.say(None);
        Ok(())
    }

    /// What holds goes on holding.
    fn complain(&mut self, error: &EtcdError) {
        let subject = Object::named("policies in etcd");
        let why = FailureReason::from(error.clone());
        let why = why.at("not followed; those known before stay in force");
        self.say(Some(Problem::of_failure(ProblemKind::Etcd, subject, why)));
    }

    fn say(&mut self, trouble: Option<Problem>) {
        let known = self.known.clone();
        let (snapshot, mut problems) =
            known.map_or((None, Vec::new()), |(snapshot, problems)| (Some(snapshot), problems));
        problems.extend(trouble);
        let said = (snapshot, problems);
        if self.said.as_ref() != Some(&said) {
            self.said = Some(said.clone());
            let (snapshot, problems) = said;
            (self.publish)(SourceUpdate { provider: Provider::Etcd, snapshot, problems });
        }
    }
}

const LOST: &str = "the policies are gone from etcd, and no humanz-agent removed them: it lost its data, or somebody \
    deleted its keys";

const APPLY_AGAIN: &str = "humanz-agent policy ls # lists them: apply all objects again at once, or none (policy apply -f \
    /dev/null)";
