//! Pure. A change of etcd as a value: what must still be so, and what to write then.

use std::collections::BTreeSet;

/// Keys of a transaction that are named when it is refused.
const NAMED: usize = 6;

/// One etcd transaction: all of `writes` if all of `conditions` hold, else nothing.
///
/// There is no write without a condition: whatever was read may have changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub conditions: Vec<Condition>,
    /// What is written then.
    pub writes: Vec<Write>,
}

/// Something that must still be as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key was last written at that revision; 0: it does not exist.
    Unchanged {
        /// The key.
        key: String,
        /// Its modification revision.
        modified: i64,
    },
    /// No key that begins with `prefix` was written after that revision.
    RangeUnchanged {
        /// Beginning of the keys.
        prefix: String,
        /// The revision of the read.
        since: i64,
    },
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Puts a value.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The etcd lease with which the key goes; 0: none.
        lease: i64,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
    },
    /// Another transaction; if its conditions do not hold, only its own writes are left out.
    Try(Transaction),
}

impl Transaction {
    /// The permissions that it needs, as `write /a, /b; read /c`; with many keys the first of them.
    pub fn needs(&self) -> String {
        let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
        self.collect(&mut written, &mut read);
        let list = |verb: &str, keys: &BTreeSet<&str>| {
            let shown = keys.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = if keys.len() > NAMED { " …" } else { "" };
            (!keys.is_empty()).then(|| format!("{verb} {shown}{more}"))
        };
        let parts = [list("write", &written), list("read", &read)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn collect<'a>(&'a self, written: &mut BTreeSet<&'a str>, read: &mut BTreeSet<&'a str>) {
        read.extend(self.conditions.iter().map(|condition| match condition {
            Condition::Unchanged { key, .. } => key.as_str(),
            Condition::RangeUnchanged { prefix, .. } => prefix.as_str(),
        }));
        for write in &self.writes {
            match write {
                Write::Put { key, .. } | Write::Delete { key } => {
                    written.insert(key);
                }
                Write::Try(inner) => inner.collect(written, read),
            }
        }
    }

    /// Adds the condition that `key` was last written at `modified` (0: does not exist).
    pub fn unchanged(&mut self, key: impl Into<String>, modified: i64) -> &mut Transaction {
        self.conditions.push(Condition::Unchanged { key: key.into(), modified });
        self
    }

    /// Adds the condition that nothing below `prefix` was written after `since`.
    pub fn range_unchanged(&mut self, prefix: impl Into<String>, since: i64) -> &mut Transaction {
        self.conditions.push(Condition::RangeUnchanged { prefix: prefix.into(), since });
        self
    }

    /// Adds a put.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Transaction {
        self.put_with_lease(key, value, 0)
    }

    /// Adds a put of a key that goes with an etcd lease (0: none).
    pub fn put_with_lease(
        &mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        lease: i64,
    ) -> &mut Transaction {
        self.writes.push(Write::Put { key: key.into(), value: value.into(), lease });
        self
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: impl Into<String>) -> &mut Transaction {
        self.writes.push(Write::Delete { key: key.into() });
        self
    }
}
