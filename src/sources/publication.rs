//! Pure. The keys by which a host publishes its members of groups.

use std::collections::BTreeMap;

use crate::lease::records::{Key, Roots};
use crate::lease::transaction::{Condition, Transaction, Write};
use crate::net::node_name::NodeName;
use crate::policy::Members;
use crate::sources::shared::{GroupId, VALUE_LIMIT, write};

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

impl<'a> Publication<'a> {
    /// Groups without members on this host have no key; nor has one that is too large for others to read.
    pub fn new(
        roots: &'a Roots,
        host: &'a NodeName,
        own: &Members,
        record: i64,
    ) -> Publication<'a> {
        let some = own.iter().filter(|(_, members)| !members.is_empty());
        let pair = some.map(|(selector, members)| {
            let key = roots.members(host, GroupId::of(selector).as_str());
            (key, write(selector, members))
        });
        let wanted = pair.filter(|(_, value)| value.len() <= VALUE_LIMIT).collect();
        Publication { roots, host, record, wanted }
    }

    /// The transactions after which the keys are as wanted, with `found` there now: withdrawals first.
    /// Announcements that somebody deleted are put again.
    pub fn changes(&self, found: &BTreeMap<String, Vec<u8>>) -> Vec<Transaction> {
        let gone = found.keys().filter(|key| !self.wanted.contains_key(*key));
        let gone = gone.map(|key| (key, vec![Write::Delete { key: key.clone() }], false));
        let wanted = self.wanted.iter().map(|(key, value)| {
            let is_there = found.get(key).is_some_and(|found| found == value.as_bytes());
            let put = || Write::Put { key: key.clone(), value: value.clone(), lease: 0 };
            (key, if is_there { Vec::new() } else { vec![put()] }, true)
        });
        let mut transactions = Vec::new();
        let (mut writes, mut groups, mut bytes) = (Vec::new(), 0, 0);
        for (key, mut own, stays) in gone.chain(wanted) {
            let more: usize = own.iter().map(size).sum();
            if groups == TOGETHER || bytes + more > BYTES {
                transactions.extend(self.transaction(std::mem::take(&mut writes)));
                (groups, bytes) = (0, 0);
            }
            (groups, bytes) = (groups + 1, bytes + more);
            writes.extend(self.announcement(key, stays, !own.is_empty()));
            writes.append(&mut own);
        }
        transactions.extend(self.transaction(writes));
        transactions
    }

    /// Announces a change of the group at `key`, or that there is one if nobody knows; the end of an
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
