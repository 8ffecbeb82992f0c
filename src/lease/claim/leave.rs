//! Pure. The keys that a host deletes when it leaves permanently.

use crate::lease::identity::Identity;
use crate::lease::records::{Key, NodeName, Roots};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

/// Why the keys under this host's name are not this machine's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    #[error(
        "host {host} is another machine (machine id {machine_id}): its keys stay in etcd; is \
         NODE_NAME the name this host had?"
    )]
    Machine { host: NodeName, machine_id: String },
    /// A host without a node record runs the Python agent.
    #[error("host {host} runs the Python agent: its key stays in etcd")]
    Python { host: NodeName },
}

/// The keys of this host in `found`: claims, host key, node record, alive key, claim of its WireGuard key.
///
/// # Errors
/// [`NotOurs`].
pub fn keys(found: &Snapshot, own: &Identity) -> Result<Vec<Key>, NotOurs> {
    let host = own.name.clone();
    let node = found.nodes.get(&host).map(|node| node.value.machine_id.to_string());
    let alive = found.alive.get(&host).map(|alive| alive.value.machine_id.to_string());
    if let Some(machine_id) = node.iter().chain(&alive).find(|id| **id != own.machine_id) {
        return Err(NotOurs::Machine { host, machine_id: machine_id.clone() });
    }
    let subnet = found.hosts.contains_key(&host);
    if subnet && node.is_none() {
        return Err(NotOurs::Python { host });
    }
    Ok(all(found, &host))
}

/// As [`keys`], of any host, whichever machine it is.
pub fn all(found: &Snapshot, host: &NodeName) -> Vec<Key> {
    let claims = found.claims.iter().filter(|(_, claim)| claim.value == *host);
    let claims = claims.map(|(subnet, _)| Key::Claim(*subnet));
    let others = [
        (found.hosts.contains_key(host), Key::Host(host.clone())),
        (found.nodes.contains_key(host), Key::Node(host.clone())),
        (found.alive.contains_key(host), Key::Alive(host.clone())),
        (found.wireguard_keys.contains_key(host), Key::WireguardKey(host.clone())),
    ];
    claims.chain(others.into_iter().filter(|(exists, _)| *exists).map(|(_, key)| key)).collect()
}

/// Deletes `keys` if all of them are as `found`.
pub fn transaction(found: &Snapshot, keys: &[Key], roots: &Roots) -> Transaction {
    let mut transaction = Transaction::default();
    for key in keys {
        let text = found.unchanged(&mut transaction, roots, key);
        transaction.delete(text);
    }
    transaction
}

/// Most keys of members that one transaction deletes, besides those of the host: etcd allows 128 operations.
const AT_ONCE: usize = 50;

/// Deletes `keys` of `host` if all of them are as `found`, and then `members`, what it published of members of
/// groups (each key with the revision of its last change). A host that comes back meanwhile keeps the rest.
pub fn transactions(
    found: &Snapshot,
    host: &NodeName,
    keys: &[Key],
    members: &[(String, i64)],
    roots: &Roots,
) -> Vec<Transaction> {
    let (first, rest) = members.split_at(members.len().min(AT_ONCE));
    let with = |mut transaction: Transaction, members: &[(String, i64)]| {
        for (key, modified) in members {
            transaction.unchanged(key, *modified);
            transaction.delete(key);
        }
        transaction
    };
    let gone = || {
        let mut transaction = Transaction::default();
        let keys = [Key::Host(host.clone()), Key::Node(host.clone()), Key::Alive(host.clone())];
        for key in &keys {
            transaction.unchanged(roots.key(key), 0);
        }
        transaction
    };
    let first = with(transaction(found, keys, roots), first);
    let rest = rest.chunks(AT_ONCE).map(|members| with(gone(), members));
    [first].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::snapshot::Raw;

    /// Which of `pairs` the machine `m1` with the name `h1` deletes.
    fn check(pairs: &[(&str, &str)], wanted: Result<&[&str], &str>) {
        let roots = Roots {
            hosts: "/humanz/hosts".into(),
            counter: "/humanz/counter".into(),
            humanz: "/humanz/v1".into(),
        };
        let mut found = Snapshot::default();
        for (key, value) in pairs {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            found.put(&roots, Raw { key, value, created: 3, modified: 4 });
        }
        assert!(found.faults.is_empty(), "{:?}", found.faults);
        let own = Identity {
            name: "h1".parse().unwrap(),
            machine_id: "m1".into(),
            boot_id: "b".into(),
            version: "0".into(),
        };
        let keys = keys(&found, &own).map(|keys| {
            let transaction = transaction(&found, &keys, &roots);
            assert_eq!(transaction.conditions.len(), transaction.writes.len());
            keys.iter().map(|key| roots.key(key)).collect::<Vec<_>>()
        });
        match (keys, wanted) {
            (Ok(keys), Ok(wanted)) => assert_eq!(keys, wanted),
            (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{error}"),
            (found, wanted) => panic!("{found:?} instead of {wanted:?}"),
        }
    }

    const HOST: (&str, &str) = ("/humanz/hosts/h1", "10.244.3.0/24");
    const CLAIM: (&str, &str) = ("/humanz/v1/subnets/4/10.244.3.0-24", "h1");
    const OTHER: (&str, &str) = ("/humanz/v1/subnets/4/10.244.4.0-24", "h2");

    fn node(machine_id: &str) -> String {
        format!(
            r#"{{"schema":1,"machineId":"{machine_id}","bootId":"b","version":"0.1.0","subnets":["10.244.3.0/24"],"addresses":["192.0.2.1"],"backend":"direct","mtu":1500}}"#
        )
    }

    #[test]
    fn all_keys_of_this_machine_are_deleted_and_no_others() {
        let node = node("m1");
        let wireguard = |host| (host, "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
        let (own, other) = ("/humanz/v1/wireguard/h1", "/humanz/v1/wireguard/h2");
        let node = ("/humanz/v1/nodes/h1", &*node);
        let pairs = [HOST, CLAIM, OTHER, node, wireguard(own), wireguard(other)];
        check(&pairs, Ok(&[CLAIM.0, HOST.0, node.0, own]));
    }

    #[test]
    fn members_of_groups_are_deleted_in_transactions_that_etcd_takes() {
        let roots = Roots { hosts: "/h".into(), counter: "/c".into(), humanz: "/z".into() };
        let members: Vec<_> = (0..120).map(|n| (format!("/z-members/h1/{n}"), n)).collect();
        let host = "h1".parse().unwrap();
        let made = transactions(&Snapshot::default(), &host, &[], &members, &roots);
        let sizes: Vec<_> = made.iter().map(|t| (t.writes.len(), t.conditions.len())).collect();
        assert_eq!(sizes, [(50, 50), (50, 53), (20, 23)], "a host that is back keeps the rest");
    }

    #[test]
    fn an_unknown_host_deletes_nothing() {
        check(&[OTHER], Ok(&[]));
    }

    #[test]
    fn another_machine_with_the_name_keeps_its_keys() {
        let node = node("m2");
        check(&[HOST, CLAIM, ("/humanz/v1/nodes/h1", &node)], Err("machine id m2"));
    }

    #[test]
    fn a_host_of_the_python_agent_keeps_its_key() {
        check(&[HOST], Err("Python agent"));
    }
}
