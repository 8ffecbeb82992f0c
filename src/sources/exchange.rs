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

use tokio::sync::watch as latest;
use tokio::time::{Instant, sleep, timeout};

use crate::etcd::{Etcd, EtcdSettings};
use crate::lease::EtcdError;
use crate::lease::records::Roots;
use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::event_loop::{self, EventLoop};
use crate::os::random;
use crate::policy::local::Published;
use crate::policy::{Members, Selector};
use crate::sources::publication::Publication;
use crate::sources::shared::{GroupId, Hosts, SharedFault, owners, read};

/// Longest wait before another attempt after the first failure; doubled for each further one …
const RETRY: Duration = Duration::from_millis(200);

/// … up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Announcements that come closer together than this are read at once.
const COALESCE: Duration = Duration::from_millis(5);

/// Time between two requests for a sign of life …
const ASK: Duration = Duration::from_secs(10);

/// … and the longest time without one.
const SILENCE: Duration = Duration::from_secs(30);

/// Rest between two writes of this host.
const REST: Duration = Duration::from_millis(100);

/// Time between two looks at the keys of this host.
const LOOK: Duration = Duration::from_secs(60);

/// Hosts that announce members of one group.
const HOSTS_LIMIT: usize = 50_000;

/// Problems that are listed.
const PROBLEMS_LIMIT: usize = 50;

/// How to reach etcd.
#[derive(Clone, Debug)]
pub struct ExchangeStart {
    pub etcd: EtcdSettings,
    pub roots: Roots,
    pub host: NodeName,
    /// The members on other hosts that are in force.
    pub kept: Members,
}

/// What this host knows and needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExchangeInputs {
    /// Its own members of every group in use.
    pub own: Members,
    /// The groups that its pods' policies need.
    pub needed: BTreeSet<Selector>,
    /// All hosts: what they may say.
    pub hosts: Arc<Hosts>,
    /// The revision of this host's record in etcd: nothing is written once another machine has it.
    pub record: Option<i64>,
    /// The containers of the addresses in `own`, for [`Exchanged::Published`].
    pub owners: Arc<Published>,
}

/// What became of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Exchanged {
    Heard(HeardMembers),
    /// etcd has the members of these containers, and no others, for this host.
    Published(Arc<Published>),
}

/// What other hosts say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeardMembers {
    /// The members on other hosts of every group that is needed, once they have been read.
    pub members: Members,
    /// Needed, and not read yet.
    pub unread: BTreeSet<Selector>,
    pub problems: Vec<Problem>,
}

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
        let mut reader = GroupReader::new(&etcd, &start, receiver.clone(), &publish);
        tokio::select! {
            _ = stopped => {}
            never = reader.run() => match never {},
            never = write(&etcd, &start, receiver, &publish) => match never {},
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

/// Keeps the keys of this host as they should be, forever.
async fn write(
    etcd: &Etcd,
    start: &ExchangeStart,
    mut inputs: latest::Receiver<ExchangeInputs>,
    publish: &impl Fn(Exchanged),
) -> Infallible {
    let (mut failures, mut published) = (0, None);
    loop {
        let (own, record, owners) = {
            let inputs = inputs.borrow_and_update();
            (inputs.own.clone(), inputs.record, Arc::clone(&inputs.owners))
        };
        let result = match record {
            Some(record) => publish_own(etcd, start, &own, record).await,
            None => Ok(()),
        };
        if record.is_some() && result.is_ok() && published.as_ref() != Some(&owners) {
            publish(Exchanged::Published(Arc::clone(&owners)));
            published = Some(owners);
        }
        failures = if result.is_ok() { 0 } else { failures + 1 };
        if let Err(error) = &result {
            log::debug!("publish members of groups: {error}");
        }
        sleep(REST).await;
        let wait = if failures == 0 { LOOK } else { retry(failures) };
        // Other inputs, or a look at what is there.
        drop(timeout(wait, inputs.changed()).await);
    }
}

async fn publish_own(
    etcd: &Etcd,
    start: &ExchangeStart,
    own: &Members,
    record: i64,
) -> Result<(), EtcdError> {
    let publication = Publication::new(&start.roots, &start.host, own, record);
    let range = start.roots.members_of(&start.host);
    let (keys, _) = etcd.keys(&range, HOSTS_LIMIT).await?;
    let keys: Vec<String> = keys
        .unwrap_or_default()
        .into_iter()
        .filter_map(|key| String::from_utf8(key).ok())
        .collect();
    let values = etcd.values(&keys).await?;
    let found = keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)));
    for transaction in publication.changes(&found.collect()) {
        if etcd.commit("publish members of groups", &transaction).await?.is_none() {
            return Err(EtcdError::Refused("this host's record was changed".to_owned()));
        }
    }
    Ok(())
}

fn retry(failures: u32) -> Duration {
    random::jittered(LONGEST_RETRY.min(RETRY * 2u32.saturating_pow(failures.min(8))))
}

/// A group and a host that announced members of it.
type Place = (GroupId, NodeName);

struct GroupReader<'a, P> {
    etcd: &'a Etcd,
    start: &'a ExchangeStart,
    inputs: latest::Receiver<ExchangeInputs>,
    publish: P,
    /// The values of all places that were announced, as they are in etcd.
    values: BTreeMap<Place, Vec<u8>>,
    /// Groups that have been read.
    known: BTreeSet<GroupId>,
    trouble: Option<String>,
    published: HeardMembers,
}

impl<'a, P: Fn(Exchanged)> GroupReader<'a, P> {
    fn new(
        etcd: &'a Etcd,
        start: &'a ExchangeStart,
        inputs: latest::Receiver<ExchangeInputs>,
        publish: P,
    ) -> Self {
        let (values, known, trouble, published) = Default::default();
        GroupReader { etcd, start, inputs, publish, values, known, trouble, published }
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

    /// The groups that are needed, by their ids.
    fn groups(&self) -> BTreeMap<GroupId, Selector> {
        let inputs = self.inputs.borrow();
        inputs.needed.iter().map(|selector| (GroupId::of(selector), selector.clone())).collect()
    }

    async fn follow(&mut self, failures: &mut u32) -> Result<(), EtcdError> {
        self.inputs.borrow_and_update();
        let groups = self.groups();
        self.values.retain(|(group, _), _| groups.contains_key(group));
        self.known.retain(|group| groups.contains_key(group));
        let ranges: Vec<String> =
            groups.keys().map(|group| self.start.roots.announcements(group.as_str())).collect();
        let mut from = i64::MAX;
        let mut places: BTreeSet<Place> = self.values.keys().cloned().collect();
        for range in &ranges {
            let (keys, revision) = self.etcd.keys(range, HOSTS_LIMIT).await?;
            let keys = keys.ok_or_else(|| {
                EtcdError::Refused(format!("more than {HOSTS_LIMIT} hosts announce {range}"))
            })?;
            from = from.min(revision);
            places.extend(keys.iter().filter_map(|key| self.place(key)));
        }
        places.extend(self.kept_places(&groups));
        self.read(places).await?;
        self.known.extend(groups.keys().cloned());
        (self.trouble, *failures) = (None, 0);
        self.publish();
        if ranges.is_empty() {
            drop(self.inputs.changed().await);
            return Ok(());
        }
        self.watch(&ranges, from + 1).await
    }

    /// Where the members stood that are in force, of groups that have not been read yet: every host may
    /// delete an announcement, and only the host that a member is of may take it away.
    fn kept_places(&self, groups: &BTreeMap<GroupId, Selector>) -> BTreeSet<Place> {
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

    async fn watch(&mut self, ranges: &[String], from: i64) -> Result<(), EtcdError> {
        let (needed, hosts) = {
            let inputs = self.inputs.borrow();
            (inputs.needed.clone(), Arc::clone(&inputs.hosts))
        };
        let mut watch = self.etcd.watch_ranges(ranges, from).await?;
        let mut heard_at = Instant::now();
        let mut ask = tokio::time::interval_at(heard_at + ASK, ASK);
        let mut inputs = self.inputs.clone();
        loop {
            tokio::select! {
                keys = watch.next() => {
                    let mut keys = keys?;
                    heard_at = Instant::now();
                    if keys.is_empty() {
                        continue;
                    }
                    let until = heard_at + COALESCE;
                    while let Ok(more) = tokio::time::timeout_at(until, watch.next()).await {
                        keys.append(&mut more?);
                    }
                    let places = keys.iter().filter_map(|put| self.place(&put.key)).collect();
                    self.read(places).await?;
                    self.publish();
                }
                _ = ask.tick() => {
                    if heard_at.elapsed() > SILENCE {
                        self.etcd.next_member();
                        let why = format!("watch: no response for {SILENCE:?}");
                        return Err(EtcdError::Unreachable(why));
                    }
                    watch.request_progress().await?;
                }
                changed = inputs.changed() => {
                    let other = {
                        let inputs = inputs.borrow_and_update();
                        inputs.needed != needed || inputs.hosts.keys().any(|it| !hosts.contains_key(it))
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
    fn place(&self, key: &[u8]) -> Option<Place> {
        let (group, host) = self.start.roots.announced(key)?;
        (host != self.start.host).then_some((GroupId::parse(group)?, host))
    }

    /// Reads `places` of hosts that there are.
    async fn read(&mut self, places: BTreeSet<Place>) -> Result<(), EtcdError> {
        let hosts = Arc::clone(&self.inputs.borrow().hosts);
        let places: Vec<Place> =
            places.into_iter().filter(|(_, host)| hosts.contains_key(host)).collect();
        let key = |(group, host): &Place| self.start.roots.members(host, group.as_str());
        let keys: Vec<String> = places.iter().map(key).collect();
        for (place, value) in places.into_iter().zip(self.etcd.values(&keys).await?) {
            match value {
                Some(value) => drop(self.values.insert(place, value)),
                None => drop(self.values.remove(&place)),
            }
        }
        Ok(())
    }

    fn publish(&mut self) {
        let (groups, hosts) = (self.groups(), Arc::clone(&self.inputs.borrow().hosts));
        let unread = groups.iter().filter(|(group, _)| !self.known.contains(group));
        let unread = unread.map(|(_, selector)| selector.clone()).collect();
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
            exchanged.members.insert(selector.clone(), Arc::new(found));
        }
        if let Some(why) = &self.trouble {
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

fn problem(host: &NodeName, selector: &Selector, fault: &SharedFault) -> Problem {
    let what = format!("what it says of {selector} is ignored: {fault}");
    Problem::new(ProblemKind::Policy, Object::named(format!("host {host}")), what)
}
