//! A host's policies need other groups than before: what is further needed is read and watched beside the rest.

use std::sync::Arc;
use std::time::Duration;

use super::scene::{Peer, Scene, group};
use crate::support::node::Place;
use crate::support::wait::SOON;
use crate::support::{eventually, soon};

/// How many streams of watches etcd was asked for so far, and how many ranges are watched now.
fn watches(scene: &Scene) -> (u64, u64) {
    let said = scene.cluster.etcd.node.run("curl -sS http://127.0.0.1:2379/metrics").stdout;
    let number = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(name)).expect("etcd counts them");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let streams = r#"grpc_server_started_total{grpc_method="Watch","#;
    (number(streams), number("etcd_debugging_mvcc_watcher_total"))
}

fn wait_watches(scene: &Scene, wanted: (u64, u64)) {
    eventually("watches of etcd", SOON, || match watches(scene) {
        found if found == wanted => Ok(()),
        found => Err(format!("{found:?}, not {wanted:?}")),
    });
}

#[test]
fn other_groups_are_read_and_watched_by_the_watch_that_there_is() {
    let scene = Scene::new(2);
    let (a, b) = (scene.peer(1), scene.peer(2));
    let [web, db] = ["web", "db"].map(group);
    a.has(&db, &["10.244.1.3"]);
    for (says, hears, addresses) in
        [(&a, &b, ["10.244.1.1", "10.244.1.2"]), (&b, &a, ["10.244.2.1", "10.244.2.2"])]
    {
        // What is read first is known before it is watched, and the second address by the watch alone.
        hears.needs(std::slice::from_ref(&web));
        for address in addresses {
            says.has(&web, &[address]);
            hears.becomes(&web, &[address]);
        }
    }
    let (streams, ranges) = watches(&scene);
    b.needs(&[web.clone(), db.clone()]);
    b.becomes(&db, &["10.244.1.3"]);
    wait_watches(&scene, (streams, ranges + 1));
    a.has(&db, &["10.244.1.4"]);
    b.becomes(&db, &["10.244.1.4"]);
    b.needs(std::slice::from_ref(&db));
    soon("the other one is left", || !b.members().contains_key(&web));
    wait_watches(&scene, (streams, ranges));
    a.has(&web, &["10.244.1.5"]);
    a.has(&db, &["10.244.1.6"]);
    b.becomes(&db, &["10.244.1.6"]);
    b.needs(std::slice::from_ref(&web));
    b.becomes(&web, &["10.244.1.5"]);
    a.has(&web, &["10.244.1.7"]);
    b.becomes(&web, &["10.244.1.7"]);
    wait_watches(&scene, (streams, ranges));
    assert!(b.last().problems.is_empty() && b.last().unread.is_empty(), "{:?}", b.last());
}

/// What is known at the end of many changes at once is what etcd has.
#[test]
fn groups_that_come_and_go_while_their_members_change_are_known_as_they_are() {
    let scene = Scene::new(3);
    let [a, b, c] = [1, 2, 3].map(|number| scene.peer(number));
    let groups = ["g0", "g1", "g2", "g3", "g4", "g5"].map(group);
    let own = |host: &Peer, round: usize, index: usize| {
        let addresses = [format!("10.244.{}.{}", &host.name[1..], 2 + (7 * round + index) % 200)];
        // Some hosts have no member of some groups, some of the time.
        let addresses = &addresses[..usize::from(!(round + index).is_multiple_of(4))];
        host.has(&groups[index], &addresses.iter().map(String::as_str).collect::<Vec<_>>());
        addresses.to_vec()
    };
    for round in 0..60 {
        let index = round * 5 % groups.len();
        own(&a, round, index);
        own(&c, round + 1, index);
        let needed = (0..groups.len()).filter(|index| (round * 11 + index * 7) % 5 < 2);
        b.needs(&needed.map(|index| groups[index].clone()).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(round as u64 * 13 % 40));
    }
    let wanted = (0..groups.len()).map(|index| {
        let own = [own(&a, index, index), own(&c, index + 1, index)];
        own.concat()
    });
    let wanted: Vec<_> = wanted.collect();
    b.needs(&groups);
    for (group, wanted) in groups.iter().zip(wanted) {
        b.becomes(group, &wanted.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert!(b.last().problems.is_empty() && b.last().unread.is_empty(), "{:?}", b.last());
}

/// A host is removed and comes back, as one whose agent could not reach etcd for long.
#[test]
fn what_a_host_said_while_it_was_no_host_is_read_once_it_is_one_again() {
    let scene = Scene::new(3);
    let (a, b, web) = scene.with_member();
    let c = scene.peer(3);
    let mut others = (*scene.hosts).clone();
    others.remove(a.name.as_str());
    b.change(|inputs| inputs.hosts = Arc::new(others));
    b.becomes(&web, &[]);
    a.has(&web, &["10.244.1.3"]);
    let key = Scene::key(&a.name, &web);
    let is_published = |value: String| value.contains("10.244.1.3");
    soon("published", || scene.cluster.etcd.get(&key).is_some_and(is_published));
    // Announced later, and received: so was that of the other host.
    c.has(&web, &["10.244.3.2"]);
    b.becomes(&web, &["10.244.3.2"]);
    b.change(|inputs| inputs.hosts = Arc::clone(&scene.hosts));
    b.becomes(&web, &["10.244.1.3", "10.244.3.2"]);
}
