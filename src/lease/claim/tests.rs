use std::collections::BTreeSet;

use crate::lease::claim::*;
use crate::lease::identity::{Attributes, Identity, Network};
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
        attributes: Attributes::default(),
        network: Network {
            roots: roots(),
            pools: PerFamily { v4: Some(pool), v6: None },
            limits: PerFamily::default(),
            backend: Backend::Direct,
        },
        keep: PerFamily::default(),
        remembered: PerFamily::default(),
        vacated: PerFamily::default(),
        without_record: BTreeSet::new(),
        leaves_claims: false,
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
    node_record(&identity, &Attributes::default(), &Lease { subnets: v4(subnet) }).to_json()
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
fn what_the_python_agent_left_is_adopted() {
    let (subnet, transaction) = written(&[("/h/h1", "10.0.9.0/24")], &own());
    assert_eq!(subnet, "10.0.9.0/24");
    assert_eq!(writes(&transaction), ["put /z/subnets/4/10.0.9.0-24", "put /z/nodes/h1"]);
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
    let both = [("/h/h2", "10.0.9.0/24"), ("/z/subnets/4/10.0.9.0-24", "h1")];
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
fn a_subnet_outside_the_pool_is_refused_with_both_and_what_to_do() {
    assert_eq!(
        refused(&[("/h/h1", "10.1.9.0/24")], &own()).with_fix(),
        "this host's subnet 10.1.9.0/24 (etcd key /h/h1) lies outside the pool 10.0.0.0/16; either \
         set IP_SUBNET or IPV6_SUBNET back to a pool with 10.1.9.0/24, or drain this host and \
         delete the etcd key /h/h1"
    );
}

#[test]
fn a_claimed_subnet_that_this_host_served_before_stays_although_the_pool_does_not_contain_it() {
    let served = Claimant { remembered: v4("10.1.9.0/24"), ..own() };
    let claimed = [("/h/h1", "10.1.9.0/24"), ("/z/subnets/4/10.1.9.0-24", "h1")];
    assert_eq!(subnet_of(&claimed, &served), "10.1.9.0/24");
    let other = [("/h/h1", "10.1.8.0/24"), ("/z/subnets/4/10.1.8.0-24", "h1")];
    let lost = [("/h/h1", "10.1.9.0/24"), ("/z/subnets/4/10.1.9.0-24", "h2")];
    for (keys, host) in [(&claimed, &own()), (&other, &served), (&lost, &served)] {
        let error = refused(keys, host);
        assert!(matches!(error, LeaseError::OutsidePool { .. }), "{error}");
    }
}

#[test]
fn settings_that_differ_are_refused_by_name() {
    let mut other = own();
    other.network.pools.v4 = Some(Pool::new(subnet::parse("10.0.0.0/16").unwrap(), 9).unwrap());
    let error = refused(&[], &other).to_string();
    assert!(
        error.starts_with("IP_SUBNET_MARGIN is 9 on this host, but 8 in the network"),
        "{error}"
    );
    let broken = refused(&[("/z/config", "{}")], &own());
    assert!(matches!(broken, LeaseError::ConfigBroken { .. }), "{broken}");
}

#[test]
fn with_hosts_of_the_python_agent_only_the_drawn_slot_is_safe() {
    let keys = [OWN_ALIVE, ("/h/py", "10.0.7.0/24")];
    assert_eq!(next(&found(&keys), &own()), Step::AllocateTicket);
    assert_eq!(subnet_of(&[("/h/py", "10.0.6.0/24")], &own()), "10.0.7.0/24");
    let mut late = own();
    late.ticket = Some(300);
    assert_eq!(subnet_of(&[("/h/py", "10.0.45.0/24")], &late), "10.0.46.0/24");
}

#[test]
fn a_full_pool_names_the_hosts_that_are_not_alive() {
    let mut small = own();
    small.network.pools.v4 = Some(Pool::new(subnet::parse("10.0.0.0/24").unwrap(), 2).unwrap());
    let config = small.network.config("a").to_json();
    let node = node("m2", "10.0.0.64/26");
    let keys = [
        ("/z/config", &*config),
        OWN_ALIVE,
        ("/h/h2", "10.0.0.64/26"),
        ("/z/nodes/h2", &*node),
        ("/h/py", "10.0.0.128/26"),
        ("/h/py2", "10.0.0.192/26"),
    ];
    let pool = subnet::parse("10.0.0.0/24").unwrap();
    let dead = vec!["h2".parse().unwrap()];
    assert_eq!(refused(&keys, &small), LeaseError::Exhausted { pool, slots: 3, taken: 3, dead });
}

#[test]
fn a_host_whose_subnet_was_lost_stays_with_it_if_no_other_is_free() {
    let mut small = own();
    small.network.pools.v4 = Some(Pool::new(subnet::parse("10.0.0.0/24").unwrap(), 1).unwrap());
    small.keep = v4("10.0.0.128/25");
    small.vacated = small.keep;
    let config = small.network.config("a").to_json();
    let keys = [
        ("/z/config", &*config),
        OWN_ALIVE,
        ("/h/h2", "10.0.0.128/25"),
        ("/z/subnets/4/10.0.0.128-25", "h2"),
    ];
    let (subnet, owner) = (subnet::parse("10.0.0.128/25").unwrap(), "h2".parse().unwrap());
    assert_eq!(refused(&keys, &small), LeaseError::SubnetLost { subnet, owner });
}

#[test]
fn a_wide_subnet_without_a_claim_takes_nothing() {
    let keys = [("/h/evil", "10.0.0.0/17"), ("/h/evil2", "10.0.128.0/17")];
    let mut late = own();
    late.ticket = Some(300);
    assert_eq!(subnet_of(&keys, &late), "10.0.45.0/24");
    let remembering = Claimant { remembered: v4("10.0.9.0/24"), ..own() };
    assert_eq!(subnet_of(&keys, &remembering), "10.0.9.0/24");
    let claimed = [("/h/h2", "10.0.8.0/23"), ("/z/subnets/4/10.0.8.0-23", "h2")];
    let late = Claimant { ticket: Some(265), ..own() };
    assert_eq!(subnet_of(&claimed, &late), "10.0.10.0/24", "an adopted one has a claim");
}

#[test]
fn both_families_are_claimed_together_and_one_is_added_later() {
    let mut dual = own();
    dual.network.pools.v6 = Some(Pool::new(subnet::parse("fd00:10::/48").unwrap(), 16).unwrap());
    let config = dual.network.config("a").to_json();
    let both = subnet_of(&[("/z/config", &config)], &dual);
    assert_eq!(both, "10.0.7.0/24 fd00:10:0:7::/64");
    let added = subnet_of(&[("/z/config", &config), ("/h/h1", "10.0.9.0/24")], &dual);
    assert_eq!(added, "10.0.9.0/24 fd00:10:0:7::/64");
}

#[test]
fn without_ipv4_the_host_key_holds_the_ipv6_subnet() {
    let mut own = own();
    let v6 = Pool::new(subnet::parse("fd00:10::/48").unwrap(), 16).unwrap();
    own.network.pools = PerFamily { v4: None, v6: Some(v6) };
    let config = own.network.config("a").to_json();
    let (subnet, transaction) = written(&[("/z/config", &config)], &own);
    assert_eq!(subnet, "fd00:10:0:7::/64");
    let (key, value) = ("/h/h1".to_owned(), "fd00:10:0:7::/64".to_owned());
    assert!(transaction.writes.contains(&Write::Put { key, value, lease: 0 }));
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

#[test]
fn a_python_host_takes_only_a_subnet_that_a_host_can_have() {
    let lease = Lease { subnets: v4("10.0.9.0/24") };
    let keys = [("/h/h1", "10.0.9.0/24"), ("/h/a", "0.0.0.0/0"), ("/h/b", "10.0.0.0/16")];
    assert_eq!(python::taken_by(&found(&keys), &own(), &lease), None);
    let keys = [("/h/a", "10.0.9.0/24"), ("/h/h1", "10.0.9.0/24")];
    assert_eq!(python::taken_by(&found(&keys), &own(), &lease).unwrap().as_str(), "a");
    let had_a_record = Claimant { without_record: ["a".parse().unwrap()].into(), ..own() };
    assert_eq!(python::taken_by(&found(&keys), &had_a_record, &lease), None);
    let node = node("m2", "10.0.9.0/24");
    for record in [&*node, "garbage"] {
        let keys = [("/h/a", "10.0.9.0/24"), ("/z/nodes/a", record)];
        let found = found(&keys);
        assert_eq!(python::taken_by(&found, &own(), &lease), None, "it is none of those");
        assert!(!python::any(&found, &roots()));
    }
    let wide = [("/h/a", "10.0.8.0/23")];
    assert_eq!(python::taken_by(&found(&wide), &own(), &lease), None, "more than one slot");
}

#[test]
fn a_later_python_host_does_not_take_an_adopted_subnet() {
    let lease = Lease { subnets: v4("10.0.9.0/24") };
    let (ours, theirs) = (("/h/h1", "10.0.9.0/24"), ("/h/a", "10.0.9.0/24"));
    let claim = ("/z/subnets/4/10.0.9.0-24", "h1");
    let taken = |keys: &[_]| python::taken_by(&found(keys), &own(), &lease).is_some();
    assert!(!taken(&[ours, theirs]), "it was here first");
    assert!(!taken(&[ours, theirs, claim]), "and is claimed by now");
    assert!(taken(&[theirs, ours]), "the other one was");
    let mut chosen = found(&[]);
    for (key, value, revision) in
        [(ours.0, ours.1, 2), (claim.0, claim.1, 2), (theirs.0, theirs.1, 3)]
    {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        chosen.put(&roots(), Raw { key, value, created: revision, modified: revision });
    }
    assert!(python::taken_by(&chosen, &own(), &lease).is_some(), "it was chosen, not adopted");
    for used in
        [Claimant { keep: lease.subnets, ..own() }, Claimant { remembered: lease.subnets, ..own() }]
    {
        assert_eq!(python::taken_by(&chosen, &used, &lease), None, "pods use it");
    }
}

#[test]
fn a_dry_run_foresees_the_claim_beside_a_python_host_of_the_same_subnet() {
    use crate::lease::session::{ClaimPreview, dry_run_claim};
    let (ours, theirs) = (("/h/h1", "10.0.9.0/24"), ("/h/a", "10.0.9.0/24"));
    let kept = ClaimPreview::Repaired(Lease { subnets: v4("10.0.9.0/24") });
    assert_eq!(dry_run_claim(&found(&[ours, theirs]), own()), Ok(kept));
    let another = ClaimPreview::Chosen(Lease { subnets: v4("10.0.1.0/24") });
    assert_eq!(dry_run_claim(&found(&[theirs, ours]), own()), Ok(another));
}
