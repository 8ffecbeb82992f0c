mod overwritten;
mod pools;
mod python;

use std::collections::BTreeSet;

use crate::lease::claim::*;
use crate::lease::identity::{HostAttributes, Identity, Network};
use crate::lease::records::{Backend, Roots};
use crate::lease::snapshot::Raw;
use crate::lease::transaction::{Condition, Write};
use crate::net::PerFamily;

const OWN_ALIVE: (&str, &str) =
    ("/z/alive/h1", r#"{"schema":1,"machineId":"m1","since":"2026-11-20T18:46:00Z"}"#);

fn roots() -> Roots {
    Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
}

/// A store with these keys, each written at a revision of its own, and the settings of the network.
fn found(keys: &[(&str, &str)]) -> Snapshot {
    let config = own().network.config("a").to_json();
    let mut found = Snapshot::default();
    for (key, value) in [("/z/config", config.as_str())].iter().chain(keys) {
        let (created, modified) = (found.revision + 1, found.revision + 1);
        let raw = Raw { key: key.as_bytes(), value: value.as_bytes(), created, modified };
        found.put(&roots(), raw);
    }
    found
}

/// Host h1 of machine m1 with ticket 7, in 10.0.0.0/16 cut into /24.
fn own() -> Claimant {
    let pool = Pool::new(subnet::parse("10.0.0.0/16").unwrap(), 8).unwrap();
    Claimant {
        identity: Identity {
            name: "h1".parse().unwrap(),
            machine_id: "m1".to_owned(),
            boot_id: "b1".to_owned(),
            version: "0.1.0".to_owned(),
        },
        attributes: HostAttributes::default(),
        network: Network {
            roots: roots(),
            pools: PerFamily { v4: Some(pool), v6: None },
            limits: PerFamily::default(),
            backend: Backend::Direct,
            tenants: Default::default(),
        },
        keep: PerFamily::default(),
        remembered: PerFamily::default(),
        vacated: PerFamily::default(),
        without_record: BTreeSet::new(),
        leaves_claims: false,
        leaves_key_unclaimed: false,
        ticket: Some(7),
        has_raced: false,
        instance: "i1".to_owned(),
        alive: true,
    }
}

fn v4(text: &str) -> PerFamily<IpNetwork> {
    PerFamily { v4: Some(subnet::parse(text).unwrap()), v6: None }
}

/// The record of a host.
fn node(machine: &str, subnet: &str) -> String {
    let identity = Identity { machine_id: machine.to_owned(), ..own().identity };
    node_record(&identity, &HostAttributes::default(), &Lease { subnets: v4(subnet) }).to_json()
}

/// The subnets that h1 would have, and what is written for that.
fn written(keys: &[(&str, &str)], own: &Claimant) -> (String, Transaction) {
    let keys: Vec<_> = keys.iter().copied().chain([OWN_ALIVE]).collect();
    match next(&found(&keys), own) {
        Step::Write { transaction, lease, .. } => {
            let subnets: Vec<_> = lease.subnets.iter().map(ToString::to_string).collect();
            (subnets.join(" "), transaction)
        }
        other => panic!("{other:?}"),
    }
}

fn subnet_of(keys: &[(&str, &str)], own: &Claimant) -> String {
    written(keys, own).0
}

fn refused(keys: &[(&str, &str)], own: &Claimant) -> LeaseError {
    match next(&found(keys), own) {
        Step::Refused(error) => error,
        other => panic!("{other:?}"),
    }
}

/// `put KEY` and `delete KEY`, in order.
fn writes(transaction: &Transaction) -> Vec<String> {
    let written = |write: &Write| match write {
        Write::Put { key, .. } => format!("put {key}"),
        Write::Delete { key } => format!("delete {key}"),
        Write::Try(_) => unreachable!("a claim is one transaction"),
    };
    transaction.writes.iter().map(written).collect()
}

#[test]
fn a_fresh_host_puts_its_alive_key_allocates_a_ticket_and_claims() {
    let mut own = own();
    own.alive = false;
    own.ticket = None;
    assert_eq!(next(&found(&[]), &own), Step::PutAlive);
    own.alive = true;
    assert_eq!(next(&found(&[]), &own), Step::PutAlive, "it is not in etcd yet");
    assert_eq!(next(&found(&[OWN_ALIVE]), &own), Step::AllocateTicket);
    own.ticket = Some(7);
    let (subnet, transaction) = written(&[], &own);
    assert_eq!(subnet, "10.0.7.0/24");
    assert_eq!(
        writes(&transaction),
        ["put /h/h1", "put /z/subnets/4/10.0.7.0-24", "put /z/nodes/h1"]
    );
}

#[test]
fn a_claim_depends_on_every_key_it_was_decided_by() {
    let (_, first) = written(&[], &Claimant { ticket: Some(1), ..own() });
    let (_, again) = written(&[], &Claimant { has_raced: true, ..own() });
    let (_, expects_others) = written(&[], &own());
    let (_, transaction) = written(&[("/h/h9", "10.0.9.0/24")], &own());
    let unchanged = |key: &str, modified| Condition::Unchanged { key: key.to_owned(), modified };
    for condition in [
        unchanged("/h/h1", 0),
        unchanged("/z/subnets/4/10.0.7.0-24", 0),
        unchanged("/z/nodes/h1", 0),
        unchanged("/z/config", 1),
        unchanged("/z/alive/h1", 3),
        Condition::NoneHas { prefix: "/h/".to_owned(), value: "10.0.7.0/24".to_owned() },
    ] {
        assert!(transaction.conditions.contains(&condition), "{condition:?}");
    }
    let range = Condition::RangeUnchanged { prefix: "/h/".to_owned(), since: 2 };
    for first in [first, again] {
        assert!(first.conditions.contains(&range), "etcd compares no values of absent keys");
    }
    let ranges = |condition: &Condition| matches!(condition, Condition::RangeUnchanged { .. });
    for other in [transaction, expects_others] {
        assert!(!other.conditions.iter().any(ranges), "one host does not wait for another");
    }
}

#[test]
fn an_adopted_subnet_may_have_another_length() {
    assert_eq!(subnet_of(&[("/h/h1", "10.0.8.0/23")], &own()), "10.0.8.0/23");
}

#[test]
fn nothing_is_written_when_all_is_said() {
    let node = node("m1", "10.0.9.0/24");
    let keys =
        [("/h/h1", "10.0.9.0/24"), ("/z/nodes/h1", &*node), ("/z/subnets/4/10.0.9.0-24", "h1")];
    assert_eq!(next(&found(&keys), &own()), Step::Held(Lease { subnets: v4("10.0.9.0/24") }));
    let mut moved = own();
    moved.attributes.mtu = 9000;
    let keys: Vec<_> = keys.into_iter().chain([OWN_ALIVE]).collect();
    let Step::Write { transaction, .. } = next(&found(&keys), &moved) else { panic!("no write") };
    assert_eq!(writes(&transaction), ["put /z/nodes/h1"]);
    let ranges = |condition: &Condition| matches!(condition, Condition::RangeUnchanged { .. });
    assert!(!transaction.conditions.iter().any(ranges), "another host may come meanwhile");
}

#[test]
fn a_lost_host_key_is_written_again_with_the_same_subnet() {
    let node = node("m1", "10.0.9.0/24");
    let rest = [("/z/nodes/h1", &*node), ("/z/subnets/4/10.0.9.0-24", "h1")];
    assert_eq!(writes(&written(&rest, &own()).1), ["put /h/h1"]);
    assert_eq!(subnet_of(&[("/z/subnets/4/10.0.9.0-24", "h1")], &own()), "10.0.9.0/24");
    let mut remembering = own();
    remembering.remembered = v4("10.0.9.0/24");
    assert_eq!(subnet_of(&[], &remembering), "10.0.9.0/24");
    let taken = [("/h/h2", "10.0.9.0/24")];
    assert!(
        matches!(refused(&taken, &remembering), LeaseError::SubnetLost { .. }),
        "its pods may run"
    );
    remembering.vacated = v4("10.0.9.0/24");
    assert_eq!(subnet_of(&[("/h/h2", "10.0.9.0/24")], &remembering), "10.0.7.0/24", "it is taken");
    assert_eq!(subnet_of(&[("/z/subnets/4/10.0.8.0-23", "h2")], &remembering), "10.0.7.0/24");
}

#[test]
fn a_surplus_claim_is_given_back() {
    let keys = [("/h/h1", "10.0.9.0/24"), ("/z/subnets/4/10.0.7.0-24", "h1")];
    let (subnet, transaction) = written(&keys, &own());
    assert_eq!(subnet, "10.0.9.0/24");
    let delete = "delete /z/subnets/4/10.0.7.0-24".to_owned();
    assert!(writes(&transaction).contains(&delete));
    let (subnet, transaction) = written(&keys, &Claimant { leaves_claims: true, ..own() });
    assert_eq!(subnet, "10.0.9.0/24");
    assert!(!writes(&transaction).contains(&delete), "it may not");
}

#[test]
fn a_claim_of_another_host_that_somebody_gave_this_name_is_left_to_its_owner() {
    let node = node("m1", "10.0.9.0/24");
    let own_keys =
        [("/h/h1", "10.0.9.0/24"), ("/z/subnets/4/10.0.9.0-24", "h1"), ("/z/nodes/h1", &*node)];
    let overwritten = [("/h/h2", "10.0.7.0/24"), ("/z/subnets/4/10.0.7.0-24", "h1"), OWN_ALIVE];
    let keys: Vec<_> = own_keys.into_iter().chain(overwritten).collect();
    assert!(matches!(next(&found(&keys), &own()), Step::Held(_)), "it deletes the proof of h2");
}

#[test]
fn many_surplus_claims_are_given_back_in_transactions_that_etcd_takes() {
    let claims: Vec<String> =
        (10..210).map(|third| format!("/z/subnets/4/10.0.{third}.0-24")).collect();
    let mut keys = vec![("/h/h1", "10.0.9.0/24"), OWN_ALIVE];
    keys.extend(claims.iter().map(|key| (&**key, "h1")));
    let mut found = found(&keys);
    let mut transactions = 0;
    while let Step::Write { transaction, .. } = next(&found, &own()) {
        assert!(transaction.writes.len() <= 100, "{}", transaction.writes.len());
        assert!(transaction.conditions.len() <= 100, "{}", transaction.conditions.len());
        found.written(&roots(), &transaction, found.revision + 1);
        transactions += 1;
    }
    assert_eq!(transactions, 4);
    assert_eq!(next(&found, &own()), Step::Held(Lease { subnets: v4("10.0.9.0/24") }));
    assert_eq!(found.claims.len(), 1, "its own");
}

#[test]
fn the_subnet_in_use_wins_over_what_etcd_says() {
    let mut running = own();
    running.keep = v4("10.0.9.0/24");
    for wrong in ["10.0.8.0/24", "192.168.0.0/24", "garbage; reboot"] {
        assert_eq!(subnet_of(&[("/h/h1", wrong)], &running), "10.0.9.0/24");
    }
}

#[test]
fn a_subnet_in_use_that_another_host_has_and_claims_is_lost() {
    let mut running = own();
    running.keep = v4("10.0.9.0/24");
    let subnet = subnet::parse("10.0.9.0/24").unwrap();
    let owner = "h2".parse().unwrap();
    let theirs = [("/h/h2", "10.0.9.0/24"), ("/z/subnets/4/10.0.9.0-24", "h2")];
    assert_eq!(refused(&theirs, &running), LeaseError::SubnetLost { subnet, owner });
}

#[test]
fn a_claim_without_a_host_or_a_host_without_a_claim_takes_nothing() {
    let mut running = own();
    running.keep = v4("10.0.9.0/24");
    let stolen_claim = [("/h/h1", "10.0.9.0/24"), ("/z/subnets/4/10.0.9.0-24", "h2")];
    let python = [("/h/h1", "10.0.9.0/24"), ("/h/h2", "10.0.9.0/24")];
    let both = [("/z/subnets/4/10.0.9.0-24", "h1"), ("/h/h2", "10.0.9.0/24")];
    for keys in [&stolen_claim[..], &python, &both] {
        assert_eq!(subnet_of(keys, &running), "10.0.9.0/24");
        assert_eq!(subnet_of(keys, &own()), "10.0.9.0/24");
    }
}

#[test]
fn a_key_of_another_host_with_the_same_value_does_not_prevent_a_repair() {
    let mut running = own();
    running.keep = v4("10.0.9.0/24");
    let (claim, other) = (("/z/subnets/4/10.0.9.0-24", "h1"), ("/h/evil", "10.0.9.0/24"));
    for (keys, claimant) in [
        (&[claim, other][..], own()),
        (&[claim, ("/h/h1", "10.0.8.0/24"), other], running.clone()),
        (&[("/h/h1", "10.0.9.0/24"), ("/z/subnets/4/10.0.9.0-24", "evil"), other], running),
    ] {
        let (subnet, transaction) = written(keys, &claimant);
        assert_eq!(subnet, "10.0.9.0/24");
        let ranges = |condition: &Condition| !matches!(condition, Condition::Unchanged { .. });
        assert!(!transaction.conditions.iter().any(ranges), "{transaction:?}");
    }
}

#[test]
fn a_host_key_that_was_overwritten_while_the_agent_did_not_run_changes_nothing() {
    let node = node("m1", "10.0.9.0/24");
    let keys =
        [("/z/subnets/4/10.0.9.0-24", "h1"), ("/z/nodes/h1", &*node), ("/h/h1", "10.0.99.0/24")];
    assert_eq!(subnet_of(&keys, &own()), "10.0.9.0/24", "without a state file");
    let remembers = Claimant { remembered: v4("10.0.9.0/24"), ..own() };
    assert_eq!(subnet_of(&keys, &remembers), "10.0.9.0/24");
    assert_eq!(subnet_of(&keys[2..], &remembers), "10.0.99.0/24", "nothing else is its own");
    let outside = [keys[0], keys[1], ("/h/h1", "192.168.7.0/24")];
    assert_eq!(subnet_of(&outside, &own()), "10.0.9.0/24", "outside the pool");
    assert_eq!(subnet_of(&outside, &remembers), "10.0.9.0/24", "outside the pool");
    assert_eq!(subnet_of(&outside[1..], &remembers), "10.0.9.0/24", "without a claim");
}

#[test]
fn a_host_that_was_never_alone_on_its_subnet_gets_another() {
    let node = node("m2", "10.0.9.0/24");
    let theirs =
        [("/h/h2", "10.0.9.0/24"), ("/z/subnets/4/10.0.9.0-24", "h2"), ("/z/nodes/h2", &*node)];
    let ours = [("/h/h1", "10.0.9.0/24")];
    assert_eq!(subnet_of(&[&theirs[..], &ours].concat(), &own()), "10.0.7.0/24");
    assert_eq!(subnet_of(&[&ours[..], &theirs].concat(), &own()), "10.0.9.0/24", "h1 was first");
}

#[test]
fn a_name_of_a_living_machine_is_refused_and_of_a_dead_one_taken_over() {
    let alive = r#"{"schema":1,"machineId":"m2","since":"2026-11-20T18:46:00Z"}"#;
    let node = node("m2", "10.0.9.0/24");
    let keys = [("/h/h1", "10.0.9.0/24"), ("/z/nodes/h1", &*node), ("/z/alive/h1", alive)];
    let error = refused(&keys, &own());
    assert!(matches!(error, LeaseError::HeldByOther { ref machine_id, .. } if machine_id == "m2"));
    assert_eq!(subnet_of(&keys[..2], &own()), "10.0.9.0/24");
}

#[test]
fn the_sign_of_life_of_another_machine_is_never_overwritten() {
    let alive = |machine: &str| {
        format!(r#"{{"schema":1,"machineId":"{machine}","since":"2026-11-20T18:46:00Z"}}"#)
    };
    let shown = |value: Option<&str>| {
        let keys: Vec<_> = value.map(|value| ("/z/alive/h1", value)).into_iter().collect();
        put_alive(&found(&keys), &own(), std::time::UNIX_EPOCH, 9, None)
    };
    assert_eq!(shown(Some(&alive("m2"))), None);
    for (value, modified) in [(None, 0), (Some(&*alive("m1")), 2), (Some("garbage"), 2)] {
        let transaction = shown(value).unwrap();
        let key = "/z/alive/h1".to_owned();
        assert_eq!(transaction.conditions, [Condition::Unchanged { key, modified }]);
    }
}

#[test]
fn a_subnet_is_given_back_only_as_it_was_found() {
    let found = found(&[("/h/h1", "10.0.9.0/24"), ("/z/subnets/4/10.0.9.0-24", "h1")]);
    let release = release(&found, &own(), &Lease { subnets: v4("10.0.9.0/24") });
    let unchanged = |key: &str, modified| Condition::Unchanged { key: key.to_owned(), modified };
    assert_eq!(
        release.conditions,
        [
            unchanged("/z/subnets/4/10.0.9.0-24", 3),
            unchanged("/h/h1", 2),
            unchanged("/z/nodes/h1", 0)
        ]
    );
    assert_eq!(release.writes.len(), 3);
}
