//! Pure. The keys by which a host publishes its members of groups.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lease::records::{Key, Roots};
use crate::lease::transaction::{Condition, Transaction, Write};
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::policy::members::FoundMembers;
use crate::policy::{Members, Selector};
use crate::sources::generations;
use crate::sources::shared::{GroupId, write};

/// Groups in one transaction: two writes each. Source: etcd's `--max-txn-ops`, 128, and its limit of
/// 1.5 MiB for a request.
const TOGETHER: usize = 32;
const BYTES: usize = 1024 * 1024;

/// What a host says of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication<'a> {
    roots: &'a Roots,
    host: &'a NodeName,
    /// Its record must not have changed since this revision.
    record: i64,
    /// Key and value.
    wanted: BTreeMap<String, String>,
}

/// How to make the keys as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationChanges {
    /// `None`: nothing but announcements is put.
    pub generation: Option<u64>,
    pub transactions: Vec<Transaction>,
}

impl<'a> Publication<'a> {
    /// `own`: as far as they fit into values. Groups without members on this host have no key.
    pub fn new(
        roots: &'a Roots,
        host: &'a NodeName,
        own: &Members,
        record: i64,
    ) -> Publication<'a> {
        let some = own.iter().filter(|(_, members)| !members.is_empty());
        let pair = |(selector, members): (&Selector, &FoundMembers)| {
            let key = roots.members(host, GroupId::of(selector).as_str());
            (key, write(selector, members))
        };
        let wanted = some.map(pair).gather();
        Publication { roots, host, record, wanted }
    }

    /// What is to be done with `found` there now, `own` the generation noted last, and `now` since 1970:
    /// withdrawals first. Announcements that somebody deleted are put again; all are if etcd has another
    /// generation, so that hosts which ignore an older one look again.
    pub fn changes(
        &self,
        mut found: BTreeMap<String, Vec<u8>>,
        own: u64,
        now: Duration,
    ) -> PublicationChanges {
        let in_etcd = found.remove(&self.roots.members_generation(self.host));
        let in_etcd = generations::parse(in_etcd.as_deref());
        let is_there = |key: &String, value: &String| {
            found.get(key).is_some_and(|found| found == value.as_bytes())
        };
        let is_same = found.len() == self.wanted.len()
            && self.wanted.iter().all(|(key, value)| is_there(key, value));
        let is_other = in_etcd != own;
        let generation = (!is_same || is_other).then(|| generations::next(own, in_etcd, now));
        let gone = found.keys().filter(|key| !self.wanted.contains_key(*key));
        let gone = gone.map(|key| (key, vec![Write::Delete { key: key.clone() }], false));
        let wanted = self.wanted.iter().map(|(key, value)| {
            let put = || Write::Put { key: key.clone(), value: value.clone(), lease: 0 };
            (key, if is_there(key, value) { Vec::new() } else { vec![put()] }, true)
        });
        let mut transactions = Vec::new();
        let (mut writes, mut groups, mut bytes) = (self.stating(generation), 0, 0);
        for (key, mut own, stays) in gone.chain(wanted) {
            let more: usize = own.iter().map(size).sum();
            if groups == TOGETHER || bytes + more > BYTES {
                let full = std::mem::replace(&mut writes, self.stating(generation));
                transactions.extend(self.transaction(full));
                (groups, bytes) = (0, 0);
            }
            (groups, bytes) = (groups + 1, bytes + more);
            writes.extend(self.announcement(key, stays, is_other || !own.is_empty()));
            writes.append(&mut own);
        }
        transactions.extend(self.transaction(writes));
        PublicationChanges { generation, transactions }
    }

    fn stating(&self, generation: Option<u64>) -> Vec<Write> {
        let key = self.roots.members_generation(self.host);
        let put = |value: u64| Write::Put { key, value: value.to_string(), lease: 0 };
        generation.map(put).into_iter().collect()
    }

    /// Announces a change of the group at `key`, or that there is one if that is not announced; the end of an
    /// announcement is one, too.
    fn announcement(&self, key: &str, stays: bool, changed: bool) -> Option<Write> {
        let group = key.strip_prefix(&self.roots.members_of(self.host))?;
        let key = format!("{}{}", self.roots.announcements(group), self.host);
        let put = Write::Put { key: key.clone(), value: String::new(), lease: 0 };
        Some(match (stays, changed) {
            (false, _) => Write::Delete { key },
            (true, true) => put,
            (true, false) => {
                let absent = Condition::Unchanged { key, modified: 0 };
                Write::Try(Transaction { conditions: vec![absent], writes: vec![put] })
            }
        })
    }

    fn transaction(&self, writes: Vec<Write>) -> Option<Transaction> {
        let key = self.roots.key(&Key::Node(self.host.clone()));
        let ours = Condition::Unchanged { key, modified: self.record };
        (!writes.is_empty()).then(|| Transaction { conditions: vec![ours], writes })
    }
}

fn size(write: &Write) -> usize {
    match write {
        Write::Put { value, .. } => value.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Member;

    const NOW: Duration = Duration::from_micros(100);
    const GENERATION: &str = "/z-members/h1/generation";

    /// Keys and values that are put and keys that are deleted, with `found` there and `own` noted; each
    /// transaction requires the host's record.
    fn writes(
        found: &[(&str, &str)],
        own: u64,
        members: bool,
    ) -> (Option<u64>, Vec<(String, Option<String>)>) {
        let roots = Roots { hosts: "/h".into(), counter: "/c".into(), humanz: "/z".into() };
        let member = Member { addresses: ["10.1.2.3".parse().unwrap()].into(), ports: Vec::new() };
        let all: Members = match members {
            true => [(Selector::every_pod(), std::sync::Arc::new([member].into()))].into(),
            false => Members::default(),
        };
        let host = "h1".parse().unwrap();
        let publication = Publication::new(&roots, &host, &all, 5);
        let found = found.iter().map(|(key, value)| {
            let value = match *value {
                "same" => publication.wanted.values().next().unwrap().clone(),
                value => value.to_owned(),
            };
            ((*key).to_owned(), value.into_bytes())
        });
        let changes = publication.changes(found.collect(), own, NOW);
        let written = changes.transactions.into_iter().flat_map(|transaction| {
            let record = Condition::Unchanged { key: "/z/nodes/h1".into(), modified: 5 };
            assert_eq!(transaction.conditions, [record]);
            transaction.writes
        });
        let written = written.filter_map(|write| match write {
            Write::Put { key, value, .. } => Some((key, Some(value))),
            Write::Delete { key } => Some((key, None)),
            _ => None,
        });
        (changes.generation, written.collect())
    }

    #[test]
    fn each_change_is_stated_with_a_larger_generation() {
        let id = GroupId::of(&Selector::every_pod());
        let (own, announced) =
            (format!("/z-members/h1/{}", id.as_str()), format!("/z-groups/{}/h1", id.as_str()));
        let keys = |written: &[(String, Option<String>)]| {
            written.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        let (generation, written) = writes(&[], 0, true);
        assert_eq!(generation, Some(100));
        assert_eq!(written[0], (GENERATION.to_owned(), Some("100".to_owned())));
        assert_eq!(keys(&written), [GENERATION, &announced, &own]);
        let there = [(&*own, "same"), (GENERATION, "100")];
        assert_eq!(writes(&there, 100, true), (None, Vec::new()));
        let (generation, written) = writes(&[(&own, "older"), (GENERATION, "100")], 100, true);
        assert_eq!((generation, keys(&written).len()), (Some(101), 3));
        // etcd is older, or the files of this host are: each group is announced, although it is the same.
        for (in_etcd, own_generation, next) in [("100", 130, 131), ("130", 0, 131)] {
            let (generation, written) =
                writes(&[(&own, "same"), (GENERATION, in_etcd)], own_generation, true);
            assert_eq!(generation, Some(next));
            assert_eq!(keys(&written), [GENERATION, &announced]);
        }
        let (generation, written) = writes(&there[1..], 130, false);
        assert_eq!((generation, keys(&written)), (Some(131), vec![GENERATION.to_owned()]));
        let (generation, written) = writes(&[(&own, "older"), (GENERATION, "100")], 100, false);
        assert_eq!(generation, Some(101));
        assert_eq!(written[1..], [(announced, None), (own, None)]);
        assert_eq!(writes(&[], 0, false), (None, Vec::new()), "a host that never said anything");
    }
}
