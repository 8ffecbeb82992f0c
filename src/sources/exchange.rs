//! Members of groups through etcd: this host publishes its own, and reads those of the groups that its
//! pods' policies need.
//!
//! Each host writes below its own name, where no other role may write; it announces each change at
//! the group, where every host may write. A reader watches the announcements of its groups and reads what
//! was announced from the host's own keys: an announcement says where to look, never what is there. What is
//! taken of that: `known_members`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch as latest};
use tokio::time::{Instant, sleep, sleep_until};

use crate::etcd::Etcd;
use crate::lease::EtcdError;
use crate::os::event_loop::{self, EventLoop};
use crate::policy::Selector;
use crate::sources::exchanged::{
    ExchangeInputs, ExchangeStart, Exchanged, ExchangedMembers, own_node, retry,
};
use crate::sources::generations::KnownGenerations;
use crate::sources::kept_generations;
use crate::sources::known_members::{KnownMembers, MembersReading};
use crate::sources::own_members::Writer;
use crate::sources::published::PublishedAt;
use crate::sources::ranges::{KeyChange, RangeWatch};
use crate::sources::shared::{GroupId, Hosts};

/// Wait before a group that too many hosts announce is read again.
const CROWDED: Duration = Duration::from_secs(60);

/// Time between two looks at hosts of which etcd has less than was received. A host that publishes again waits
/// longer, [`LEARNED`], before it takes others to have learned of that.
///
/// [`LEARNED`]: crate::sources::exchanged::LEARNED
const BEHIND: Duration = Duration::from_secs(5);

/// Time between two notes of the generations that were received: in a cluster where pods always come and go, each host
/// would else write them to disk every second, for ever …
const NOTED: Duration = Duration::from_secs(10);

/// … and so much more for each host: 10,000 are 250 kB.
const NOTED_HOST: Duration = Duration::from_millis(1);

/// Announcements of a group that are read beside two for each host.
const SPARE: usize = 1000;

/// The running exchange.
#[derive(Debug)]
pub struct Exchange {
    inputs: latest::Sender<ExchangeInputs>,
    _event_loop: EventLoop,
}

/// Starts the exchange. `publish` is called from its thread and must not block for long; what it was given
/// last holds while etcd is away.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn exchange(
    start: ExchangeStart,
    publish: impl Fn(Exchanged) + Send + 'static,
) -> io::Result<Exchange> {
    let (inputs, receiver) = latest::channel(ExchangeInputs::default());
    let event_loop = EventLoop::spawn("members", async move |stopped| {
        let etcd = Etcd::new(start.etcd.clone(), start.roots.clone());
        let returned = Notify::new();
        let mut reader = GroupReader::new(&etcd, &start, receiver.clone(), &publish, &returned);
        let mut writer = Writer::new(&etcd, &start, &publish);
        tokio::select! {
            _ = stopped => {}
            never = reader.run() => match never {},
            never = writer.run(receiver, &returned) => match never {},
        }
    })?;
    Ok(Exchange { inputs, _event_loop: event_loop })
}

impl Exchange {
    /// Applies other inputs as soon as etcd answers. Returns at once.
    pub fn set(&self, inputs: ExchangeInputs) {
        event_loop::send_if_changed(&self.inputs, inputs);
    }
}

struct GroupReader<'a, P> {
    etcd: &'a Etcd,
    start: &'a ExchangeStart,
    inputs: latest::Receiver<ExchangeInputs>,
    publish: P,
    known: KnownMembers<'a>,
    at: PublishedAt,
    /// When the generations that were received may be written to disk again.
    note_at: Instant,
    /// etcd was away, and is back.
    returned: &'a Notify,
    published: ExchangedMembers,
    /// Failures in a row.
    failures: u32,
}

impl<'a, P: Fn(Exchanged)> GroupReader<'a, P> {
    fn new(
        etcd: &'a Etcd,
        start: &'a ExchangeStart,
        inputs: latest::Receiver<ExchangeInputs>,
        publish: P,
        returned: &'a Notify,
    ) -> Self {
        let at = PublishedAt::of(&start.etcd, &start.roots, &start.host);
        let received = KnownGenerations::new(kept_generations::read(&start.state_dir, &at));
        let known = KnownMembers::new(start, received);
        let (published, note_at) = (ExchangedMembers::default(), Instant::now());
        let failures = 0;
        GroupReader {
            etcd,
            start,
            inputs,
            publish,
            known,
            at,
            note_at,
            returned,
            published,
            failures,
        }
    }

    async fn run(&mut self) -> Infallible {
        loop {
            match self.follow().await {
                // There are other hosts, or the groups have to be read again.
                Ok(()) => self.failures = 0,
                Err(error) => {
                    // An etcd that comes back may be an older one.
                    if !self.known.generations.is_noted() {
                        self.note();
                    }
                    self.failures += 1;
                    self.known.is_unsure = true;
                    self.publish(Some(&error));
                    sleep(retry(self.failures)).await;
                }
            }
        }
    }

    async fn follow(&mut self) -> Result<(), EtcdError> {
        let read_for = ReadFor::of(&self.inputs.borrow_and_update());
        self.known().need(&read_for.needed);
        let all: Vec<GroupId> = self.known.groups.keys().cloned().collect();
        let ranges = self.ranges(&all);
        let from = self.read_groups(all).await?;
        self.failures = 0;
        self.publish(None);
        let mut watch = self.etcd.watch_ranges(&ranges, from).await?;
        self.follow_changes(&mut watch, read_for).await
    }

    /// Where `groups` are announced. A host that needs no group has to learn, too, that etcd was away: others read what
    /// it publishes, and its own range is the last one.
    fn ranges(&self, groups: &[GroupId]) -> Vec<String> {
        let ExchangeStart { roots, host, .. } = self.start;
        let announced = groups.iter().map(|group| roots.announcements(group.as_str()));
        announced.chain([roots.members_of(host)]).collect()
    }

    /// Reads the members of `groups`, and gives the revision from which on to watch them.
    async fn read_groups(&mut self, groups: Vec<GroupId>) -> Result<i64, EtcdError> {
        let limit = 2 * self.known.hosts.len() + SPARE;
        let ranges = self.ranges(&groups).into_iter().zip(groups.iter().map(|_| limit).chain([0]));
        let (found, from) = self.etcd.keys(&ranges.collect::<Vec<_>>()).await?;
        if self.failures > 0 {
            self.returned.notify_one();
        }
        let reading = self.known().reading_announced(&groups, found);
        self.read(reading).await?;
        self.known.complete(Instant::now().into_std());
        Ok(from + 1)
    }

    async fn follow_changes(
        &mut self,
        watch: &mut RangeWatch<'_>,
        mut read_for: ReadFor,
    ) -> Result<(), EtcdError> {
        let again = Instant::now() + CROWDED;
        let mut look = Instant::now() + BEHIND;
        let mut inputs = self.inputs.clone();
        loop {
            let wait_until = self.known.wait_until();
            tokio::select! {
                changes = watch.next() => match &*changes? {
                    [] => continue,
                    changes => self.read_changed(changes).await?,
                },
                () = sleep_until(look), if !self.known.generations.behind().is_empty() => {
                    look = Instant::now() + BEHIND;
                    self.read_behind().await?;
                }
                () = sleep_until(wait_until.map_or(look, Into::into)), if wait_until.is_some() => {
                    self.known.end_wait(Instant::now().into_std());
                }
                () = sleep_until(self.note_at), if !self.known.generations.is_noted() => {
                    self.note();
                    continue;
                }
                () = sleep_until(again), if !self.known.crowded.is_empty() => return Ok(()),
                changed = inputs.changed() => {
                    if changed.is_err() || !self.take_inputs(&mut inputs, &mut read_for, watch).await? {
                        return Ok(());
                    }
                }
            }
            self.publish(None);
        }
    }

    /// Reads and watches what other inputs need; `false` if everything has to be read again.
    async fn take_inputs(
        &mut self,
        inputs: &mut latest::Receiver<ExchangeInputs>,
        read_for: &mut ReadFor,
        watch: &mut RangeWatch<'_>,
    ) -> Result<bool, EtcdError> {
        let now = ReadFor::of(&inputs.borrow_and_update());
        let before = std::mem::replace(read_for, now);
        if read_for.has_more_hosts(&before) {
            return Ok(false);
        }
        if read_for.needed == before.needed {
            // Other hosts, perhaps: what they may say is judged again.
            self.known().forget_removed();
            return Ok(true);
        }
        // etcd checks who asks for each further range, by the token that the watch began with, which expires.
        if self.start.etcd.user.is_some() {
            return Ok(false);
        }
        // Others are left alone: where a policy names another group, all hosts of its pods read it at once.
        self.known().need(&read_for.needed);
        let from = self.read_groups(self.known.unread()).await?;
        let all: Vec<GroupId> = self.known.groups.keys().cloned().collect();
        watch.change(self.ranges(&all), from).await?;
        Ok(true)
    }

    /// What is known, with the hosts that there are now.
    fn known(&mut self) -> &mut KnownMembers<'a> {
        self.known.hosts = Arc::clone(&self.inputs.borrow().hosts);
        &mut self.known
    }

    async fn read(&mut self, reading: MembersReading) -> Result<(), EtcdError> {
        let found = self.values(&reading).await?;
        self.known.take(reading, found);
        Ok(())
    }

    async fn read_changed(&mut self, changes: &[KeyChange]) -> Result<(), EtcdError> {
        let reading = self.known().reading_of(changes.iter().map(|change| &*change.key));
        self.read(reading).await
    }

    /// Looks whether hosts that were behind have said again what they say.
    async fn read_behind(&mut self) -> Result<(), EtcdError> {
        let behind = self.known.reading_behind();
        let found = self.values(&behind).await?;
        let back = self.known().reading_back(behind, &found);
        self.read(back).await
    }

    async fn values(&self, reading: &MembersReading) -> Result<Vec<Option<Vec<u8>>>, EtcdError> {
        let found = self.etcd.values(&reading.keys(&self.start.roots)).await?;
        Ok(found.into_iter().map(|value| Some(value?.bytes)).collect())
    }

    /// Writes the generations that were received to disk.
    fn note(&mut self) {
        let newest = self.known.generations.noting();
        let hosts = u32::try_from(newest.len()).unwrap_or(u32::MAX);
        self.note_at = Instant::now() + NOTED + NOTED_HOST.saturating_mul(hosts);
        if let Err(error) = kept_generations::write(&self.start.state_dir, &self.at, newest) {
            log::error!("save what is known of other hosts: {error}");
        }
    }

    /// `trouble`: why groups are not followed.
    fn publish(&mut self, trouble: Option<&EtcdError>) {
        let (needed, node) = {
            let ExchangeInputs { needed, own, .. } = &*self.inputs.borrow();
            (needed.clone(), own_node(own))
        };
        let mut received = self.known().received(&needed, trouble);
        received.add(&node);
        if received != self.published {
            self.published = received.clone();
            (self.publish)(Exchanged::Members(received));
        }
    }
}

/// What is read: members of these groups, on these hosts.
struct ReadFor {
    needed: BTreeSet<Selector>,
    hosts: Arc<Hosts>,
}

impl ReadFor {
    fn of(inputs: &ExchangeInputs) -> ReadFor {
        ReadFor { needed: inputs.needed.clone(), hosts: Arc::clone(&inputs.hosts) }
    }

    fn has_more_hosts(&self, before: &ReadFor) -> bool {
        let mut hosts = self.hosts.keys();
        !Arc::ptr_eq(&self.hosts, &before.hosts)
            && hosts.any(|host| !before.hosts.contains_key(host))
    }
}
