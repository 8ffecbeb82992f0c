//! Pure. Foreign changes to this host's keys, described when they are reverted.

use crate::lease::records::{Key, Roots};
use crate::lease::restore::{self, Continuity};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::{Transaction, Write};

/// Characters of a foreign value that are shown.
const SHOWN: usize = 120;

/// Keys that are listed.
const LISTED: usize = 6;

/// One line about the keys that `transaction` reverts because others changed them since `known`;
/// `None` if there are none, or after a loss of data, which is logged once.
pub fn describe(
    known: &Snapshot,
    found: &Snapshot,
    roots: &Roots,
    transaction: &Transaction,
) -> Option<String> {
    if restore::continuity(known, found) != Continuity::Same {
        return None;
    }
    let part = |write: &Write| {
        let (text, value) = match write {
            Write::Put { key, value, .. } => (key, Some(value)),
            Write::Delete { key } => (key, None),
            Write::Try(_) => return None,
        };
        let key = roots.parse(text.as_bytes()).ok()??;
        if found.modified(roots, &key) == known.modified(roots, &key) {
            return None;
        }
        let done = match (value, &key) {
            (None, _) => "deleted".to_owned(),
            (Some(_), Key::Node(_)) => "this host's record put back".to_owned(),
            (Some(value), _) => format!("{value} put back"),
        };
        Some(format!("{text}: found {}, {done}", shown(found, text, &key)))
    };
    let mut parts: Vec<String> = transaction.writes.iter().filter_map(part).collect();
    if parts.len() > LISTED {
        let more = format!("and {} more", parts.len() - LISTED);
        parts.truncate(LISTED);
        parts.push(more);
    }
    let line = || format!("this host's keys in etcd were changed: {}", parts.join("; "));
    (!parts.is_empty()).then(line)
}

/// The value of `key` (as text `text`).
fn shown(found: &Snapshot, text: &str, key: &Key) -> String {
    let value = match key {
        Key::Host(name) => found.hosts.get(name).map(|stored| stored.value.to_string()),
        Key::Claim(subnet) => found.claims.get(subnet).map(|stored| stored.value.to_string()),
        Key::Node(name) => found.nodes.get(name).map(|stored| quoted(&stored.value.to_json())),
        Key::WireguardKey(name) => {
            found.wireguard_keys.get(name).map(|stored| stored.value.to_string())
        }
        Key::Config | Key::Alive(_) | Key::Contender(_) => None,
    };
    let fault = || found.faults.get(text).map(|fault| quoted(&fault.what.to_string()));
    value.or_else(fault).unwrap_or_else(|| "nothing".to_owned())
}

/// The beginning of `text`, quoted for one line.
fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::snapshot::Raw;

    const HOST: &str = "/h/h1";
    const CLAIM: &str = "/z/subnets/4/10.0.9.0-24";
    const NODE: &str = "/z/nodes/h1";
    const RECORD: &str = r#"{"schema":1,"machineId":"m1","bootId":"b1","version":"0.1.0","subnets":["10.0.9.0/24"],"addresses":[],"backend":"direct","mtu":1500}"#;

    fn roots() -> Roots {
        Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
    }

    /// The known state; then with `changes` at revision 9, of which `None` deletes.
    fn store(changes: &[(&str, Option<&str>)]) -> Snapshot {
        let mut store = Snapshot::default();
        let known = [(HOST, Some("10.0.9.0/24")), (CLAIM, Some("h1")), (NODE, Some(RECORD))];
        let at = |revision| {
            move |(key, value): &(&str, Option<&str>)| {
                (key.to_string(), value.map(str::to_owned), revision)
            }
        };
        for (key, value, revision) in known.iter().map(at(5)).chain(changes.iter().map(at(9))) {
            match value {
                Some(value) => {
                    let (key, value) = (key.as_bytes(), value.as_bytes());
                    let raw = Raw { key, value, created: revision, modified: revision };
                    store.put(&roots(), raw);
                }
                None => store.delete(&roots(), key.as_bytes(), revision),
            }
        }
        store
    }

    /// The line if everything is put back.
    fn reported(changes: &[(&str, Option<&str>)]) -> Option<String> {
        let mut transaction = Transaction::default();
        transaction.put(HOST, "10.0.9.0/24").put(CLAIM, "h1").put(NODE, RECORD);
        describe(&store(&[]), &store(changes), &roots(), &transaction)
    }

    #[test]
    fn own_changes_are_not_reported() {
        assert_eq!(reported(&[]), None);
        assert_eq!(reported(&[("/h/h2", Some("10.0.7.0/24"))]), None, "of another host");
    }

    #[test]
    fn each_key_is_listed_with_the_value_found_and_the_value_put_back() {
        assert_eq!(
            reported(&[(HOST, Some("10.0.77.0/24")), (CLAIM, Some("h2")), (NODE, None)]).unwrap(),
            "this host's keys in etcd were changed: /h/h1: found 10.0.77.0/24, 10.0.9.0/24 put \
             back; /z/subnets/4/10.0.9.0-24: found h2, h1 put back; /z/nodes/h1: found nothing, \
             this host's record put back"
        );
        let mut surplus = Transaction::default();
        surplus.delete("/z/subnets/4/10.0.7.0-24");
        let found = store(&[("/z/subnets/4/10.0.7.0-24", Some("h1"))]);
        let line = describe(&store(&[]), &found, &roots(), &surplus).unwrap();
        assert!(line.ends_with("/z/subnets/4/10.0.7.0-24: found h1, deleted"), "{line}");
    }

    #[test]
    fn many_keys_are_abbreviated() {
        let keys: Vec<String> = (0..200).map(|n| format!("/z/subnets/4/10.0.{n}.0-24")).collect();
        let strange: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("h1"))).collect();
        let mut surplus = Transaction::default();
        for key in &keys {
            surplus.delete(key);
        }
        let line = describe(&store(&[]), &store(&strange), &roots(), &surplus).unwrap();
        assert!(line.ends_with("; and 194 more") && line.len() < 600, "{line}");
    }

    #[test]
    fn hostile_values_make_one_short_line() {
        let record = RECORD.replace("m1", &"\\u001b[2J\u{202e}\u{9b}".repeat(90));
        for (key, value) in [(HOST, "`reboot`\n\u{1b}[2J"), (NODE, &*record), (NODE, "\u{202e}{")] {
            let line = reported(&[(key, Some(value))]).unwrap();
            assert!(line.contains(&format!("{key}: found \"")), "{line}");
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
            assert!(line.chars().count() < 900, "{line}");
        }
    }
}
