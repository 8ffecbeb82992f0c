//! Members of groups through etcd: this host publishes its own, and reads those of the groups that its
//! pods' policies need.
//!
//! Each host writes below its own name, where its role lets nobody else write; it announces each change at
//! the group, where every host may write. A reader watches the announcements of its groups and reads what
//! was announced from the host's own keys: an announcement says where to look, never what is there. So a
//! member goes only when its host says so, and comes only by what is newer than all that its host said
//! before: an etcd that was restored from an older state changes nothing of a host whose agent is down.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch as latest};
use tokio::time::{Instant, sleep, sleep_until};

use crate::etcd::Etcd;
use crate::lease::EtcdError;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::event_loop::{self, EventLoop};
use crate::policy::Selector;
use crate::sources::exchanged::{
    ExchangeInputs, ExchangeStart, Exchanged, HEARD, HeardMembers, retry,
};
use crate::sources::generations::{self, HeardGenerations};
use crate::sources::heard;
use crate::sources::own_members::Writer;
use crate::sources::published::PublishedAt;
use crate::sources::ranges::WrittenValue;
use crate::sources::shared::{self, GroupId, Hosts, SharedFault, VALUE_LIMIT, owners, read};

/// Wait before a group that too many hosts announce is read again.
const CROWDED: Duration = Duration::from_secs(60);

/// Time between two looks at hosts of which etcd has less than was heard. A host that publishes again waits
/// longer, [`HEARD`], before it takes others to have heard of that.
const BEHIND: Duration = Duration::from_secs(5);

/// Time between two notes of the generations that were heard …
const NOTED: Duration = Duration::from_secs(1);

/// … and so much more for each host: 10,000 are 250 kB.
const NOTED_HOST: Duration = Duration::from_millis(1);

/// Announcements of a group that are read beside two for each host.
const SPARE: usize = 1000;

/// Members of one group on all hosts: ten times as many as a large cluster's pods.
const GROUP_LIMIT: usize = 200_000;

/// Problems that are listed.
const PROBLEMS_LIMIT: usize = 50;

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

/// A group and a host that announced members of it.
type MembersKey = (GroupId, NodeName);

struct GroupReader<'a, P> {
    etcd: &'a Etcd,
    start: &'a ExchangeStart,
    inputs: latest::Receiver<ExchangeInputs>,
    publish: P,
    /// The values of all places that were announced, as they are in etcd.
    values: BTreeMap<MembersKey, Vec<u8>>,
    /// Groups that have been read.
    known: BTreeSet<GroupId>,
    /// Groups that were needed when etcd answered last, or the agent before had in force: while etcd is away the next
    /// pod that needs one finds the members that were known.
    held: BTreeMap<GroupId, Selector>,
    /// The groups that are needed.
    groups: BTreeMap<GroupId, Selector>,
    /// Groups that more hosts announce than there are.
    crowded: BTreeSet<Selector>,
    heard: HeardGenerations,
    /// etcd was not asked for all of `heard` since it was away: it may have older ones.
    is_unsure: bool,
    /// Groups that were read first while a host was behind: what it said of them is not known. Nobody waits for that
    /// after [`HEARD`]: a host whose agent is down, or that is behind on purpose, holds up no rule for longer.
    partly: BTreeSet<GroupId>,
    partly_until: Instant,
    at: PublishedAt,
    /// When `heard` may be written to disk again.
    note_at: Instant,
    /// etcd was away, and is back.
    returned: &'a Notify,
    trouble: Option<String>,
    published: HeardMembers,
}

impl<'a, P: Fn(Exchanged)> GroupReader<'a, P> {
    fn new(
        etcd: &'a Etcd,
        start: &'a ExchangeStart,
        inputs: latest::Receiver<ExchangeInputs>,
        publish: P,
        returned: &'a Notify,
    ) -> Self {
        let (values, known, crowded, partly, trouble, published, groups) = Default::default();
        let held = by_id(start.kept.keys());
        let at = PublishedAt::of(&start.etcd, &start.roots, &start.host);
        let heard = HeardGenerations::new(heard::read(&start.state_dir, &at));
        GroupReader {
            etcd,
            start,
            inputs,
            publish,
            values,
            known,
            held,
            groups,
            crowded,
            heard,
            is_unsure: true,
            partly,
            partly_until: Instant::now(),
            at,
            note_at: Instant::now(),
            returned,
            trouble,
            published,
        }
    }

    async fn run(&mut self) -> Infallible {
        let mut failures = 0;
        loop {
            match self.follow(&mut failures).await {
                // Other groups are needed, or there are other hosts.
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    self.is_unsure = true;
                    self.trouble = Some(error.to_string());
                    self.publish();
                    sleep(retry(failures)).await;
                }
            }
        }
    }

    async fn follow(&mut self, failures: &mut u32) -> Result<(), EtcdError> {
        let read_for = self.inputs.borrow_and_update().clone();
        let groups = by_id(read_for.needed.iter());
        self.groups.clone_from(&groups);
        self.values.retain(|(group, _), _| groups.contains_key(group));
        self.known.retain(|group| groups.contains_key(group));
        let roots = &self.start.roots;
        let range = |group: &GroupId| roots.announcements(group.as_str());
        let hosts = Arc::clone(&self.inputs.borrow().hosts);
        // A host that needs no group has to hear, too, that etcd was away: others read what it publishes.
        let own = roots.members_of(&self.start.host);
        self.forget_removed(&hosts);
        let limit = 2 * hosts.len() + SPARE;
        let announced = groups.keys().map(|group| (range(group), limit));
        let ranges: Vec<_> = announced.chain([(own.clone(), 0)]).collect();
        let (found, from) = self.etcd.keys(&ranges).await?;
        let mut places: BTreeSet<MembersKey> = self.values.keys().cloned().collect();
        self.crowded.clear();
        for ((group, selector), keys) in groups.iter().zip(found) {
            match keys {
                Some(keys) => places.extend(keys.iter().filter_map(|key| self.place(key))),
                // Whoever may announce can do so for hosts that do not exist: those that do are looked up.
                None => {
                    self.crowded.insert(selector.clone());
                    let others = hosts.keys().filter(|host| **host != self.start.host);
                    places.extend(others.map(|host| (group.clone(), host.clone())));
                }
            }
        }
        if *failures > 0 {
            self.returned.notify_one();
        }
        places.extend(self.kept_places(&groups));
        let unsure = std::mem::take(&mut self.is_unsure).then(|| self.heard.hosts());
        self.read(places, unsure.unwrap_or_default()).await?;
        let kept = |group: &GroupId| self.start.kept.contains_key(&groups[group]);
        let first = groups.keys().filter(|group| !self.known.contains(*group) && !kept(group));
        let first: Vec<GroupId> = first.cloned().collect();
        if !self.heard.behind().is_empty() && !first.is_empty() {
            self.partly.extend(first);
            self.partly_until = Instant::now() + HEARD;
        }
        self.known.extend(groups.keys().cloned());
        self.held = groups.clone();
        (self.trouble, *failures) = (None, 0);
        self.publish();
        let ranges: Vec<String> = groups.keys().map(range).chain([own]).collect();
        self.watch(&ranges, from + 1, &read_for).await
    }

    /// Where the members stood that are in force, of groups that have not been read yet: every host may
    /// delete an announcement, and only the host that a member is of may take it away.
    fn kept_places(&self, groups: &BTreeMap<GroupId, Selector>) -> BTreeSet<MembersKey> {
        let hosts = Arc::clone(&self.inputs.borrow().hosts);
        let unread = groups.iter().filter(|(group, _)| !self.known.contains(group));
        let kept =
            unread.filter_map(|(group, selector)| Some((group, self.start.kept.get(selector)?)));
        kept.flat_map(|(group, members)| {
            let others =
                owners(members, &hosts).into_iter().filter(|host| *host != self.start.host);
            others.map(|host| (group.clone(), host))
        })
        .collect()
    }

    async fn watch(
        &mut self,
        ranges: &[String],
        from: i64,
        ExchangeInputs { needed, hosts, .. }: &ExchangeInputs,
    ) -> Result<(), EtcdError> {
        let mut watch = self.etcd.watch_ranges(ranges, from).await?;
        let again = Instant::now() + CROWDED;
        let mut look = Instant::now() + BEHIND;
        let mut inputs = self.inputs.clone();
        loop {
            tokio::select! {
                keys = watch.next() => {
                    let keys = keys?;
                    if keys.is_empty() {
                        continue;
                    }
                    let places = keys.iter().filter_map(|put| self.place(&put.key)).gather();
                    self.read(places, BTreeSet::new()).await?;
                    self.publish();
                }
                () = sleep_until(look), if !self.heard.behind().is_empty() => {
                    look = Instant::now() + BEHIND;
                    self.read_behind().await?;
                    self.publish();
                }
                () = sleep_until(self.partly_until), if !self.partly.is_empty() => {
                    self.partly.clear();
                    self.publish();
                }
                () = sleep_until(self.note_at), if !self.heard.is_noted() => self.note(),
                () = sleep_until(again), if !self.crowded.is_empty() => return Ok(()),
                changed = inputs.changed() => {
                    let other = {
                        let inputs = inputs.borrow_and_update();
                        inputs.needed != *needed || inputs.hosts.keys().any(|it| !hosts.contains_key(it))
                    };
                    if changed.is_err() || other {
                        return Ok(());
                    }
                    // Other hosts, perhaps: what they may say is judged again.
                    let hosts = Arc::clone(&inputs.borrow().hosts);
                    self.forget_removed(&hosts);
                    self.publish();
                }
            }
        }
    }

    /// The place that `key` announces; `None` if it is this host's, or none.
    fn place(&self, key: &[u8]) -> Option<MembersKey> {
        let (group, host) = self.start.roots.announced(key)?;
        (host != self.start.host).then_some((GroupId::parse(group)?, host))
    }

    /// Reads `places` of hosts that there are, and all places of a host that was behind. What is older than what
    /// that host said before is not taken. The generations of `more` hosts are compared, too.
    async fn read(
        &mut self,
        mut places: BTreeSet<MembersKey>,
        more: BTreeSet<NodeName>,
    ) -> Result<(), EtcdError> {
        let hosts = Arc::clone(&self.inputs.borrow().hosts);
        places.retain(|(_, host)| hosts.contains_key(host));
        let mut read = more;
        read.extend(places.iter().map(|(_, host)| host.clone()));
        for host in read.intersection(self.heard.behind()) {
            places.extend(self.groups.keys().map(|group| (group.clone(), host.clone())));
        }
        let key = |(group, host): &MembersKey| self.start.roots.members(host, group.as_str());
        let generation = |host: &NodeName| self.start.roots.members_generation(host);
        // The generations last: a value is never newer than the one that is read with it, nor from before a
        // restore that this one does not show.
        let keys: Vec<String> = places.iter().map(key).chain(read.iter().map(generation)).collect();
        let mut found = self.etcd.values(&keys).await?;
        let generations = found.split_off(places.len());
        for (host, value) in read.iter().zip(generations) {
            let value = value.as_ref().map(|value| &*value.bytes);
            self.heard.hear(host, generations::parse(value));
        }
        for (place, value) in places.into_iter().zip(found) {
            if self.heard.behind().contains(&place.1) {
                self.keep(place, &hosts);
                continue;
            }
            match value {
                Some(mut value) => {
                    // Any longer one says nothing.
                    value.bytes.truncate(VALUE_LIMIT + 1);
                    self.values.insert(place, value.bytes);
                }
                None => drop(self.values.remove(&place)),
            }
        }
        self.end_partly();
        Ok(())
    }

    /// A host that was removed is not behind, and another one may have its name. Nothing is known of hosts at first.
    fn forget_removed(&mut self, hosts: &Hosts) {
        if !hosts.is_empty() {
            self.heard.retain(|host| hosts.contains_key(host));
            self.end_partly();
        }
    }

    /// Looks whether hosts that were behind have said again what they say.
    async fn read_behind(&mut self) -> Result<(), EtcdError> {
        let hosts: Vec<NodeName> = self.heard.behind().iter().cloned().collect();
        let keys = hosts.iter().map(|host| self.start.roots.members_generation(host));
        let found = self.etcd.values(&keys.collect::<Vec<_>>()).await?;
        let is_back = |(host, value): &(NodeName, Option<WrittenValue>)| {
            let value = value.as_ref().map(|value| &*value.bytes);
            self.heard.is_current(host, generations::parse(value))
        };
        let back = hosts.into_iter().zip(found).filter(is_back).map(|(host, _)| host).gather();
        // With all their places, as hosts that were behind.
        self.read(BTreeSet::new(), back).await
    }

    /// All hosts have said again what they say: nothing is unknown of any group.
    fn end_partly(&mut self) {
        if self.heard.behind().is_empty() {
            self.partly.clear();
        }
    }

    /// What was in force of the members at `place`, if this agent has not read them since its start: etcd has older
    /// ones.
    fn keep(&mut self, place: MembersKey, hosts: &Hosts) {
        let (group, host) = &place;
        let known = self.groups.get(group).and_then(|selector| {
            let members = self.start.kept.get(selector)?;
            Some((selector, hosts.get(host)?.own(selector, members)))
        });
        if let Some((selector, members)) = known.filter(|_| !self.values.contains_key(&place)) {
            let value = shared::write(selector, &members).into_bytes();
            self.values.insert(place, value);
        }
    }

    /// Writes what was heard to disk.
    fn note(&mut self) {
        let newest = self.heard.noting();
        let hosts = u32::try_from(newest.len()).unwrap_or(u32::MAX);
        self.note_at = Instant::now() + NOTED + NOTED_HOST.saturating_mul(hosts);
        if let Err(error) = heard::write(&self.start.state_dir, &self.at, newest) {
            log::error!("note what was heard of other hosts: {error}");
        }
    }

    fn publish(&mut self) {
        let (groups, hosts) = {
            let inputs = self.inputs.borrow();
            let held = self.held.values();
            (by_id(inputs.needed.iter().chain(held)), Arc::clone(&inputs.hosts))
        };
        let is_whole = |group| self.known.contains(group) && !self.partly.contains(group);
        let unread = groups.iter().filter(|(group, _)| !is_whole(group));
        let unread = unread.map(|(_, selector)| selector.clone()).gather();
        let mut exchanged = HeardMembers { unread, ..HeardMembers::default() };
        for (group, selector) in groups.iter().filter(|(group, _)| self.known.contains(group)) {
            let mut found = BTreeSet::new();
            let first = (group.clone(), "0".parse().expect("a name"));
            let values = self.values.range(first..).take_while(|((of, _), _)| of == group);
            for ((_, host), value) in values {
                let Some(addresses) = hosts.get(host) else { continue };
                let (mut members, fault) = read(value, selector, addresses);
                found.append(&mut members);
                if let Some(fault) = fault.filter(|_| exchanged.problems.len() < PROBLEMS_LIMIT) {
                    exchanged.problems.push(problem(host, selector, &fault));
                }
            }
            if found.len() > GROUP_LIMIT {
                exchanged.unread.insert(selector.clone());
                let what = format!("more than {GROUP_LIMIT} members; those known before hold");
                exchanged.problems.push(of_group(selector, what));
                continue;
            }
            exchanged.members.insert(selector.clone(), Arc::new(found));
        }
        exchanged.problems.extend(self.crowded.iter().map(|selector| {
            of_group(selector, "more hosts announce members than there are".to_owned())
        }));
        let behind = self.heard.behind().iter().filter(|host| hosts.contains_key(*host));
        let room = PROBLEMS_LIMIT.saturating_sub(exchanged.problems.len());
        exchanged.problems.extend(behind.take(room).map(behind_problem));
        if let Some(why) = self.trouble.as_ref().filter(|_| !groups.is_empty()) {
            let subject = Object::named("members of groups");
            let what = format!("not followed; those known before stay in force: {why}");
            exchanged.problems.push(Problem::new(ProblemKind::Etcd, subject, what));
        }
        if exchanged != self.published {
            self.published = exchanged.clone();
            (self.publish)(Exchanged::Heard(exchanged));
        }
    }
}

fn by_id<'a>(groups: impl Iterator<Item = &'a Selector>) -> BTreeMap<GroupId, Selector> {
    groups.map(|selector| (GroupId::of(selector), selector.clone())).gather()
}

fn of_group(selector: &Selector, what: String) -> Problem {
    let subject = format!("group {selector}");
    let what = format!("{subject}: {what}");
    Problem::new(ProblemKind::Policy, Object::named(subject), what)
}

fn behind_problem(host: &NodeName) -> Problem {
    let what = format!(
        "etcd has an older state of the members of groups on host {host} than it published; those that were known stay"
    );
    let problem = Problem::new(ProblemKind::Policy, Object::Host(host.clone()), what);
    problem.with_fix(format!("start humanz-agent on {host}: it publishes them again"))
}

fn problem(host: &NodeName, selector: &Selector, fault: &SharedFault) -> Problem {
    let what = format!("what host {host} says of {selector} is ignored: {fault}");
    Problem::new(ProblemKind::Policy, Object::Host(host.clone()), what)
}
