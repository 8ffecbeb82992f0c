//! Members of groups through a real etcd, between hosts in namespaces.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Txn, TxnOp};
use humanz::net::{Object, ProblemKind};
use humanz::policy::{Member, Members, Selector};
use humanz::sources::{GroupId, HostAddresses, Hosts};

use self::scene::{Scene, group, member, roots};
use crate::support::wait::SOON;
use crate::support::{eventually, soon};

mod other_groups;
mod scene;

#[test]
fn a_pod_labelled_on_one_host_is_a_member_on_another_within_100_ms() {
    let scene = Scene::new(2);
    let (a, b) = (scene.peer(1), scene.peer(2));
    let (web, other) = (group("web"), group("other"));
    b.needs(std::slice::from_ref(&web));
    let mut times = Vec::new();
    for round in 0..20 {
        let own: &[&str] = if round % 2 == 0 { &["10.244.1.2", "10.244.1.3"] } else { &[] };
        // The rest after a write is part of the rate, not of the latency.
        std::thread::sleep(Duration::from_millis(150));
        let begun = Instant::now();
        a.has(&web, own);
        while b.of(&web) != own {
            assert!(begun.elapsed() < 3 * SOON, "{:?}", b.last());
            std::thread::sleep(Duration::from_millis(1));
        }
        times.push(begun.elapsed());
    }
    times.sort();
    println!("label on host A → member on host B: median {:?}, longest {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(100), "{times:?}");
    // What nobody here needs is published by its host, and read by no other.
    a.has(&other, &["10.244.1.9"]);
    soon("it is published", || scene.cluster.etcd.get(&Scene::key("h1", &other)).is_some());
    assert_eq!(b.members().keys().collect::<Vec<_>>(), [&web]);
}

#[test]
fn a_group_is_withdrawn_and_made_again_and_leaves_nothing_behind() {
    let scene = Scene::new(2);
    let (a, b) = (scene.peer(1), scene.peer(2));
    let web = group("web");
    a.has(&web, &["10.244.1.2"]);
    // Needed only later.
    soon("published", || scene.cluster.etcd.get(&Scene::key("h1", &web)).is_some());
    b.needs(std::slice::from_ref(&web));
    b.becomes(&web, &["10.244.1.2"]);
    for _ in 0..3 {
        a.has(&web, &[]);
        b.becomes(&web, &[]);
        let keys = &scene.cluster.etcd;
        let left = keys.list("/humanz/v1-members/");
        assert!(left.iter().all(|(key, _)| key.ends_with("/generation")), "{left:?}");
        assert!(keys.list("/humanz/v1-groups/").is_empty());
        a.has(&web, &["10.244.1.7"]);
        b.becomes(&web, &["10.244.1.7"]);
    }
    b.needs(&[]);
    soon("what is not needed is not kept", || b.members().is_empty());
}

#[test]
fn members_stay_while_etcd_is_away_and_are_read_again_after_it() {
    let scene = Scene::new(2);
    let (a, b, web) = scene.with_member();
    scene.cluster.etcd.kill();
    b.wait_problem(ProblemKind::Etcd, "members of groups");
    a.has(&web, &["10.244.1.3"]);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(b.of(&web), ["10.244.1.2"], "frozen");
    scene.cluster.etcd.start();
    b.becomes(&web, &["10.244.1.3"]);
    soon("no problem is left", || b.last().problems.is_empty());
    // The history is gone: everything is read again.
    scene.cluster.etcd.compact();
    a.has(&web, &["10.244.1.4"]);
    b.becomes(&web, &["10.244.1.4"]);
}

#[test]
fn what_a_stolen_host_says_of_others_is_ignored() {
    let scene = Scene::new(3);
    let (a, b, web) = scene.with_member();
    let keys = &scene.cluster.etcd;
    let announce = |host: &str| {
        keys.put(&format!("{}{host}", roots().announcements(GroupId::of(&web).as_str())), "");
    };
    // As its role lets it: below its own name.
    let say = |value: &[u8]| {
        keys.put(&Scene::key("h3", &web), value);
        announce("h3");
    };
    let value = |selector: &Selector, addresses: &[&str]| {
        let members: Vec<Member> = addresses.iter().map(|address| member(address)).collect();
        serde_json::json!({"selector": selector.text(), "members": members}).to_string()
    };
    say(value(&web, &["10.244.3.3", "10.244.1.99", "10.244.2.99"]).as_bytes());
    b.becomes(&web, &["10.244.1.2", "10.244.3.3"]);
    b.wait_reason("host h3", "is not in that host's subnets");
    for (bytes, words) in [
        (value(&group("db"), &["10.244.3.3"]).into_bytes(), "another group"),
        (vec![b'x'; 1_000_000], "bytes"),
        (br#"{"selector":"","members":[],"more":1}"#.to_vec(), "unknown field"),
        (b"\xff\x00".to_vec(), "ignored"),
    ] {
        say(&bytes);
        b.wait_reason("host h3", words);
        b.becomes(&web, &["10.244.1.2"]);
    }
    // As many members as a value holds.
    let many: Vec<String> =
        (0..1_000_000 / 60).map(|number| format!("10.244.3.{}", number % 250 + 2)).collect();
    let texts: Vec<String> = many
        .iter()
        .enumerate()
        .map(|(number, address)| format!(r#"{{"addresses":["{address}"],"ports":[{{"name":"p{number}","protocol":"tcp","port":1}}]}}"#))
        .collect();
    let text = serde_json::to_string(&web.text()).unwrap();
    let flood = format!(r#"{{"selector":{text},"members":[{}]}}"#, texts.join(","));
    say(flood.as_bytes());
    b.wait_problem(ProblemKind::Policy, "host h3");
    b.becomes(&web, &["10.244.1.2"]);
    // Announcements say where to look, never what is there: those of others can be forged and deleted.
    let announcements = roots().announcements(GroupId::of(&web).as_str());
    keys.delete_all(&announcements);
    announce("h1");
    announce("nobody");
    keys.put(&format!("{announcements}$(reboot)"), "x");
    keys.put(&format!("{announcements}a/b/c"), "x");
    keys.delete(&format!("{announcements}h1"));
    say(value(&web, &["10.244.3.4"]).as_bytes());
    b.becomes(&web, &["10.244.1.2", "10.244.3.4"]);
    keys.delete_all(&announcements);
    // The others notice nothing of it, but for a host that starts: until its host announces it again.
    assert_eq!(b.of(&web), ["10.244.1.2", "10.244.3.4"]);
    a.has(&web, &["10.244.1.2", "10.244.1.3"]);
    b.becomes(&web, &["10.244.1.2", "10.244.1.3", "10.244.3.4"]);
}

/// Whoever may delete announcements takes no member away from a host that starts again.
#[test]
fn a_member_without_its_announcement_is_found_again_after_a_start() {
    let scene = Scene::new(3);
    let (owner, bad) = (scene.peer(2), group("bad"));
    owner.has(&bad, &["10.244.2.7"]);
    let reader = scene.peer(1);
    reader.needs(std::slice::from_ref(&bad));
    reader.becomes(&bad, &["10.244.2.7"]);
    let kept = reader.members();
    drop(reader);
    // As a stolen host would, between two looks of the owner at its keys.
    let keys = &scene.cluster.etcd;
    let announced = || {
        let range = roots().announcements(GroupId::of(&bad).as_str());
        keys.pairs(&range).iter().map(|pair| pair.key_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(announced().len(), 1);
    for key in announced() {
        keys.delete(&key);
    }
    let fresh = scene.restarted(3, Members::new());
    fresh.needs(std::slice::from_ref(&bad));
    soon("the group is read", || fresh.members().contains_key(&bad));
    assert_eq!(fresh.of(&bad), Vec::<String>::new());
    let again = scene.restarted(1, kept.clone());
    again.needs(std::slice::from_ref(&bad));
    again.becomes(&bad, &["10.244.2.7"]);
    assert!(announced().is_empty(), "nobody has put it again meanwhile");
    drop(again);
    // What its host has withdrawn is gone.
    owner.has(&bad, &[]);
    let key = Scene::key(&owner.name, &bad);
    soon("the withdrawal", || keys.get(&key).is_none());
    let last = scene.restarted(1, kept);
    last.needs(std::slice::from_ref(&bad));
    soon("the group is read", || last.members().contains_key(&bad));
    assert_eq!(last.of(&bad), Vec::<String>::new());
}

#[test]
fn a_host_that_is_gone_takes_its_members_with_it() {
    let scene = Scene::new(2);
    let (a, b, web) = scene.with_member();
    // Lost for a day, but still a host of the network: its pods may run.
    drop(a);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(b.of(&web), ["10.244.1.2"]);
    b.change(|inputs| {
        let mut hosts = Hosts::clone(&inputs.hosts);
        hosts.retain(|name, _| name.as_str() != "h1");
        inputs.hosts = Arc::new(hosts);
    });
    b.becomes(&web, &[]);
    b.change(|inputs| inputs.hosts = Arc::clone(&scene.hosts));
    b.becomes(&web, &["10.244.1.2"]);
    scene.cluster.etcd.delete(&Scene::key("h1", &web));
    let announced = format!("{}h1", roots().announcements(GroupId::of(&web).as_str()));
    scene.cluster.etcd.delete(&announced);
    b.becomes(&web, &[]);
}

#[test]
fn a_machine_that_lost_its_record_publishes_nothing() {
    let scene = Scene::new(2);
    let (a, b, web) = scene.with_member();
    // Another machine has the name now.
    scene.cluster.etcd.put("/humanz/v1/nodes/h1", "{\"another\": 1}");
    a.has(&web, &["10.244.1.66"]);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(b.of(&web), ["10.244.1.2"]);
}

/// `keys` with these values, many at once, and again where a busy disk lets etcd's time for a request run out.
fn put_all(scene: &Scene, pairs: &[(String, String)]) {
    let put = |(key, value): &(String, String)| TxnOp::put(key.as_str(), value.as_str(), None);
    for some in pairs.chunks(100) {
        eventually("etcd takes them", 3 * SOON, || {
            let all = Txn::new().and_then(some.iter().map(put).collect::<Vec<_>>());
            let done = scene.cluster.etcd.try_call(async |client| client.txn(all).await.map(drop));
            done.map_err(|error| error.to_string())
        });
    }
}

/// A host that needs no group itself learns of it, too: others wait for what it says, and no longer than that.
#[test]
fn an_older_etcd_has_what_a_host_says_at_once_again() {
    let scene = Scene::new(1);
    let (a, web) = (scene.peer(1), group("web"));
    let key = Scene::key(&a.name, &web);
    let has = |address: &str| {
        eventually("the member", SOON, || match scene.cluster.etcd.get(&key) {
            Some(value) if value.contains(address) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    };
    a.has(&web, &["10.244.1.2"]);
    has("10.244.1.2");
    scene.cluster.etcd.keep_copy();
    a.has(&web, &["10.244.1.3"]);
    has("10.244.1.3");
    scene.cluster.etcd.restart_from_copy();
    has("10.244.1.3");
}

/// By the revision alone an etcd of before looks like a later one once others have written to it.
#[test]
fn an_older_etcd_that_other_writes_overtook_gives_no_former_member_back() {
    let scene = Scene::new(2);
    let (a, b, web) = scene.with_member();
    scene.cluster.etcd.keep_copy();
    a.has(&web, &["10.244.1.3"]);
    b.becomes(&web, &["10.244.1.3"]);
    // Nobody says it again.
    drop(a);
    scene.cluster.etcd.restart_from_copy();
    for number in 0..50 {
        scene.cluster.etcd.put(&format!("/humanz/x{number}"), "");
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        assert_eq!(b.of(&web), ["10.244.1.3"], "{:?}: {:?}", begun.elapsed(), b.last());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whoever may announce, as each host may, can do so for hosts that do not exist.
#[test]
fn announcements_of_hosts_that_do_not_exist_stop_no_reader() {
    let scene = Scene::new(2);
    let (a, web) = (scene.peer(1), group("web"));
    a.has(&web, &["10.244.1.2"]);
    let announced = roots().announcements(GroupId::of(&web).as_str());
    let made_up: Vec<(String, String)> =
        (0..51_000).map(|number| (format!("{announced}x{number}"), String::new())).collect();
    put_all(&scene, &made_up);
    let b = scene.peer(2);
    b.needs(std::slice::from_ref(&web));
    b.becomes(&web, &["10.244.1.2"]);
    b.wait_problem(ProblemKind::Policy, "group pods app=web of namespace shop");
    a.has(&web, &["10.244.1.3"]);
    b.becomes(&web, &["10.244.1.3"]);
    assert!(b.last().unread.is_empty());
}

/// Many hosts have many pods in one group, and hostile ones more than there can be.
#[test]
fn a_group_may_have_a_hundred_thousand_members_and_not_a_quarter_of_a_million() {
    let scene = Scene::new(1);
    let (all, b) = (group("all"), scene.peer(1));
    let mut hosts = Hosts::clone(&scene.hosts);
    for number in 0..420_u32 {
        let subnet = format!("10.{}.{}.0/24", 100 + number / 256, number % 256);
        let addresses = HostAddresses { subnets: vec![subnet.parse().unwrap()], nodes: Vec::new() };
        hosts.insert(format!("far{number}").parse().unwrap(), addresses);
    }
    b.change(|inputs| inputs.hosts = Arc::new(hosts));
    let text = serde_json::to_string(&all.text()).unwrap();
    let say = |numbers: std::ops::Range<u32>, count: u32| {
        let announced = roots().announcements(GroupId::of(&all).as_str());
        for number in numbers {
            let member = |at: u32| {
                let address =
                    format!("10.{}.{}.{}", 100 + number / 256, number % 256, at % 250 + 2);
                let port = format!(r#"{{"name":"p{at}","protocol":"tcp","port":1}}"#);
                let ports = if count > 250 { port } else { String::new() };
                format!(r#"{{"addresses":["{address}"],"ports":[{ports}]}}"#)
            };
            let members: Vec<String> = (0..count).map(member).collect();
            let value = format!(r#"{{"selector":{text},"members":[{}]}}"#, members.join(","));
            let host = format!("far{number}");
            put_all(
                &scene,
                &[(Scene::key(&host, &all), value), (format!("{announced}{host}"), String::new())],
            );
        }
    };
    say(0..420, 250);
    b.needs(std::slice::from_ref(&all));
    let count = || b.members().get(&all).map(|all| all.len());
    eventually("all of them", 12 * SOON, || match count() {
        Some(105_000) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    b.needs(&[]);
    say(0..60, 4000);
    b.needs(std::slice::from_ref(&all));
    b.wait_problem(ProblemKind::Policy, "group pods app=all of namespace shop");
    assert!(b.last().unread.contains(&all), "what was known before holds");
    b.needs(&[]);
    say(0..60, 250);
    b.needs(std::slice::from_ref(&all));
    eventually("all of them again", 6 * SOON, || match count() {
        Some(105_000) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// As after an etcd that was restored from an older state, while its agent is down, or because it wants to be.
#[test]
fn a_host_that_is_behind_holds_up_no_group_for_long_and_its_return_or_removal_is_noticed() {
    let scene = Scene::new(3);
    let (a, b, web) = scene.with_member();
    let (keys, db) = (&scene.cluster.etcd, group("db"));
    let of_h1 = (ProblemKind::Policy, Object::Host("h1".parse().unwrap()));
    let is_behind = || b.last().problems.iter().any(|problem| problem.key() == of_h1);
    let go_back = || {
        keys.put("/humanz/v1-members/h1/generation", "7");
        keys.delete(&Scene::key("h1", &web));
        keys.put(&format!("{}h1", roots().announcements(GroupId::of(&web).as_str())), "");
        soon("it is behind", is_behind);
        assert_eq!(b.of(&web), ["10.244.1.2"], "what was known stays");
    };
    drop(a);
    go_back();
    // A group that is new here: nobody knows which members that host has in it.
    b.needs(&[web.clone(), db.clone()]);
    soon("it is read", || b.members().contains_key(&db));
    assert!(b.last().unread.contains(&db), "a rule that denies it waits");
    eventually("it waits no longer", 3 * SOON, || {
        let unread = b.last().unread;
        if unread.is_empty() { Ok(()) } else { Err(format!("{unread:?}")) }
    });
    assert!(is_behind());
    // The host is back, with members of another group, which nobody needs.
    b.needs(&[]);
    let a = scene.peer(1);
    a.has(&group("other"), &["10.244.1.2"]);
    soon("it is not behind", || !is_behind());
    a.has(&web, &["10.244.1.2"]);
    b.needs(std::slice::from_ref(&web));
    b.becomes(&web, &["10.244.1.2"]);
    drop(a);
    go_back();
    // It is removed.
    let mut left = Hosts::clone(&scene.hosts);
    left.retain(|host, _| host.to_string() != "h1");
    b.change(|inputs| inputs.hosts = Arc::new(left));
    soon("it is forgotten", || !is_behind() && b.of(&web).is_empty());
    b.needs(&[web, db.clone()]);
    soon("a group is read", || b.members().contains_key(&db));
    assert!(b.last().unread.is_empty(), "{:?}", b.last());
}
