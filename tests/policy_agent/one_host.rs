//! Policies of a file on one host: denied packets are dropped, allowed ones and replies pass, and what a
//! policy takes away reaches connections that run.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::wait::patience;
use crate::support::{Place, Pod, local, soon};
use crate::traffic::{Flood, Server};
use crate::{add, alone, counters, only_from, serve, write_policies};

fn addresses(pod: &Pod) -> [IpAddr; 2] {
    [pod.v4(), pod.v6()]
}

#[test]
fn a_policy_of_the_file_drops_what_it_denies_and_reaches_running_connections() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web", "mon"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let (mon, other) = (add(host, "mon", "mon"), add(host, "other", "other"));
    let mut server = Server::open(&db);
    for at in 0..2 {
        let to = addresses(&db)[at];
        let [from_web, from_mon, from_other] = [&web, &mon, &other].map(|pod| addresses(pod)[at]);
        let (web, mon, other) =
            (Flood::start(&web, to), Flood::start(&mon, to), Flood::start(&other, to));
        server.wait(from_web);
        server.wait(from_mon);
        soon("replies", || {
            server.received(from_mon);
            web.answered() > 3 && mon.answered() > 3
        });
        other.go_on();
        assert_eq!(server.received(from_other), 0);
        let begun = Instant::now();
        write_policies(host, &[only_from("db", &["mon"])]);
        let revoked = server.wait_silence(from_web, begun);
        println!("{to}: the last packet came {revoked:?} after the change");
        server.wait(from_mon);
        assert_eq!(server.received(from_other), 0);
        write_policies(host, &[only_from("db", &["web", "mon"])]);
        server.wait(from_web);
        // A host is never cut off from its own pods.
        let own = Flood::start(host, to);
        soon("answers to the host", || {
            server.received(from_web);
            own.answered() > 3
        });
    }
    assert!(counters(host).contains("np/shop/db/in/deny"), "{}", counters(host));
    agent.stop();
}

#[test]
fn a_table_that_somebody_deletes_or_empties_is_back_at_once() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let mut server = Server::open(&db);
    let (allowed, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    for damage in [
        "nft delete table inet humanz-policy",
        "nft flush chain inet humanz-policy forward",
        "nft flush map inet humanz-policy in4",
        "nft add element inet humanz-policy epoch '{ 0x00010000 }'",
    ] {
        let begun = Instant::now();
        host.shell(damage).ok();
        let last = server.wait_silence(other.v4(), begun);
        println!("{damage}: the last packet came {last:?} after it");
        let before = server.received(other.v4());
        server.wait(web.v4());
        denied.go_on();
        assert_eq!(server.received(other.v4()), before);
        assert!(last < Duration::from_secs(5) * patience(), "{last:?}");
    }
    assert!(allowed.sent() > 0);
    agent.stop();
}

#[test]
fn a_file_with_faults_changes_nothing_and_is_a_problem() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let mut server = Server::open(&db);
    let (_web, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    let is_problem = || local::has_problem(&local::status(host), "policy");
    for bad in ["{\"apiVersion\":", "[{\"apiVersion\": \"v1\", \"kind\": \"Secret\"}]"] {
        host.write(crate::FILE, bad);
        soon("the problem", is_problem);
        denied.go_on();
        server.wait(web.v4());
        assert_eq!(server.received(other.v4()), 0);
    }
    write_policies(host, &[only_from("db", &["other"])]);
    server.wait(other.v4());
    soon("the end of the problem", || !is_problem());
    agent.stop();
}

#[test]
fn a_group_is_asked_for_by_label_or_annotation() {
    let alone = alone();
    let host = &alone.host;
    let own = |kind: &str, name: &str, spec: serde_json::Value| {
        let metadata = json!({"tenant": "default", "name": name});
        json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    write_policies(
        host,
        &[own("Group", "db", json!({"default": "deny"})), own("Group", "web", json!({}))],
    );
    let agent = serve(host, &[]);
    let db = add(host, "db", "x;humanz.io/group=db");
    let web = add(host, "web", "web;humanz.io/group=web");
    let mut server = Server::open(&db);
    let flood = Flood::start(&web, db.v4());
    flood.go_on();
    assert_eq!(server.received(web.v4()), 0);
    write_policies(host, &[own("Group", "db", json!({})), own("Group", "web", json!({}))]);
    server.wait(web.v4());
    agent.stop();
}
