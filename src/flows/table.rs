//! Pure. Connections and denied packets, counted by who connects to what, in bounded room.
//!
//! Each belongs to a pod of this host, and a pod has room for a few: what one of them does costs its own
//! oldest ones, and no other pod's. What comes to a pod from outside has room of its own.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::policy::Transport;

/// Flows of one pod that are distinguished, and as many that come to it from outside; the oldest ones beyond are added up.
pub const OWNER_LIMIT: usize = 256;

/// Flows of all pods. Each takes some 300 bytes.
pub const LIMIT: usize = 16_384;

/// A flow is kept so long after its last connection.
pub const KEPT: Duration = Duration::from_secs(3600);

/// One end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowParty {
    pub address: IpAddr,
    /// `namespace/name` of the pod that had the address then, if it was one of this host.
    pub pod: Option<Arc<str>>,
}

/// What is counted as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub source: FlowParty,
    /// Behind translation.
    pub destination: FlowParty,
    pub transport: Transport,
    /// Where it was sent to, if that was translated.
    pub service: Option<(IpAddr, Option<u16>)>,
    /// The words of the rule that reported the packet; `None` of a connection, which was allowed.
    pub report: Option<Arc<str>>,
}

/// How often, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCount {
    pub count: u64,
    pub first: SystemTime,
    pub last: SystemTime,
}

/// All flows of a host.
#[derive(Debug, Default)]
pub struct FlowTable {
    owners: HashMap<FlowOwner, OwnerFlows>,
    entries: usize,
}

/// Whose room a flow takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FlowOwner {
    /// `None`: no end is a pod that is known.
    pod: Option<Arc<str>>,
    /// It has opened it.
    is_source: bool,
}

#[derive(Debug, Default)]
struct OwnerFlows {
    flows: HashMap<FlowKey, FlowCount>,
    /// Those that were given up.
    others: Option<FlowCount>,
}

impl FlowKey {
    fn owner(&self) -> FlowOwner {
        let is_source = self.source.pod.is_some();
        let party = if is_source { &self.source } else { &self.destination };
        FlowOwner { pod: party.pod.clone(), is_source }
    }
}

impl FlowTable {
    /// A connection began, or a packet was reported.
    pub fn count(&mut self, key: FlowKey, now: SystemTime) {
        let owner = self.owners.entry(key.owner()).or_default();
        if let Some(found) = owner.flows.get_mut(&key) {
            found.count += 1;
            found.last = now;
            return;
        }
        if owner.flows.len() >= OWNER_LIMIT {
            owner.give_up_oldest();
            self.entries -= 1;
        }
        owner.flows.insert(key, FlowCount { count: 1, first: now, last: now });
        self.entries += 1;
        if self.entries > LIMIT {
            self.shrink();
        }
    }

    /// A connection is there; whether it was counted is not known, so it takes no room.
    pub fn see(&mut self, key: FlowKey, now: SystemTime) {
        let owner = self.owners.entry(key.owner()).or_default();
        if let Some(found) = owner.flows.get_mut(&key) {
            found.last = now;
        } else if owner.flows.len() < OWNER_LIMIT && self.entries < LIMIT {
            owner.flows.insert(key, FlowCount { count: 1, first: now, last: now });
            self.entries += 1;
        }
    }

    /// One is given up: where what comes from outside takes more than half of the room, of that, else of
    /// the pod with most of its own.
    fn shrink(&mut self) {
        let outside = self.owners.iter().filter(|(owner, _)| !owner.is_source);
        let outside: usize = outside.map(|(_, flows)| flows.flows.len()).sum();
        let is_own = outside <= LIMIT / 2;
        let owners = self.owners.iter_mut().filter(|(owner, _)| owner.is_source == is_own);
        if let Some((_, owner)) = owners.max_by_key(|(_, owner)| owner.flows.len()) {
            owner.give_up_oldest();
            self.entries -= 1;
        }
    }

    /// Forgets what has not happened for [`KEPT`].
    pub fn expire(&mut self, now: SystemTime) {
        let lives = |count: &FlowCount| now.duration_since(count.last).is_ok_and(|it| it < KEPT);
        for owner in self.owners.values_mut() {
            owner.flows.retain(|_, count| lives(count));
            owner.others = owner.others.filter(lives);
        }
        self.owners.retain(|_, owner| !owner.flows.is_empty() || owner.others.is_some());
        self.entries = self.owners.values().map(|owner| owner.flows.len()).sum();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub fn flows(&self) -> impl Iterator<Item = (&FlowKey, &FlowCount)> {
        self.owners.values().flat_map(|owner| &owner.flows)
    }

    /// What was given up of each pod, from outside or not.
    pub fn others(&self) -> BTreeMap<Option<&Arc<str>>, FlowCount> {
        let mut all: BTreeMap<Option<&Arc<str>>, FlowCount> = BTreeMap::new();
        for (owner, flows) in &self.owners {
            let Some(gone) = flows.others else { continue };
            all.entry(owner.pod.as_ref()).and_modify(|sum| sum.add(gone)).or_insert(gone);
        }
        all
    }
}

impl OwnerFlows {
    fn give_up_oldest(&mut self) {
        let oldest = self.flows.iter().min_by_key(|(_, count)| count.last);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
        let Some(gone) = self.flows.remove(&key) else { return };
        self.others.get_or_insert(FlowCount { count: 0, ..gone }).add(gone);
    }
}

impl FlowCount {
    fn add(&mut self, more: FlowCount) {
        self.count += more.count;
        self.first = self.first.min(more.first);
        self.last = self.last.max(more.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Protocol;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn party(pod: Option<&str>, last: u8) -> FlowParty {
        FlowParty { address: [10, 1, 2, last].into(), pod: pod.map(Into::into) }
    }

    fn key(from: Option<&str>, to: Option<&str>, port: u16) -> FlowKey {
        FlowKey {
            source: party(from, 3),
            destination: party(to, 4),
            transport: Transport::Port(Protocol::Tcp, port),
            service: None,
            report: None,
        }
    }

    fn ports_of(table: &FlowTable, pod: &str) -> Vec<u16> {
        let of_pod = table.flows().filter(|(key, _)| key.source.pod.as_deref() == Some(pod));
        let mut ports: Vec<u16> = of_pod
            .filter_map(|(key, _)| match key.transport {
                Transport::Port(_, port) => Some(port),
                _ => None,
            })
            .collect();
        ports.sort_unstable();
        ports
    }

    #[test]
    fn connections_alike_are_one_flow() {
        let mut table = FlowTable::default();
        let web = || key(Some("shop/web"), Some("shop/db"), 5432);
        table.count(web(), at(1));
        table.count(web(), at(5));
        table.see(web(), at(9));
        let denied = FlowKey { report: Some("humanz: x ".into()), ..web() };
        table.count(denied, at(9));
        let renamed = key(Some("shop/web2"), Some("shop/db"), 5432);
        table.see(renamed, at(9));
        let found: Vec<&FlowCount> = table.flows().map(|(_, count)| count).collect();
        assert_eq!((table.len(), found.len()), (3, 3), "a new owner of an address is another pod");
        assert!(found.contains(&&FlowCount { count: 2, first: at(1), last: at(9) }));
    }

    #[test]
    fn a_pod_that_opens_a_hundred_thousand_connections_costs_only_its_own_flows() {
        let mut table = FlowTable::default();
        table.count(key(Some("shop/web"), Some("shop/db"), 5432), at(0));
        let bad = |port: u16| key(Some("bad/scan"), Some("shop/db"), port);
        table.count(bad(1), at(0));
        for round in 0..100_000_u64 {
            let at = at(1 + round);
            table.count(bad(2 + (round % 60_000) as u16), at);
            table.count(bad(1), at);
        }
        assert_eq!(table.len(), 1 + OWNER_LIMIT);
        assert_eq!(ports_of(&table, "shop/web"), [5432]);
        let left = ports_of(&table, "bad/scan");
        assert!(left.contains(&1), "what goes on is kept");
        let others: Vec<_> = table.others().into_values().collect();
        let kept: u64 = table.flows().map(|(_, count)| count.count).sum();
        assert_eq!(others.len(), 1);
        assert_eq!(others[0].count + kept, 200_002, "nothing is lost of the sum");
    }

    #[test]
    fn a_scan_from_outside_costs_no_pod_its_own_flows() {
        let mut table = FlowTable::default();
        let pods: Vec<String> = (0..200).map(|pod| format!("shop/{pod}")).collect();
        for (pod, port) in pods.iter().flat_map(|pod| (0..30).map(move |port| (pod, port))) {
            table.count(key(Some(pod), None, port), at(0));
        }
        table.count(key(Some("shop/0"), None, 30), at(0));
        (0..200).for_each(|port| table.count(key(Some("shop/1"), None, port), at(0)));
        for (port, pod) in (0..300).flat_map(|port| pods.iter().map(move |pod| (port, pod))) {
            table.count(key(None, Some(pod), port), at(1 + u64::from(port)));
        }
        assert_eq!(ports_of(&table, "shop/0").len(), 31);
        assert_eq!(ports_of(&table, "shop/1").len(), 200, "the largest of them, too");
        assert!(pods[2..].iter().all(|pod| ports_of(&table, pod).len() == 30));
        assert_eq!(table.len(), LIMIT);
    }

    #[test]
    fn what_a_list_has_again_and_again_takes_no_room_and_is_not_counted_again() {
        let mut table = FlowTable::default();
        let web = |port| key(Some("shop/web"), Some("shop/db"), port);
        table.count(web(9999), at(0));
        for list in 1..10 {
            (0..300).for_each(|port| table.see(web(port), at(list)));
        }
        assert_eq!((table.len(), table.others().len()), (OWNER_LIMIT, 0));
        assert!(table.flows().all(|(_, count)| count.count == 1));
        assert!(ports_of(&table, "shop/web").contains(&9999));
        let now = table.flows().filter(|(_, count)| count.last == at(9));
        assert_eq!(now.count(), OWNER_LIMIT - 1);
    }

    #[test]
    fn addresses_without_end_and_pods_without_end_have_bounded_room() {
        let mut table = FlowTable::default();
        for number in 0..100_000_u32 {
            let mut outside = key(None, None, 80);
            outside.source.address = number.to_be_bytes().into();
            table.count(outside, at(0));
        }
        assert_eq!(table.len(), OWNER_LIMIT);
        for pod in 0..200 {
            for port in 0..200 {
                table.count(key(Some(&format!("a/{pod}")), None, port), at(1));
            }
        }
        assert_eq!(table.len(), LIMIT);
        assert!((0..200).all(|pod| !ports_of(&table, &format!("a/{pod}")).is_empty()));
    }

    #[test]
    fn what_has_not_happened_for_long_is_forgotten() {
        let mut table = FlowTable::default();
        for port in 0..1000 {
            table.count(key(Some("shop/web"), None, port), at(0));
        }
        table.count(key(Some("shop/db"), None, 53), at(10));
        table.expire(at(5) + KEPT);
        assert_eq!((table.len(), table.others().len()), (1, 0));
        table.expire(at(20) + KEPT);
        assert!(table.is_empty() && table.owners.is_empty());
    }
}
