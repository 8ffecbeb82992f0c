//! Members of groups through etcd: this host publishes its own, and reads those of the groups that its
//! pods' policies need.
//!
//! Each host writes below its own name, where its role lets nobody else write; it announces each change at
//! the group, where every host may write. A reader watches the announcements of its groups and reads what
//! was announced from the host's own keys: an announcement says where to look, never what is there. So a
//! member goes only when its host says so.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch as latest};
use tokio::time::{Instant, sleep, sleep_until};

use crate::etcd::Etcd;
use crate::lease::EtcdError;
use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::event_loop::{self, EventLoop};
use crate::policy::Selector;
use crate::sources::exchanged::{
    ExchangeInputs, ExchangeStart, Exchanged, HEARD, HeardMembers, retry,
};
use crate::sources::own_members::Writer;
use crate::sources::ranges::WrittenValue;
use crate::sources::shared::{GroupId, SharedFault, VALUE_LIMIT, owners, read};

/// Wait before a group that too many hosts announce is read again.
const CROWDED: Duration = Duration::from_secs(60);

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
    values: BTreeMap<MembersKey, WrittenValue>,
    /// Groups that have been read.
    known: BTreeSet<GroupId>,
    /// Groups that were needed when etcd answered last, or the agent before had in force: while etcd is away the next
    /// pod that needs one finds the members that were known.
    held: BTreeMap<GroupId, Selector>,
    /// Groups that more hosts announce than there are.
    crowded: BTreeSet<Selector>,
    /// The last revision of etcd that was seen.
    revision: i64,
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
        let (values, known, crowded, trouble, published, revision) = Default::default();
        let held = by_id(start.kept.keys());
        GroupReader {
            etcd,
            start,
            inputs,
            publish,
            values,
            known,
            held,
            crowded,
            returned,
            revision,
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
        self.values.retain(|(group, _), _| groups.contains_key(group));
        self.known.retain(|group| groups.contains_key(group));
        let roots = &self.start.roots;
        let range = |group: &GroupId| roots.announcements(group.as_str());
        let hosts = Arc::clone(&self.inputs.borrow().hosts);
        // A host that needs no group has to hear, too, that etcd was away: others read what it publishes.
        let own = roots.members_of(&self.start.host);
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
        let is_older = from < self.revision;
        self.revision = from;
        places.extend(self.kept_places(&groups));
        if is_older || !self.read(places).await? {
            self.wait_for_hosts().await;
            return Ok(());
        }
        self.known.extend(groups.keys().cloned());
        self.held = groups.clone();
        (self.trouble, *failures) = (None, 0);
        self.publish();
        let ranges: Vec<String> = groups.keys().map(range).chain([own]).collect();
        self.watch(&ranges, from + 1, &read_for).await
    }

    /// etcd has older data: hosts say again what they said since. Until then what was known is better.
    async fn wait_for_hosts(&mut self) {
        self.values.values_mut().for_each(|value| value.revision = 0);
        let wait = format!("etcd has older data than before; what it says holds after {HEARD:?}");
        self.trouble = Some(wait);
        self.publish();
        sleep(HEARD).await;
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
        let mut inputs = self.inputs.clone();
        loop {
            tokio::select! {
                keys = watch.next() => {
                    let keys = keys?;
                    self.revision = self.revision.max(watch.revision);
                    if keys.is_empty() {
                        continue;
                    }
                    let places = keys.iter().filter_map(|put| self.place(&put.key)).collect();
                    if !self.read(places).await? {
                        self.wait_for_hosts().await;
                        return Ok(());
                    }
                    self.publish();
                }
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

    /// Reads `places` of hosts that there are. Takes nothing and gives false if one was written before what is
    /// known of it: the revision of an older etcd may have overtaken the one before by other writes.
    async fn read(&mut self, places: BTreeSet<MembersKey>) -> Result<bool, EtcdError> {
        let hosts = Arc::clone(&self.inputs.borrow().hosts);
        let places: Vec<MembersKey> =
            places.into_iter().filter(|(_, host)| hosts.contains_key(host)).collect();
        let key = |(group, host): &MembersKey| self.start.roots.members(host, group.as_str());
        let keys: Vec<String> = places.iter().map(key).collect();
        let found = self.etcd.values(&keys).await?;
        let is_older = |(place, value): (&MembersKey, &Option<WrittenValue>)| {
            let known = self.values.get(place).zip(value.as_ref());
            known.is_some_and(|(known, now)| now.revision < known.revision)
        };
        if places.iter().zip(&found).any(is_older) {
            return Ok(false);
        }
        for (place, value) in places.into_iter().zip(found) {
            match value {
                Some(mut value) => {
                    // Any longer one says nothing.
                    value.bytes.truncate(VALUE_LIMIT + 1);
                    self.values.insert(place, value);
                }
                None => drop(self.values.remove(&place)),
            }
        }
        Ok(true)
    }

    fn publish(&mut self) {
        let (groups, hosts) = {
            let inputs = self.inputs.borrow();
            let held = self.held.values();
            (by_id(inputs.needed.iter().chain(held)), Arc::clone(&inputs.hosts))
        };
        let unread = groups.iter().filter(|(group, _)| !self.known.contains(group));
        let unread = unread.map(|(_, selector)| selector.clone()).collect();
        let mut exchanged = HeardMembers { unread, ..HeardMembers::default() };
        for (group, selector) in groups.iter().filter(|(group, _)| self.known.contains(group)) {
            let mut found = BTreeSet::new();
            let first = (group.clone(), "0".parse().expect("a name"));
            let values = self.values.range(first..).take_while(|((of, _), _)| of == group);
            for ((_, host), value) in values {
                let Some(addresses) = hosts.get(host) else { continue };
                let (mut members, fault) = read(&value.bytes, selector, addresses);
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
    groups.map(|selector| (GroupId::of(selector), selector.clone())).collect()
}

fn of_group(selector: &Selector, what: String) -> Problem {
    Problem::new(ProblemKind::Policy, Object::named(format!("group {selector}")), what)
}

fn problem(host: &NodeName, selector: &Selector, fault: &SharedFault) -> Problem {
    let what = format!("what it says of {selector} is ignored: {fault}");
    Problem::new(ProblemKind::Policy, Object::named(format!("host {host}")), what)
}
