//! Pure. What others changed of this host's keys, told when it is put back.

use crate::lease::records::{Key, Roots};
use crate::lease::restore::{self, Continuity};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::{Transaction, Write};

/// Characters of a strange value that are shown.
const SHOWN: usize = 120;

/// Keys that are named.
const NAMED: usize = 6;

/// One line about what `transaction` puts back, of that which changed since `known` without this
/// host's doing; `None` if nothing did. Only for one store: what a loss of data took is told once.
pub fn told(
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
        Some(format!("{text}: found {}, {done}", there(found, text, &key)))
    };
    let mut parts: Vec<String> = transaction.writes.iter().filter_map(part).collect();
    if parts.len() > NAMED {
        let more = format!("and {} more", parts.len() - NAMED);
        parts.truncate(NAMED);
        parts.push(more);
    }
    let line = || format!("somebody changed this host's keys in etcd: {}", parts.join("; "));
    (!parts.is_empty()).then(line)
}

/// What stands at `key` (as text `text`).
fn there(found: &Snapshot, text: &str, key: &Key) -> String {
    let value = match key {
        Key::Host(name) => found.hosts.get(name).map(|stored| stored.value.to_string()),
        Key::Claim(subnet) => found.claims.get(subnet).map(|stored| stored.value.to_string()),
        Key::Node(name) => found.nodes.get(name).map(|stored| harmless(&stored.value.to_json())),
        Key::Config | Key::Alive(_) => None,
    };
    let fault = || found.faults.get(text).map(|fault| harmless(&fault.what.to_string()));
    value.or_else(fault).unwrap_or_else(|| "nothing".to_owned())
}

/// The beginning of `text`, as a line can show it.
fn harmless(text: &str) -> String {
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

    /// What was known; then with `changes` at revision 9, of which `None` deletes.
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

    /// What is told if everything is put back.
    fn line(changes: &[(&str, Option<&str>)]) -> Option<String> {
        let mut transaction = Transaction::default();
        transaction.put(HOST, "10.0.9.0/24").put(CLAIM, "h1").put(NODE, RECORD);
        told(&store(&[]), &store(changes), &roots(), &transaction)
    }

    #[test]
    fn what_this_host_changes_itself_is_not_told() {
        assert_eq!(line(&[]), None);
        assert_eq!(line(&[("/h/h2", Some("10.0.7.0/24"))]), None, "of another host");
    }

    #[test]
    fn each_key_is_told_with_what_was_found_and_what_was_put_back() {
        assert_eq!(
            line(&[(HOST, Some("10.0.77.0/24")), (CLAIM, Some("h2")), (NODE, None)]).unwrap(),
            "somebody changed this host's keys in etcd: /h/h1: found 10.0.77.0/24, 10.0.9.0/24 put \
             back; /z/subnets/4/10.0.9.0-24: found h2, h1 put back; /z/nodes/h1: found nothing, \
             this host's record put back"
        );
        let mut surplus = Transaction::default();
        surplus.delete("/z/subnets/4/10.0.7.0-24");
        let found = store(&[("/z/subnets/4/10.0.7.0-24", Some("h1"))]);
        let told = told(&store(&[]), &found, &roots(), &surplus).unwrap();
        assert!(told.ends_with("/z/subnets/4/10.0.7.0-24: found h1, deleted"), "{told}");
    }

    #[test]
    fn of_many_keys_some_are_named() {
        let keys: Vec<String> = (0..200).map(|n| format!("/z/subnets/4/10.0.{n}.0-24")).collect();
        let strange: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("h1"))).collect();
        let mut surplus = Transaction::default();
        for key in &keys {
            surplus.delete(key);
        }
        let told = told(&store(&[]), &store(&strange), &roots(), &surplus).unwrap();
        assert!(told.ends_with("; and 194 more") && told.len() < 600, "{told}");
    }

    #[test]
    fn hostile_values_make_one_short_line() {
        let record = RECORD.replace("m1", &"\\u001b[2J\u{202e}\u{9b}".repeat(90));
        for (key, value) in [(HOST, "`reboot`\n\u{1b}[2J"), (NODE, &*record), (NODE, "\u{202e}{")] {
            let told = line(&[(key, Some(value))]).unwrap();
            assert!(told.contains(&format!("{key}: found \"")), "{told}");
            assert!(!told.contains(|c: char| c.is_control() || c == '\u{202e}'), "{told:?}");
            assert!(told.chars().count() < 900, "{told}");
        }
    }
}
