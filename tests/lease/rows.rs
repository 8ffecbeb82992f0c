//! What hosts tell each other of whom they reach.

use std::time::Instant;

use etcd_client::{Txn, TxnOp};
use humanz::etcd::rows::Found;
use humanz::lease::publish;
use humanz::lease::records::{Row, Sight, WayFault};
use tokio::runtime::Builder;

use crate::access::{check_writes, enable, needed, password_file, start_as_agent, wanted};
use crate::host::{HUMANZ, Host, SOON};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

/// That `other` does not answer, and one answers.
fn lost(other: &str) -> Row {
    let fine = ("fine".parse().unwrap(), (Some(250), None));
    let lost = (other.parse().unwrap(), (None, Some(WayFault::Silent)));
    Row::of(&Sight { hosts: [fine, lost].into() }, 7).unwrap()
}

fn key(host: &str) -> String {
    format!("{HUMANZ}-probes/{host}")
}

fn tell(host: &Host, row: &Row) {
    host.rows.tell(Some(row), publish::gap(2));
}

/// What the agent of `host` reads now.
fn read(host: &Host) -> Result<Found, String> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let read = runtime
        .block_on(async { tokio::time::timeout(SOON, host.rows.read()).await.expect("an answer") });
    read.found.as_ref().map_err(String::clone).map(|found| Found {
        rows: found.rows.clone(),
        why: found.why.clone(),
        ..*found
    })
}

/// Waits until the row stands there.
fn until_told(etcd: &EtcdServer, host: &str, row: &Row) {
    eventually(&format!("the row of {host}"), SOON, || match etcd.get(&key(host)) {
        Some(found) if found == row.to_json() => Ok(()),
        found => Err(format!("{found:?}")),
    });
}

#[test]
fn a_row_is_read_by_others_wakes_nobody_and_goes_with_its_host() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        one.until("both", |found| found.alive.len() == 2);
        two.until("both", |found| found.alive.len() == 2);
        tell(&one, &lost("h2"));
        until_told(&etcd, "h1", &lost("h2"));
        let pair = etcd.pairs(&key("h1")).remove(0);
        assert!(pair.lease() != 0, "it goes with a lease");
        let found = read(&two).unwrap();
        assert_eq!(
            found.rows.into_iter().collect::<Vec<_>>(),
            [("h1".parse().unwrap(), lost("h2"))]
        );
        tell(&one, &lost("h3"));
        until_told(&etcd, "h1", &lost("h3"));
        // What is read serves for some seconds.
        assert_eq!(read(&two).unwrap().rows["h1"], lost("h2"));
        one.rows.tell(None, publish::gap(2));
        eventually("no row", SOON, || etcd.get(&key("h1")).map_or(Ok(()), Err));
        tell(&one, &lost("h4"));
        until_told(&etcd, "h1", &lost("h4"));
        for host in [&one, &two] {
            let heard = host.snapshot().revision;
            assert!(heard < pair.mod_revision(), "who follows the hosts heard of it: {heard}");
        }
        one.stop();
        eventually("it goes", SOON, || etcd.get(&key("h1")).map_or(Ok(()), Err));
        eventually("it is read again", SOON, || match read(&two) {
            Ok(found) if found.rows.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        });
    });
}

#[test]
fn a_row_is_put_again_with_a_new_lease() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let one = Host::up(&etcd, "h1");
        one.until("life", |found| found.alive.contains_key("h1"));
        tell(&one, &lost("h2"));
        until_told(&etcd, "h1", &lost("h2"));
        let lease = etcd.pairs(&key("h1"))[0].lease();
        etcd.call(async |client| client.lease_revoke(lease).await.map(drop));
        eventually("the row with another lease", 2 * SOON, || {
            let found = etcd.pairs(&key("h1")).first().map(|pair| pair.lease());
            if found.is_some_and(|found| found != lease) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        });
    });
}

#[test]
fn hostile_rows_are_counted_and_cost_nobody_else_his() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let one = Host::up(&etcd, "h1");
        let million = vec![b'x'; 1 << 20];
        for (name, value) in [
            ("h2", lost("h1").to_json().as_bytes()),
            ("big", &million),
            ("deep", "[".repeat(8000).as_bytes()),
            ("later", br#"{"schema":2,"at":1}"#),
            ("binary", b"\xff\x00"),
            ("empty", b""),
            ("$(id)", lost("h1").to_json().as_bytes()),
            ("a/b", lost("h1").to_json().as_bytes()),
        ] {
            etcd.put(&key(name), value);
        }
        let found = read(&one).unwrap();
        assert_eq!(found.rows.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["h2"]);
        assert_eq!((found.bad, found.cut), (7, false));
        let why = found.why.unwrap();
        assert!(why.len() < 200 && !why.contains(char::is_control), "{why}");
        for n in 0..40 {
            etcd.put(&key(&format!("big{n}")), million.clone());
        }
        eventually("bounded", SOON, || match read(&one) {
            Ok(found) if found.cut && found.bad < 20 => Ok(()),
            other => Err(format!("{other:?}")),
        });
    });
}

#[test]
fn the_rows_of_ten_thousand_hosts_are_read() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let one = Host::up(&etcd, "h1");
        for hundred in 0..100 {
            let row = lost(&format!("n{hundred}")).to_json();
            let put = |n| TxnOp::put(key(&format!("n{}", hundred * 100 + n)), row.as_str(), None);
            etcd.call(async |client| {
                client
                    .txn(Txn::new().and_then((0..100).map(put).collect::<Vec<_>>()))
                    .await
                    .map(drop)
            });
        }
        let begun = Instant::now();
        let found = read(&one).unwrap();
        println!("10,000 rows are read in {:?}", begun.elapsed());
        assert_eq!((found.rows.len(), found.bad, found.cut), (10_000, 0, false));
        assert_eq!(found.rows["n9999"], lost("n99"));
    });
}

/// Roles of before this was there know nothing of its keys.
#[test]
fn without_permission_nothing_is_lost_but_the_row() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.until("life", |found| found.alive.contains_key("h1"));
        let mark = host.mark();
        tell(&host, &lost("h2"));
        let remark = eventually("the remark", SOON, || host.rows.untold().ok_or("none".to_owned()));
        for words in ["write /humanz/v1-probes/h1", "permission denied"] {
            assert!(remark.contains(words), "{remark}");
        }
        let why = read(&host).unwrap_err();
        assert!(why.contains("read /humanz/v1-probes/") && why.contains("denied"), "{why}");
        assert_eq!(host.mark(), mark, "it is no trouble of the connection");
        check_writes(&host, 1400);
        for permission in wanted("h1") {
            etcd.call(async |client| {
                client.role_grant_permission("host", permission).await.map(drop)
            });
        }
        tell(&host, &lost("h3"));
        until_told(&etcd, "h1", &lost("h3"));
        eventually("no remark", SOON, || host.rows.untold().map_or(Ok(()), Err));
        eventually("its own row", SOON, || match read(&host) {
            Ok(found) if found.rows["h1"] == lost("h3") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        check_writes(&host, 1300);
    });
}
