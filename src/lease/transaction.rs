//! Pure. A transaction of etcd as a value.

use std::collections::BTreeSet;

/// Keys that are listed when a transaction is refused.
const LISTED: usize = 6;

/// One etcd transaction: all of `writes` if all of `conditions` hold, else nothing.
///
/// There is no write without a condition: whatever was read may have changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    pub conditions: Vec<Condition>,
    pub writes: Vec<Write>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key was last changed at the revision `modified`; 0: it does not exist.
    Unchanged { key: String, modified: i64 },
    /// The key was created at the revision `created`, and not deleted since.
    Created { key: String, created: i64 },
    /// There is such a key.
    Exists { key: String },
    /// No key with `prefix` was changed after the revision `since`.
    RangeUnchanged { prefix: String, since: i64 },
    /// There are keys with `prefix`, and none of them has `value`.
    NoneHas { prefix: String, value: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// `lease`: the etcd lease of the key; 0: none.
    Put {
        key: String,
        value: String,
        lease: i64,
    },
    Delete {
        key: String,
    },
    /// A nested transaction: if its conditions do not hold, only its own writes are left out.
    Try(Transaction),
}

impl Transaction {
    /// It deletes a key.
    pub fn deletes(&self) -> bool {
        self.writes.iter().any(|write| matches!(write, Write::Delete { .. }))
    }

    /// The permissions it needs, as `write /a, /b; read /c`; of many keys the first [`LISTED`].
    pub fn needs(&self) -> String {
        let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
        self.collect(&mut written, &mut read);
        let list = |verb: &str, keys: &BTreeSet<&str>| {
            let shown = keys.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
            let more = if keys.len() > LISTED { " …" } else { "" };
            (!keys.is_empty()).then(|| format!("{verb} {shown}{more}"))
        };
        let parts = [list("write", &written), list("read", &read)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn collect<'a>(&'a self, written: &mut BTreeSet<&'a str>, read: &mut BTreeSet<&'a str>) {
        read.extend(self.conditions.iter().map(|condition| match condition {
            Condition::Unchanged { key, .. }
            | Condition::Created { key, .. }
            | Condition::Exists { key } => key.as_str(),
            Condition::RangeUnchanged { prefix, .. } | Condition::NoneHas { prefix, .. } => prefix,
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

    pub fn unchanged(&mut self, key: impl Into<String>, modified: i64) -> &mut Transaction {
        self.conditions.push(Condition::Unchanged { key: key.into(), modified });
        self
    }

    pub fn created(&mut self, key: impl Into<String>, created: i64) -> &mut Transaction {
        self.conditions.push(Condition::Created { key: key.into(), created });
        self
    }

    pub fn exists(&mut self, key: impl Into<String>) -> &mut Transaction {
        self.conditions.push(Condition::Exists { key: key.into() });
        self
    }

    pub fn range_unchanged(&mut self, prefix: impl Into<String>, since: i64) -> &mut Transaction {
        self.conditions.push(Condition::RangeUnchanged { prefix: prefix.into(), since });
        self
    }

    pub fn none_has(
        &mut self,
        prefix: impl Into<String>,
        value: impl Into<String>,
    ) -> &mut Transaction {
        let (prefix, value) = (prefix.into(), value.into());
        self.conditions.push(Condition::NoneHas { prefix, value });
        self
    }

    pub fn put(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Transaction {
        self.put_with_lease(key, value, 0)
    }

    pub fn put_with_lease(
        &mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        lease: i64,
    ) -> &mut Transaction {
        self.writes.push(Write::Put { key: key.into(), value: value.into(), lease });
        self
    }

    pub fn delete(&mut self, key: impl Into<String>) -> &mut Transaction {
        self.writes.push(Write::Delete { key: key.into() });
        self
    }
}
