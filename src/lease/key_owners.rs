//! Pure. Which host a WireGuard key belongs to.
//!
//! A host claims its key in etcd before it publishes it, and does not write that claim again while it has
//! the key: what another host writes about the key is later. A record proves less, as every restart of its
//! agent writes it anew.
//!
//! A host that changes keys claims the one to come and the present one with it, before it publishes both: a
//! restart of its agent, too, leaves it both.

use std::collections::HashMap;
use std::sync::Arc;

use crate::lease::identity::Claimant;
use crate::lease::records::{Key, KeyClaim, NodeName, WireguardEnd};
use crate::lease::snapshot::{Snapshot, Stored};
use crate::lease::transaction::Transaction;
use crate::net::PublicKey;

/// Since when a host has a key, as far as etcd proves it: of two the smaller one is the better. A survivor
/// of a loss of data puts claims and records back at the same revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Since {
    revision: i64,
    proof: KeyProof,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyProof {
    Claim,
    Record,
}

/// The owner of each key that a host has claimed or published in `found`.
///
/// It is the host with the oldest proof; of the same age the first by name. A record counts since its last
/// change. Where no host has claimed the key, the record that was created first decides, as hosts with versions
/// that know no claims do.
pub fn owners(found: &Snapshot) -> HashMap<PublicKey, &NodeName> {
    let mut claimed: HashMap<PublicKey, (Since, &NodeName)> = HashMap::new();
    for (host, claim) in found.wireguard_keys.iter() {
        let proof = (Since { revision: revision(claim), proof: KeyProof::Claim }, host);
        for key in claim.value.keys() {
            let best = claimed.entry(key).or_insert(proof);
            *best = proof.min(*best);
        }
    }
    let mut unclaimed: HashMap<PublicKey, (i64, &NodeName)> = HashMap::new();
    for (host, node) in found.nodes.iter() {
        for key in node.value.wireguard.into_iter().flat_map(WireguardEnd::keys) {
            match claimed.get_mut(&key) {
                // A record that is only remembered says nothing of when.
                Some(best) if node.modified > 0 => {
                    let since = Since { revision: node.modified, proof: KeyProof::Record };
                    *best = (since, host).min(*best);
                }
                Some(_) => {}
                None => {
                    let proof = (node.created, host);
                    let best = unclaimed.entry(key).or_insert(proof);
                    *best = proof.min(*best);
                }
            }
        }
    }
    let claimed = claimed.into_iter().map(|(key, (_, host))| (key, host));
    claimed.chain(unclaimed.into_iter().map(|(key, (_, host))| (key, host))).collect()
}

/// A claim from before a loss of data is older than all of the store.
fn revision(claim: &Stored<KeyClaim>) -> i64 {
    if claim.created == 0 { 0 } else { claim.modified }
}

/// The hosts that are the owners of all that they have claimed.
pub fn claimants(found: &Snapshot) -> impl Iterator<Item = &NodeName> {
    let owners = owners(found);
    let is_owner = move |host: &NodeName, claim: KeyClaim| {
        claim.keys().all(|key| owners.get(&key).is_some_and(|owner| *owner == host))
    };
    let claims = found.wireguard_keys.iter();
    claims.filter(move |(host, claim)| is_owner(host, claim.value)).map(|(host, _)| host)
}

/// Marks what the owners have claimed in `known` as older than what any host will write: etcd lost its data,
/// its revisions begin anew, and a host that puts its claim back would come after one that was faster.
pub fn outlive_loss(known: &mut Snapshot) {
    let owners: Vec<NodeName> = claimants(known).cloned().collect();
    mark(known, owners);
}

/// Marks the claims in `found` that are marked in `known`.
pub fn remember(found: &mut Snapshot, known: &Snapshot) {
    let is_marked = |host: &NodeName, claim: &Stored<KeyClaim>| {
        let before = known.wireguard_keys.get(host);
        before.is_some_and(|before| before.created == 0 && before.value == claim.value)
    };
    let claims = found.wireguard_keys.iter().filter(|(host, claim)| is_marked(host, claim));
    let marked = claims.map(|(host, _)| host.clone()).collect();
    mark(found, marked);
}

fn mark(found: &mut Snapshot, hosts: Vec<NodeName>) {
    if hosts.is_empty() {
        return;
    }
    let claims = Arc::make_mut(&mut found.wireguard_keys);
    for host in hosts {
        claims.entry(host).and_modify(|claim| claim.created = 0);
    }
}

/// Claims the keys that `own` publishes; `None` if it has, publishes none, or may not.
pub fn claim(found: &Snapshot, own: &Claimant) -> Option<Transaction> {
    let end = own.attributes.wireguard.filter(|_| !own.leaves_key_unclaimed)?;
    let name = &own.identity.name;
    if found.wireguard_keys.get(name).is_some_and(|claim| claim.value.covers(end)) {
        return None;
    }
    let mut transaction = Transaction::default();
    let text =
        found.unchanged(&mut transaction, &own.network.roots, &Key::WireguardKey(name.clone()));
    transaction.put(text, KeyClaim::of(end).to_string());
    for key in [Key::Config, Key::Alive(name.clone())] {
        found.unchanged(&mut transaction, &own.network.roots, &key);
    }
    Some(transaction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::Roots;
    use crate::lease::snapshot::Raw;

    /// Host, number of the key, revisions of creation and last change.
    type Write = (&'static str, u8, i64, i64);

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn found(claims: &[Write], records: &[Write]) -> Snapshot {
        let roots =
            Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
        let mut found = Snapshot::default();
        let mut put = |key: String, value: String, created, modified| {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            found.put(&roots, Raw { key, value, created, modified });
        };
        for (host, number, created, modified) in claims {
            put(format!("/z/wireguard/{host}"), key(*number).to_string(), *created, *modified);
        }
        for (host, number, created, modified) in records {
            let end = format!(r#"{{"publicKey":"{}","port":10401}}"#, key(*number));
            let record = format!(
                r#"{{"schema":1,"machineId":"m","bootId":"b","version":"0","subnets":[],"addresses":[],"backend":"direct","wireguard":{end},"mtu":1500}}"#
            );
            put(format!("/z/nodes/{host}"), record, *created, *modified);
        }
        assert!(found.faults.is_empty(), "{:?}", found.faults);
        found
    }

    fn owner(claims: &[Write], records: &[Write]) -> String {
        owners(&found(claims, records)).get(&key(1)).map(ToString::to_string).unwrap_or_default()
    }

    /// h1 is younger than `evil` and has published its key at 9; `evil` copied it at 12.
    const H1: Write = ("h1", 1, 9, 9);
    const EVIL: Write = ("evil", 1, 2, 12);

    #[test]
    fn without_claims_an_older_host_takes_the_key_of_a_newer_one() {
        assert_eq!(owner(&[], &[H1, EVIL]), "evil", "the attack, which the claim ends");
        assert_eq!(owner(&[H1], &[H1, EVIL]), "h1");
    }

    #[test]
    fn a_claim_of_the_key_of_another_host_is_later_than_its_own() {
        assert_eq!(owner(&[H1, ("evil", 1, 12, 12)], &[H1, EVIL]), "h1");
        assert_eq!(owner(&[H1, ("evil", 1, 2, 12)], &[H1, EVIL]), "h1", "it had claimed another");
        let restarted = ("h1", 1, 9, 40);
        assert_eq!(owner(&[H1, ("evil", 1, 2, 12)], &[restarted, EVIL]), "h1");
        assert_eq!(owner(&[H1], &[("a", 1, 2, 12)]), "h1", "it does not even publish it now");
    }

    #[test]
    fn a_host_that_knows_no_claims_keeps_its_key_while_its_record_is_older_than_a_claim() {
        assert_eq!(owner(&[("evil", 1, 12, 12)], &[H1, EVIL]), "h1");
        assert_eq!(owner(&[("evil", 1, 12, 12)], &[("h1", 1, 9, 40), EVIL]), "evil", "a restart");
    }

    #[test]
    fn other_keys_are_not_affected() {
        let owners_found = found(&[H1, ("h2", 2, 30, 30)], &[H1, ("h2", 2, 3, 30)]);
        assert_eq!(owners(&owners_found).len(), 2);
        assert_eq!(owners(&owners_found)[&key(2)].as_str(), "h2");
    }

    #[test]
    fn of_a_claim_and_a_copy_that_are_put_back_together_the_claim_counts() {
        assert_eq!(owner(&[("h1", 1, 3, 3)], &[("h1", 1, 3, 3), ("evil", 1, 3, 3)]), "h1");
        let remembered = [("h1", 1, 3, 3), ("evil", 1, 0, 0)];
        assert_eq!(owner(&[("h1", 1, 3, 3)], &remembered), "h1", "of a host that is not back");
    }

    #[test]
    fn after_a_loss_of_data_the_owner_before_it_stays_the_owner() {
        let known = found(&[("h1", 1, 50, 50), ("evil", 1, 51, 51)], &[]);
        let faster = || found(&[("evil", 1, 3, 3), ("h1", 1, 4, 4)], &[]);
        assert_eq!(owners(&faster())[&key(1)].as_str(), "evil", "one who does not remember");
        let mut known = known;
        outlive_loss(&mut known);
        let mut now = faster();
        remember(&mut now, &known);
        assert_eq!(owners(&now)[&key(1)].as_str(), "h1");
        let mut later = faster();
        remember(&mut later, &now);
        assert_eq!(owners(&later)[&key(1)].as_str(), "h1", "at the next reading");
        let mut moved = found(&[("evil", 1, 3, 3), ("h1", 2, 4, 4)], &[]);
        remember(&mut moved, &known);
        assert_eq!(owners(&moved)[&key(1)].as_str(), "evil", "h1 has another key meanwhile");
    }

    #[test]
    fn a_remembered_claim_that_comes_back_stays_older_than_the_store() {
        let mut known = found(&[("h1", 1, 0, 0), ("evil", 1, 3, 3)], &[]);
        let roots =
            Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
        let text = key(1).to_string();
        let raw = Raw { key: b"/z/wireguard/h1", value: text.as_bytes(), created: 7, modified: 7 };
        known.put(&roots, raw);
        assert_eq!(owners(&known)[&key(1)].as_str(), "h1");
        let text = key(2).to_string();
        known.put(&roots, Raw { value: text.as_bytes(), modified: 8, ..raw });
        known.put(&roots, Raw { value: key(1).to_string().as_bytes(), modified: 9, ..raw });
        assert_eq!(owners(&known)[&key(1)].as_str(), "evil", "it had given the key up");
    }

    /// The records at these revisions, of which some change to a key, and claim both where they claim that.
    fn changes(records: &[Write], nexts: &[(&str, u8)], claims: &[Write]) -> Snapshot {
        let mut found = found(claims, records);
        let nodes = Arc::make_mut(&mut found.nodes);
        let claims = Arc::make_mut(&mut found.wireguard_keys);
        for (host, next) in nexts {
            let name: NodeName = host.parse().unwrap();
            let record = Arc::make_mut(&mut nodes.get_mut(&name).unwrap().value);
            let end = WireguardEnd { next: Some(key(*next)), ..record.wireguard.unwrap() };
            record.wireguard = Some(end);
            claims.entry(name).and_modify(|claim| claim.value = KeyClaim::of(end));
        }
        found
    }

    #[test]
    fn a_host_that_changes_keys_has_both_and_no_other_host_takes_either() {
        let owner = |found: &Snapshot, number| owners(found)[&key(number)].to_string();
        // h1 has claimed the next one at 20, and published it at 21; it had claimed the other one before.
        let (h1, next) = (("h1", 1, 9, 21), ("h1", 8, 9, 20));
        let alone = changes(&[h1], &[("h1", 8)], &[next]);
        assert_eq!((owner(&alone, 1), owner(&alone, 8)), ("h1".to_owned(), "h1".to_owned()));
        // An older host publishes one of them, or claims it, afterwards.
        for number in [1, 8] {
            let copied = changes(&[h1, ("evil", number, 2, 30)], &[("h1", 8)], &[next]);
            assert_eq!(owner(&copied, number), "h1", "published");
            let claims = [next, ("evil", number, 2, 30)];
            let claimed = changes(&[h1, ("evil", number, 2, 31)], &[("h1", 8)], &claims);
            assert_eq!(owner(&claimed, number), "h1", "claimed");
        }
        // It pretends to change from the key that it steals.
        let claims = [next, ("evil", 9, 2, 30)];
        for h1 in [h1, ("h1", 1, 9, 50)] {
            let pretends = changes(&[h1, ("evil", 1, 2, 31)], &[("h1", 8), ("evil", 9)], &claims);
            assert_eq!(owner(&pretends, 1), "h1", "the record of {}, a restart", h1.3);
        }
        // Or to the next one.
        let pretends = changes(&[h1, ("evil", 5, 2, 30)], &[("h1", 8), ("evil", 8)], &[next]);
        assert_eq!(
            (owner(&pretends, 8), owner(&pretends, 5)),
            ("h1".to_owned(), "evil".to_owned())
        );
        // The change is over, and a restart has written the record anew.
        let over =
            changes(&[("h1", 8, 9, 50), ("evil", 8, 2, 30)], &[], &[next, ("evil", 8, 2, 31)]);
        assert_eq!(owner(&over, 8), "h1");
    }

    #[test]
    fn a_claim_of_another_hosts_keys_beside_an_own_one_does_not_outlive_a_loss_of_data() {
        let claims = [("h1", 8, 9, 20), ("evil", 9, 2, 30)];
        let records = [("h1", 1, 9, 21), ("evil", 1, 2, 31)];
        let mut known = changes(&records, &[("h1", 8), ("evil", 9)], &claims);
        let names: Vec<_> = claimants(&known).map(NodeName::as_str).collect();
        assert_eq!(names, ["h1"]);
        outlive_loss(&mut known);
        assert_eq!(owners(&known)[&key(1)].as_str(), "h1");
    }
}
