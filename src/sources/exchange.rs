//! Members of groups through etcd: this host publishes its own, and reads those of the groups that its
//! pods' policies need.
//!
//! Each host writes below its own name, where no other role may write; it announces each change at
//! the group, where every host may write. A reader watches the announcements of its groups and reads what
//! was announced from the host's own keys: an announcement says where to look, never what is there. What is
//! taken of that: `known_members`.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch as latest};
use tokio::time::{Instant, sleep, sleep_until};

use crate::etcd::Etcd;
use crate::lease::EtcdError;
use crate::os::event_loop::{self, EventLoop};
use crate::sources::exchanged::{
    ExchangeInputs, ExchangeStart, Exchanged, ExchangedMembers, retry,
};
use crate::sources::generations::KnownGenerations;
use crate::sources::kept_generations;
use crate::sources::known_members::{KnownMembers, MembersReading};
use crate::sources::own_members::Writer;
use crate::sources::published::PublishedAt;
use crate::sources::ranges::KeyChange;

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
        GroupReader { etcd, start, inputs, publish, known, at, note_at, returned, published }
    }

    async fn run(&mut self) -> Infallible {
        let mut failures = 0;
        loop {
            match self.follow(&mut failures).await {
                // Other groups are needed, or there are other hosts.
                Ok(()) => failures = 0,
                Err(error) => {
                    // An etcd that comes back may be an older one.
                    if !self.known.generations.is_noted() {
                        self.note();
                    }
                    failures += 1;
                    self.known.is_unsure = true;
                    self.publish(Some(&error));
                    sleep(retry(failures)).await;
                }
            }
        }
    }

    async fn follow(&mut self, failures: &mut u32) -> Result<(), EtcdError> {
        let read_for = self.inputs.borrow_and_update().clone();
        self.known().need(&read_for.needed);
        let ExchangeStart { roots, host, .. } = self.start;
        let limit = 2 * read_for.hosts.len() + SPARE;
        let announced = self.known.groups.keys();
        let announced = announced.map(|group| (roots.announcements(group.as_str()), limit));
        // A host that needs no group has to learn, too, that etcd was away: others read what it publishes.
        let ranges: Vec<_> = announced.chain([(roots.members_of(host), 0)]).collect();
        let (found, from) = self.etcd.keys(&ranges).await?;
        if *failures > 0 {
            self.returned.notify_one();
        }
        let reading = self.known().reading_all(found);
        self.read(reading).await?;
        self.known.complete(Instant::now().into_std());
        *failures = 0;
        self.publish(None);
        let ranges: Vec<String> = ranges.into_iter().map(|(range, _)| range).collect();
        self.watch(&ranges, from + 1, &read_for).await
    }

    async fn watch(
        &mut self,
        ranges: &[String],
        from: i64,
        read_for: &ExchangeInputs,
    ) -> Result<(), EtcdError> {
        let mut watch = self.etcd.watch_ranges(ranges, from).await?;
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
                    if changed.is_err() || is_more(&inputs.borrow_and_update(), read_for) {
                        return Ok(());
                    }
                    // Other hosts, perhaps: what they may say is judged again.
                    self.known().forget_removed();
                }
            }
            self.publish(None);
        }
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
        let needed = self.inputs.borrow().needed.clone();
        let received = self.known().received(&needed, trouble);
        if received != self.published {
            self.published = received.clone();
            (self.publish)(Exchanged::Members(received));
        }
    }
}

/// Other groups are needed than when `before` was read, or there are further hosts.
fn is_more(now: &ExchangeInputs, before: &ExchangeInputs) -> bool {
    let mut hosts = now.hosts.keys();
    now.needed != before.needed || hosts.any(|host| !before.hosts.contains_key(host))
}
