use crate::lease::records::Backend;
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
    for batch in transactions(known, found, &network()) {
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
    let mut restoration = Restoration::new(known, &found, &network(), "b");
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
    denied.only_mark();
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
                text(&["/h/h1@0", "/z/nodes/h1@0", "/z/subnets/4/10.0.1.0-24@0"])
            ),
            (
                text(&["/h/h2=10.0.2.0/24", "/z/subnets/4/10.0.2.0-24=h2"]),
                text(&["/h/h2@0", "/z/nodes/h2@0", "/z/subnets/4/10.0.2.0-24@0"])
            ),
            (
                text(&["/h/py=10.0.3.0/24"]),
                text(&["/h/py@0", "/z/nodes/py@0", "/z/subnets/4/10.0.3.0-24@0"])
            ),
        ]
    );
}

#[test]
fn what_is_left_of_a_host_stays_and_the_rest_is_put_back() {
    let known = store(Some(&config("a")), &HOSTS, 50);
    let found = store(None, &[HOSTS[0], HOSTS[2], HOSTS[3], HOSTS[4]], 9);
    let text = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let conditions = ["/h/h2@0", "/z/nodes/h2@0", "/z/subnets/4/10.0.2.0-24@1"];
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
    let batches = transactions(&known, &found, &network);
    let sizes: Vec<_> = batches.map(|batch| batch.writes.len()).collect();
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
    let found = remembering(&known, store(None, &[], 3), &own(), &network());
    assert_eq!(found.revision, 3);
    assert_eq!(found.hosts.len(), 2);
    assert_eq!(found.hosts["h2"].created, 0);
    let returned = store(None, &[("/h/h2", "10.0.2.0/24")], 4);
    let rest = still_absent(&known, &returned);
    assert_eq!(rest.hosts.keys().map(NodeName::as_str).collect::<Vec<_>>(), ["h1", "py"]);
    assert_eq!(rest.claims.len(), 1);
}
