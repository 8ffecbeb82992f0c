//! Pure. What is known of the members of groups on other hosts.
//!
//! A member goes only when its host says so, and comes only by what is newer than all that its host said before: an
//! etcd that was restored from an older state changes nothing of a host whose agent is down. Such a host is behind:
//! what was known of it stays until it says it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use crate::lease::EtcdError;
use crate::lease::records::Roots;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::{FailureReason, Object, Problem, ProblemKind};
use crate::policy::Selector;
use crate::sources::exchanged::{ExchangeStart, ExchangedMembers, LEARNED};
use crate::sources::generations::{self, KnownGenerations};
use crate::sources::shared::{self, GroupId, Hosts, VALUE_LIMIT, owners};

/// Members of one group on all hosts: ten times as many as a large cluster's pods.
const GROUP_LIMIT: usize = 200_000;

/// Problems that are listed.
const PROBLEMS_LIMIT: usize = 50;

/// A group and a host that announced members of it.
type MembersKey = (GroupId, NodeName);

/// What is read at once.
#[derive(Default)]
pub struct MembersReading {
    places: BTreeSet<MembersKey>,
    /// Hosts whose generations are read.
    of: BTreeSet<NodeName>,
}

/// What was received, and who has to be asked.
pub struct KnownMembers<'a> {
    start: &'a ExchangeStart,
    /// The hosts that there are now; none at first.
    pub hosts: Arc<Hosts>,
    pub generations: KnownGenerations,
    /// etcd was not asked for the generations of all hosts since it was away: it may have older ones.
    pub is_unsure: bool,
    /// The groups that are needed.
    pub groups: BTreeMap<GroupId, Selector>,
    /// Those that more hosts announce than there are.
    pub crowded: BTreeSet<Selector>,
    /// The values of all places that were announced, as they are in etcd.
    values: BTreeMap<MembersKey, Vec<u8>>,
    /// Groups that have been read.
    known: BTreeSet<GroupId>,
    /// Groups that were needed when etcd answered last, or the agent before had in force: while etcd is away the next
    /// pod that needs one finds the members that were known.
    held: BTreeMap<GroupId, Selector>,
    /// Groups that were read first while a host was behind: what it said of them is not known. No pod waits for that
    /// after [`LEARNED`], the time given: a host whose agent is down, or that is behind on purpose, holds up no rule for
    /// longer.
    partly: BTreeMap<GroupId, Instant>,
}

impl MembersReading {
    /// What to read. The generations last: a value is never newer than the one that is read with it, nor from before
    /// a restore that this one does not show.
    pub fn keys(&self, roots: &Roots) -> Vec<String> {
        let key = |(group, host): &MembersKey| roots.members(host, group.as_str());
        let generations = self.of.iter().map(|host| roots.members_generation(host));
        self.places.iter().map(key).chain(generations).collect()
    }
}

impl<'a> KnownMembers<'a> {
    pub fn new(start: &'a ExchangeStart, generations: KnownGenerations) -> Self {
        let (hosts, groups, crowded, values, known, partly) = Default::default();
        let (held, is_unsure) = (by_id(start.kept.keys()), true);
        KnownMembers {
            start,
            hosts,
            generations,
            is_unsure,
            groups,
            crowded,
            values,
            known,
            held,
            partly,
        }
    }

    /// Nothing is known any more of groups that are not `needed`.
    pub fn need(&mut self, needed: &BTreeSet<Selector>) {
        let groups = by_id(needed.iter());
        self.values.retain(|(group, _), _| groups.contains_key(group));
        self.known.retain(|group| groups.contains_key(group));
        self.partly.retain(|group, _| groups.contains_key(group));
        self.crowded.retain(|selector| needed.contains(selector));
        self.groups = groups;
        self.forget_removed();
    }

    /// The needed groups that have not been read.
    pub fn unread(&self) -> Vec<GroupId> {
        self.groups.keys().filter(|group| !self.known.contains(*group)).cloned().collect()
    }

    /// A host that was removed is not behind, and another one may have its name.
    pub fn forget_removed(&mut self) {
        if !self.hosts.is_empty() {
            self.generations.retain(|host| self.hosts.contains_key(host));
            self.end_partly();
        }
    }

    /// What to read of `groups`, which are needed, in their order; `announced`: the keys of each, `None` instead of too many.
    pub fn reading_announced(
        &mut self,
        groups: &[GroupId],
        announced: Vec<Option<Vec<Vec<u8>>>>,
    ) -> MembersReading {
        let known = self.values.keys().filter(|(group, _)| groups.binary_search(group).is_ok());
        let mut places: BTreeSet<MembersKey> = known.cloned().gather();
        for (group, keys) in groups.iter().zip(announced) {
            let selector = &self.groups[group];
            match keys {
                Some(keys) => {
                    self.crowded.remove(selector);
                    places.extend(keys.iter().filter_map(|key| self.place(key)));
                }
                // Whoever may announce can do so for hosts that do not exist: those that do are looked up.
                None => {
                    self.crowded.insert(selector.clone());
                    places.extend(self.places(group, self.hosts.keys()));
                }
            }
        }
        places.extend(self.kept_places());
        let unsure = std::mem::take(&mut self.is_unsure).then(|| self.generations.hosts());
        self.reading(MembersReading { places, of: unsure.unwrap_or_default() })
    }

    /// What to read after `announced` keys were put or deleted.
    pub fn reading_of<'k>(&self, announced: impl Iterator<Item = &'k [u8]>) -> MembersReading {
        let places = announced.filter_map(|key| self.place(key)).gather();
        self.reading(MembersReading { places, ..MembersReading::default() })
    }

    /// What to read to see which hosts are behind no more.
    pub fn reading_behind(&self) -> MembersReading {
        MembersReading { of: self.generations.behind().clone(), ..MembersReading::default() }
    }

    /// What to read of those that [`KnownMembers::reading_behind`] found to be back.
    pub fn reading_back(
        &self,
        mut hosts: MembersReading,
        found: &[Option<Vec<u8>>],
    ) -> MembersReading {
        let mut found = found.iter();
        hosts.of.retain(|host| {
            let value = found.next().and_then(Option::as_deref);
            self.generations.is_current(host, generations::parse(value))
        });
        self.reading(hosts)
    }

    /// `read` of hosts that there are, with the generations of all and all places of a host that was behind.
    fn reading(&self, mut read: MembersReading) -> MembersReading {
        read.places.retain(|(_, host)| self.hosts.contains_key(host));
        read.of.extend(read.places.iter().map(|(_, host)| host.clone()));
        for host in read.of.intersection(self.generations.behind()) {
            read.places.extend(self.groups.keys().map(|group| (group.clone(), host.clone())));
        }
        read
    }

    /// The place that `key` announces; `None` if it is this host's, of a group that is not needed, or none.
    fn place(&self, key: &[u8]) -> Option<MembersKey> {
        let (group, host) = self.start.roots.announced(key)?;
        let group = GroupId::parse(group).filter(|group| self.groups.contains_key(group))?;
        (host != self.start.host).then_some((group, host))
    }

    /// The places of a group on `hosts`, but for this one.
    fn places<'h>(
        &self,
        group: &GroupId,
        hosts: impl Iterator<Item = &'h NodeName>,
    ) -> impl Iterator<Item = MembersKey> {
        let others = hosts.filter(|host| **host != self.start.host);
        others.map(|host| (group.clone(), host.clone()))
    }

    /// Where the members stood that are in force, of groups that have not been read yet: every host may
    /// delete an announcement, and only the host that a member is of may take it away.
    fn kept_places(&self) -> Vec<MembersKey> {
        let unread = self.groups.iter().filter(|(group, _)| !self.known.contains(group));
        let kept = unread.filter_map(|(group, selector)| {
            let hosts = owners(self.start.kept.get(selector)?, &self.hosts);
            Some(self.places(group, hosts.iter()).collect::<Vec<_>>())
        });
        kept.flatten().collect()
    }

    /// Takes what was `found` of a reading, but for what is older than what its host said before.
    pub fn take(&mut self, reading: MembersReading, mut found: Vec<Option<Vec<u8>>>) {
        let MembersReading { places, of } = reading;
        let generations = found.split_off(places.len());
        for (host, value) in of.iter().zip(generations) {
            self.generations.receive(host, generations::parse(value.as_deref()));
        }
        for (place, value) in places.into_iter().zip(found) {
            match value {
                _ if self.generations.behind().contains(&place.1) => self.keep(place),
                Some(mut value) => {
                    // Any longer one says nothing.
                    value.truncate(VALUE_LIMIT + 1);
                    self.values.insert(place, value);
                }
                None => drop(self.values.remove(&place)),
            }
        }
        self.end_partly();
    }

    /// What was in force of the members at `place`, if this agent has not read them since its start: etcd has older
    /// ones.
    fn keep(&mut self, place: MembersKey) {
        let (group, host) = &place;
        let known = self.groups.get(group).and_then(|selector| {
            let members = self.hosts.get(host)?.own(selector, self.start.kept.get(selector)?);
            Some(shared::write(selector, &members).into_bytes())
        });
        if let Some(value) = known.filter(|_| !self.values.contains_key(&place)) {
            self.values.insert(place, value);
        }
    }

    /// All needed groups have been read, at `now`.
    pub fn complete(&mut self, now: Instant) {
        let is_first = |group: &&GroupId| {
            !self.known.contains(*group) && !self.start.kept.contains_key(&self.groups[*group])
        };
        let first: Vec<GroupId> = self.groups.keys().filter(is_first).cloned().collect();
        if !self.generations.behind().is_empty() {
            self.partly.extend(first.into_iter().map(|group| (group, now + LEARNED)));
        }
        self.known.extend(self.groups.keys().cloned());
        self.held.clone_from(&self.groups);
    }

    /// When hosts that are behind hold up the next group no longer.
    pub fn wait_until(&self) -> Option<Instant> {
        self.partly.values().min().copied()
    }

    /// Ends the waits that are over at `now`.
    pub fn end_wait(&mut self, now: Instant) {
        self.partly.retain(|_, until| *until > now);
    }

    /// All hosts have said again what they say: nothing is unknown of any group.
    fn end_partly(&mut self) {
        if self.generations.behind().is_empty() {
            self.partly.clear();
        }
    }

    /// What is known of the groups that are `needed` now, and of those that were; `trouble`: why they are not followed.
    pub fn received(
        &self,
        needed: &BTreeSet<Selector>,
        trouble: Option<&EtcdError>,
    ) -> ExchangedMembers {
        let groups = by_id(needed.iter().chain(self.held.values()));
        let is_whole = |group| self.known.contains(group) && !self.partly.contains_key(group);
        let unread = groups.iter().filter(|(group, _)| !is_whole(group));
        let unread = unread.map(|(_, selector)| selector.clone()).gather();
        let mut received = ExchangedMembers { unread, ..ExchangedMembers::default() };
        if let Some(why) = trouble.filter(|_| !groups.is_empty()) {
            let subject = Object::named("members of groups");
            let why = FailureReason::from(why.clone());
            let why = why.at("not followed; those known before stay in force");
            received.problems.push(Problem::of_failure(ProblemKind::Etcd, subject, why));
        }
        for (group, selector) in groups.iter().filter(|(group, _)| self.known.contains(group)) {
            self.add_group(group, selector, &mut received);
        }
        received.problems.extend(self.crowded.iter().map(|selector| {
            of_group(selector, "more hosts announce members than there are".to_owned())
        }));
        let behind = self.generations.behind().iter().filter(|host| self.hosts.contains_key(*host));
        received.problems.extend(behind.map(behind_problem));
        received.problems.truncate(PROBLEMS_LIMIT);
        received
    }

    /// Adds what all hosts say of one group.
    fn add_group(&self, group: &GroupId, selector: &Selector, received: &mut ExchangedMembers) {
        let mut found = BTreeSet::new();
        let first = (group.clone(), "0".parse().expect("a name"));
        let values = self.values.range(first..).take_while(|((of, _), _)| of == group);
        for ((_, host), value) in values {
            let Some(addresses) = self.hosts.get(host) else { continue };
            let (members, fault) = shared::read(value, selector, addresses);
            // `append` makes all of `found` anew.
            found.extend(members);
            if let Some(fault) = fault.filter(|_| received.problems.len() < PROBLEMS_LIMIT) {
                let what = format!("what host {host} says of {selector} is ignored: {fault}");
                received.problems.push(of_host(host, what));
            }
        }
        if found.len() > GROUP_LIMIT {
            received.unread.insert(selector.clone());
            let what = format!("more than {GROUP_LIMIT} members; those known before hold");
            received.problems.push(of_group(selector, what));
        } else {
            received.members.insert(selector.clone(), Arc::new(found));
        }
    }
}

fn by_id<'a>(groups: impl Iterator<Item = &'a Selector>) -> BTreeMap<GroupId, Selector> {
    groups.map(|selector| (GroupId::of(selector), selector.clone())).gather()
}

fn of_group(selector: &Selector, what: String) -> Problem {
    let subject = match selector {
        Selector::Group(name) => format!("Group {name}"),
        Selector::Network(name) => format!("Network {name}"),
        other => format!("group {other}"),
    };
    let what = format!("{subject}: {what}");
    Problem::new(ProblemKind::Policy, Object::named(subject), what)
}

fn of_host(host: &NodeName, what: String) -> Problem {
    Problem::new(ProblemKind::Policy, Object::Host(host.clone()), what)
}

fn behind_problem(host: &NodeName) -> Problem {
    let what = format!(
        "etcd has an older state of the members of groups on host {host} than it published; those that were known stay"
    );
    of_host(host, what).with_fix(format!(
        "humanz-agent nodes show {host} # start its agent: it publishes them again"
    ))
}

#[cfg(test)]
mod tests;
