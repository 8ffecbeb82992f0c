use crate::lease::records::Backend;
use crate::lease::restore::absent::Absent;
use crate::lease::restore::removed::Rollback;
use crate::lease::restore::*;
use crate::lease::snapshot::Raw;
use crate::lease::transaction::Condition;
use crate::net::PerFamily;
use crate::net::subnet::Pool;

fn roots() -> Roots {
    Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
}

fn network() -> Network {
    let pool = Pool::new(subnet::parse("10.0.0.0/8").unwrap(), 16).ok();
    Network {
        roots: roots(),
        pools: PerFamily { v4: pool, v6: None },
        limits: PerFamily::default(),
        backend: Backend::Direct,
        tenants: Default::default(),
    }
}

fn config(id: &str) -> ClusterConfig {
    ClusterConfig::new(id, &PerFamily::default(), Backend::Direct)
}

/// A store with these settings and keys, at `revision`.
fn store(config: Option<&ClusterConfig>, keys: &[(&str, &str)], revision: i64) -> Snapshot {
    let config = config.map(|config| ("/z/config", config.to_json()));
    let mut store = Snapshot::default();
    let config = config.iter().map(|(key, value)| (*key, value.as_str()));
    for (key, value) in config.chain(keys.iter().copied()) {
        let raw = Raw { key: key.as_bytes(), value: value.as_bytes(), created: 1, modified: 1 };
        store.put(&roots(), raw);
    }
    store.revision = revision;
    store
}

fn own() -> NodeName {
    "h1".parse().unwrap()
}

const HOSTS: [(&str, &str); 5] = [
    ("/h/h1", "10.0.1.0/24"),
    ("/h/h2", "10.0.2.0/24"),
    ("/h/py", "10.0.3.0/24"),
    ("/z/subnets/4/10.0.1.0-24", "h1"),
    ("/z/subnets/4/10.0.2.0-24", "h2"),
];

/// The keys put back, each host's with the keys and revisions that must be unchanged for it.
fn put_back(known: &Snapshot, found: &Snapshot) -> Vec<(Vec<String>, Vec<String>)> {
    let mut all = Vec::new();
    let loss = Loss { known, found, network: &network(), rollback: None };
    for batch in batches(loss).transactions {
        assert_eq!(batch.conditions, []);
        for write in batch.writes {
            let Write::Try(attempt) = write else { panic!("{write:?}") };
            let unchanged = attempt.conditions.into_iter().map(|condition| match condition {
                Condition::Unchanged { key, modified } => format!("{key}@{modified}"),
                other => panic!("{other:?}"),
            });
            let put = attempt.writes.into_iter().map(|write| match write {
                Write::Put { key, value, lease: 0 } => format!("{key}={value}"),
                other => panic!("{other:?}"),
            });
            all.push((put.collect(), unchanged.collect()));
        }
    }
    all
}

#[test]
fn the_same_mark_and_a_later_revision_is_the_same_store() {
    let (a, b) = (config("a"), config("b"));
    let known = store(Some(&a), &[], 50);
    let check = |found: Snapshot, expected| assert_eq!(continuity(&known, &found), expected);
    check(store(Some(&a), &[], 50), Continuity::Same);
    check(store(Some(&a), &[], 90), Continuity::Same);
    check(store(Some(&a), &[], 49), Continuity::Lost);
    let mut recreated = store(Some(&a), &[], 90);
    recreated.config.as_mut().unwrap().created = 60;
    check(recreated, Continuity::Lost);
    check(store(None, &[], 90), Continuity::Lost);
    check(store(Some(&b), &[], 90), Continuity::Lost);
    assert_eq!(continuity(&store(None, &[], 9), &store(Some(&b), &[], 3)), Continuity::Same);
}

#[test]
fn a_store_rebuilt_by_a_host_that_knew_more_needs_nothing() {
    let (known, ancestor) =
        (store(Some(&config("a")), &[], 50), |revision| Ancestor { id: "a".into(), revision });
    let rebuilt = |revision| store(Some(&config("a").rebuilt("b", ancestor(revision))), &[], 3);
    assert_eq!(continuity(&known, &rebuilt(50)), Continuity::Rebuilt);
    assert_eq!(continuity(&known, &rebuilt(51)), Continuity::Rebuilt);
    assert_eq!(continuity(&known, &rebuilt(49)), Continuity::Lost);
}

#[test]
fn no_transaction_goes_on_without_what_was_there_before_it() {
    let known = Arc::new(store(Some(&config("a")), &HOSTS, 50));
    let found = store(None, &[("/h/h2", "10.0.2.0/24")], 1);
    let mut restoration = Restoration::new(known, &found, &network(), None, "b");
    let required = |transaction: Transaction| -> Vec<String> {
        let keys = transaction.conditions.into_iter().filter_map(|condition| match condition {
            Condition::Exists { key } => Some(key),
            _ => None,
        });
        keys.collect()
    };
    let mut denied = restoration.clone();
    assert_eq!(required(restoration.next_transaction()), ["/h/h2"]);
    assert!(!restoration.marking);
    let mut put_back = required(restoration.next_transaction());
    put_back.sort();
    assert_eq!(put_back, ["/h/h1", "/h/py", "/z/subnets/4/10.0.2.0-24"]);
    assert!(restoration.marking);
    denied.next_transaction();
    denied.only_note();
    assert_eq!(required(denied.next_transaction()), ["/h/h2"], "it could put back none");
}

#[test]
fn every_host_is_put_back_whole_if_it_and_its_subnet_are_free() {
    let known = store(Some(&config("a")), &HOSTS, 50);
    let text = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        put_back(&known, &store(None, &[("/h/evil", "0.0.0.0/0")], 1)),
        [
            (
                text(&["/h/h1=10.0.1.0/24", "/z/subnets/4/10.0.1.0-24=h1"]),
                text(&[
                    "/h/h1@0",
                    "/z/nodes/h1@0",
                    "/z/wireguard/h1@0",
                    "/z/subnets/4/10.0.1.0-24@0"
                ])
            ),
            (
                text(&["/h/h2=10.0.2.0/24", "/z/subnets/4/10.0.2.0-24=h2"]),
                text(&[
                    "/h/h2@0",
                    "/z/nodes/h2@0",
                    "/z/wireguard/h2@0",
                    "/z/subnets/4/10.0.2.0-24@0"
                ])
            ),
            (
                text(&["/h/py=10.0.3.0/24"]),
                text(&[
                    "/h/py@0",
                    "/z/nodes/py@0",
                    "/z/wireguard/py@0",
                    "/z/subnets/4/10.0.3.0-24@0"
                ])
            ),
        ]
    );
}

#[test]
fn the_claim_of_a_wireguard_key_is_put_back_for_its_owner_alone() {
    let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let mut known = store(Some(&config("a")), &HOSTS, 50);
    for (host, revision) in [("h2", 9), ("h1", 12), ("of a host that is gone", 3)] {
        let name = format!("/z/wireguard/{host}");
        let (created, modified) = (revision, revision);
        known.put(&roots(), Raw { key: name.as_bytes(), value: key.as_bytes(), created, modified });
    }
    let puts = put_back(&known, &store(None, &[], 1)).into_iter().flat_map(|(puts, _)| puts);
    let claims: Vec<String> = puts.filter(|put| put.contains("wireguard")).collect();
    assert_eq!(claims, [format!("/z/wireguard/h2={key}")]);
    let found = store(None, &[("/z/wireguard/h2", key)], 1);
    let claims = put_back(&known, &found).into_iter().flat_map(|(puts, _)| puts);
    assert!(claims.into_iter().all(|put| !put.contains("wireguard")), "it is there");
}

#[test]
fn what_is_left_of_a_host_stays_and_the_rest_is_put_back() {
    let known = store(Some(&config("a")), &HOSTS, 50);
    let found = store(None, &[HOSTS[0], HOSTS[2], HOSTS[3], HOSTS[4]], 9);
    let text = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let conditions =
        ["/h/h2@0", "/z/nodes/h2@0", "/z/wireguard/h2@0", "/z/subnets/4/10.0.2.0-24@1"];
    assert_eq!(put_back(&known, &found), [(text(&["/h/h2=10.0.2.0/24"]), text(&conditions))]);
}

#[test]
fn a_host_that_is_back_or_whose_subnet_is_taken_is_left_alone() {
    let known = store(Some(&config("a")), &HOSTS, 50);
    let found = store(
        None,
        &[("/h/h1", "10.0.7.0/24"), ("/h/h2", "10.0.8.0/24"), ("/z/subnets/4/10.0.2.0-23", "new")],
        9,
    );
    assert_eq!(put_back(&known, &found), []);
}

#[test]
fn many_hosts_are_put_back_in_batches_that_etcd_takes() {
    let keys: Vec<_> = (0..250).map(|n| (format!("/h/n{n}"), format!("10.{n}.0.0/16"))).collect();
    let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let known = store(Some(&config("a")), &keys, 50);
    let (found, network) = (store(None, &[], 1), network());
    let batches = batches(Loss { known: &known, found: &found, network: &network, rollback: None });
    let sizes: Vec<_> = batches.transactions.iter().map(|batch| batch.writes.len()).collect();
    assert_eq!(sizes, [100, 100, 50]);
}

#[test]
fn the_mark_says_what_the_store_was_rebuilt_from_and_changes_once() {
    let known = store(Some(&config("a")), &[], 50);
    let (fresh, backup) = (config("of a new host"), config("a"));
    for (found, modified, id) in [
        (store(None, &[], 1), 0, "b"),
        (store(Some(&backup), &[], 20), 1, "b"),
        (store(Some(&fresh), &[], 1), 1, "of a new host"),
    ] {
        let mark = mark(&known, &found, &config(""), "b", &roots());
        let key = "/z/config".to_owned();
        assert_eq!(mark.conditions, [Condition::Unchanged { key, modified }]);
        let Write::Put { value, .. } = &mark.writes[0] else { panic!("no put") };
        let written = ClusterConfig::parse(value.as_bytes()).unwrap();
        assert_eq!(&*written.id, id);
        assert_eq!(written.rebuilt_from, [Ancestor { id: "a".into(), revision: 50 }]);
        let rebuilt = store(Some(&written), &[], 2);
        assert_eq!(continuity(&known, &rebuilt), Continuity::Rebuilt);
    }
}

#[test]
fn what_may_not_be_put_back_is_remembered_until_it_returns() {
    let known = store(Some(&config("a")), &HOSTS, 50);
    let mut absent = Absent::new(known, None);
    let found = absent.remembered(store(None, &[], 3), &own(), &network());
    assert_eq!(found.revision, 3);
    assert_eq!(found.hosts.len(), 2);
    assert_eq!(found.hosts["h2"].created, 0);
    let names =
        |found: &Snapshot| found.hosts.keys().map(|host| host.to_string()).collect::<Vec<_>>();
    let mut restarted = Absent::of_saved(&found).expect("hosts that are only remembered");
    assert_eq!(names(&restarted.remembered(store(None, &[], 4), &own(), &network())), ["h2", "py"]);
    let returned = store(None, &[("/h/h2", "10.0.2.0/24")], 4);
    let found = absent.remembered(returned.clone(), &own(), &network());
    assert_eq!((names(&found), found.claims.len()), (vec!["h2".into(), "py".into()], 0));
    assert_eq!(found.hosts["h2"].created, 1);
    assert!(Absent::of_saved(&returned).is_none());
}

/// Known at revision 50: h2 has had 10.0.2.0/24 since 40. The snapshot of revision 20, of which h2 knows nothing: the
/// subnet was that of h9. `more`: keys written since, at revision 30.
fn rolled_back(more: &[(&str, &str)]) -> (Snapshot, Snapshot) {
    let known = store(Some(&config("a")), &HOSTS, 50);
    let old = [
        ("/h/h1", "10.0.1.0/24"),
        ("/z/subnets/4/10.0.1.0-24", "h1"),
        ("/h/h9", "10.0.2.0/24"),
        ("/z/subnets/4/10.0.2.0-24", "h9"),
    ];
    let mut found = store(Some(&config("a")), &old, 20);
    for (key, value) in more {
        let raw = Raw { key: key.as_bytes(), value: value.as_bytes(), created: 30, modified: 30 };
        found.put(&roots(), raw);
    }
    (known, found)
}

const ALIVE: &str = r#"{"schema":1,"machineId":"m","since":"2026-01-01T00:00:00Z","instance":"i"}"#;

/// Whose subnet 10.0.2.0/24 is in etcd after survivors put back what they know, and for one that may not.
fn whose(known: &Snapshot, found: &Snapshot, is_recent: bool) -> (String, String) {
    let rollback = Some(Rollback { old: 20, is_recent });
    let network = network();
    let mut put = found.clone();
    for batch in batches(Loss { known, found, network: &network, rollback }).transactions {
        for write in &batch.writes {
            let Write::Try(attempt) = write else { panic!("{write:?}") };
            put.written(&roots(), attempt, 60);
        }
    }
    let mut absent = Absent::new(known.clone(), Some(20));
    let view = absent.remembered(found.clone(), &own(), &network);
    let owners = |found: &Snapshot| {
        let subnet = subnet::parse("10.0.2.0/24").unwrap();
        let hosts = found.hosts.iter().filter(|(_, stored)| stored.value == subnet);
        let claim = found.claims.get(&subnet).map(|claim| claim.value.to_string());
        let hosts: Vec<_> = hosts.map(|(host, _)| host.to_string()).collect();
        assert_eq!(claim.as_slice(), hosts, "one owner, by host key and claim");
        hosts.join(" ")
    };
    (owners(&put), owners(&view))
}

#[test]
fn a_host_keeps_its_subnet_before_one_that_an_older_snapshot_brought_back() {
    let both = |host: &str| (host.to_owned(), host.to_owned());
    let (known, found) = rolled_back(&[]);
    assert_eq!(whose(&known, &found, true), both("h2"));
    let (known, found) = rolled_back(&[("/z/alive/h9", ALIVE)]);
    assert_eq!(whose(&known, &found, true), both("h9"), "h9 came back and lives");
    let (known, found) = rolled_back(&[("/z/subnets/4/10.0.2.0-24", "h9")]);
    assert_eq!(whose(&known, &found, true), both("h9"), "h9 claimed the subnet since");
    let (mut known, found) = rolled_back(&[]);
    let raw = Raw { key: b"/h/h9", value: b"10.0.9.0/24", created: 45, modified: 45 };
    known.put(&roots(), raw);
    assert_eq!(whose(&known, &found, true), both("h9"), "h9 had not been removed");
}

#[test]
fn an_alive_key_from_before_counts_unless_it_is_known_to_be_of_the_past() {
    let (known, mut found) = rolled_back(&[]);
    let raw = Raw { key: b"/z/alive/h9", value: ALIVE.as_bytes(), created: 15, modified: 15 };
    found.put(&roots(), raw);
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    assert_eq!(whose(&known, &found, false), pair("h9", "h9"), "this agent has just started");
    assert_eq!(whose(&known, &found, true), pair("h2", "h9"), "only remembered: h9 may live");
    let raw = Raw { key: b"/z/alive/h2", value: ALIVE.as_bytes(), created: 30, modified: 30 };
    found.put(&roots(), raw);
    assert_eq!(whose(&known, &found, true), pair("h2", "h2"), "h2 lives");
}

#[test]
fn a_sign_of_life_makes_a_host_decide_again() {
    let (known, found) = rolled_back(&[]);
    let mut absent = Absent::new(known, Some(20));
    let view = absent.remembered(found, &own(), &network());
    assert!(!absent.is_stale(&view));
    for (host, counts) in [("h9", true), ("h2", true), ("h1", false)] {
        let mut mirror = view.clone();
        let key = format!("/z/alive/{host}");
        let raw = Raw { key: key.as_bytes(), value: ALIVE.as_bytes(), created: 31, modified: 31 };
        mirror.put(&roots(), raw);
        assert_eq!(absent.is_stale(&mirror), counts, "{host}");
    }
}
