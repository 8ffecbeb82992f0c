//! Pure. Connections and denied packets, counted by who connects to what, in bounded room.
//!
//! Each belongs to a pod of this host, and a pod has room for a few: what one of them does costs its own
//! oldest ones, and nobody else's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::policy::Transport;

/// Flows of one pod that are distinguished; the oldest ones beyond are added up.
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
    /// By the pod; `None`: no end is a pod that is known.
    owners: HashMap<Option<Arc<str>>, OwnerFlows>,
    entries: usize,
}

#[derive(Debug, Default)]
struct OwnerFlows {
    flows: HashMap<FlowKey, FlowCount>,
    /// Those that were given up.
    others: Option<FlowCount>,
}

impl FlowKey {
    /// The pod whose flow this is: its source's, else its destination's.
    fn owner(&self) -> Option<Arc<str>> {
        self.source.pod.clone().or_else(|| self.destination.pod.clone())
    }
}

impl FlowTable {
    /// A connection began, or a packet was reported.
    pub fn count(&mut self, key: FlowKey, now: SystemTime) {
        self.add(key, now, 1);
    }

    /// A connection is there; whether it was counted is not known.
    pub fn see(&mut self, key: FlowKey, now: SystemTime) {
        self.add(key, now, 0);
    }

    fn add(&mut self, key: FlowKey, now: SystemTime, more: u64) {
        let owner = self.owners.entry(key.owner()).or_default();
        if let Some(found) = owner.flows.get_mut(&key) {
            found.count += more;
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

    /// The pod with most flows gives up one.
    fn shrink(&mut self) {
        let largest = self.owners.values_mut().max_by_key(|owner| owner.flows.len());
        if let Some(owner) = largest {
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

    /// What was given up of each pod.
    pub fn others(&self) -> impl Iterator<Item = (Option<&Arc<str>>, &FlowCount)> {
        self.owners.iter().filter_map(|(pod, owner)| Some((pod.as_ref(), owner.others.as_ref()?)))
    }
}

impl OwnerFlows {
    fn give_up_oldest(&mut self) {
        let oldest = self.flows.iter().min_by_key(|(_, count)| count.last);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
        let Some(gone) = self.flows.remove(&key) else { return };
        let others = self.others.get_or_insert(FlowCount { count: 0, ..gone });
        others.count += gone.count;
        others.first = others.first.min(gone.first);
        others.last = others.last.max(gone.last);
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
        let others: Vec<_> = table.others().collect();
        let kept: u64 = table.flows().map(|(_, count)| count.count).sum();
        assert_eq!(others.len(), 1);
        assert_eq!(others[0].1.count + kept, 200_002, "nothing is lost of the sum");
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
        assert_eq!((table.len(), table.others().count()), (1, 0));
        table.expire(at(20) + KEPT);
        assert!(table.is_empty() && table.owners.is_empty());
    }
}
