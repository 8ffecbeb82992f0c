//! The reachability reports of hosts.

use std::time::Instant;

use etcd_client::{Txn, TxnOp};
use humanz::etcd::FoundReports;
use humanz::lease::publish;
use humanz::lease::records::{PathFault, PathState, ReachabilityReport};
use tokio::runtime::Builder;

use crate::access::{check_writes, enable, needed, password_file, start_as_agent, wanted};
use crate::host::{HUMANZ, Host, SOON};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

/// `other` does not answer, one other host does.
fn lost(other: &str) -> ReachabilityReport {
    let fine = PathState { micros: Some(250), fault: None };
    let lost = PathState { micros: None, fault: Some(PathFault::NoAnswer) };
    let paths = [("fine".parse().unwrap(), fine), (other.parse().unwrap(), lost)];
    ReachabilityReport::new(&paths.into(), 7).unwrap()
}

fn key(host: &str) -> String {
    format!("{HUMANZ}-probes/{host}")
}

fn publish(host: &Host, report: &ReachabilityReport) {
    host.reports.publish(Some(report), publish::spread(2));
}

/// The reports as the agent of `host` reads them.
fn read(host: &Host) -> Result<FoundReports, String> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let read = runtime.block_on(async {
        tokio::time::timeout(SOON, host.reports.read()).await.expect("an answer")
    });
    read.found.as_ref().map_err(String::clone).map(|found| FoundReports {
        reports: found.reports.clone(),
        why: found.why.clone(),
        ..*found
    })
}

/// Waits for the report in etcd.
fn until_published(etcd: &EtcdServer, host: &str, report: &ReachabilityReport) {
    eventually(&format!("the report of {host}"), SOON, || match etcd.get(&key(host)) {
        Some(found) if found == report.to_json() => Ok(()),
        found => Err(format!("{found:?}")),
    });
}

#[test]
fn a_report_is_read_by_others_wakes_no_host_and_is_deleted_with_its_host() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        one.until("both", |found| found.alive.len() == 2);
        two.until("both", |found| found.alive.len() == 2);
        publish(&one, &lost("h2"));
        until_published(&etcd, "h1", &lost("h2"));
        let pair = etcd.pairs(&key("h1")).remove(0);
        assert!(pair.lease() != 0, "it has a lease");
        let found = read(&two).unwrap();
        assert_eq!(
            found.reports.into_iter().collect::<Vec<_>>(),
            [("h1".parse().unwrap(), lost("h2"))]
        );
        publish(&one, &lost("h3"));
        until_published(&etcd, "h1", &lost("h3"));
        // Read reports are cached for some seconds.
        assert_eq!(read(&two).unwrap().reports["h1"], lost("h2"));
        one.reports.publish(None, publish::spread(2));
        eventually("no report", SOON, || etcd.get(&key("h1")).map_or(Ok(()), Err));
        publish(&one, &lost("h4"));
        until_published(&etcd, "h1", &lost("h4"));
        for host in [&one, &two] {
            let received = host.snapshot().revision;
            assert!(received < pair.mod_revision(), "a watch reported it: {received}");
        }
        one.stop();
        eventually("it is deleted", SOON, || etcd.get(&key("h1")).map_or(Ok(()), Err));
        eventually("it is read again", SOON, || match read(&two) {
            Ok(found) if found.reports.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        });
    });
}

#[test]
fn a_report_is_written_again_with_a_new_lease() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let one = Host::up(&etcd, "h1");
        one.until("life", |found| found.alive.contains_key("h1"));
        publish(&one, &lost("h2"));
        until_published(&etcd, "h1", &lost("h2"));
        let lease = etcd.pairs(&key("h1"))[0].lease();
        etcd.call(async |client| client.lease_revoke(lease).await.map(drop));
        eventually("the report with another lease", 2 * SOON, || {
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
fn hostile_reports_are_counted_and_affect_no_other() {
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
        assert_eq!(found.reports.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["h2"]);
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
fn the_reports_of_ten_thousand_hosts_are_read() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let one = Host::up(&etcd, "h1");
        for hundred in 0..100 {
            let report = lost(&format!("n{hundred}")).to_json();
            let put =
                |n| TxnOp::put(key(&format!("n{}", hundred * 100 + n)), report.as_str(), None);
            etcd.call(async |client| {
                client
                    .txn(Txn::new().and_then((0..100).map(put).collect::<Vec<_>>()))
                    .await
                    .map(drop)
            });
        }
        let begun = Instant::now();
        let found = read(&one).unwrap();
        println!("10,000 reports are read in {:?}", begun.elapsed());
        assert_eq!((found.reports.len(), found.bad, found.cut), (10_000, 0, false));
        assert_eq!(found.reports["n9999"], lost("n99"));
    });
}

/// Roles made for earlier versions lack its keys.
#[test]
fn without_permission_only_the_report_is_missing() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.until("life", |found| found.alive.contains_key("h1"));
        let mark = host.mark();
        publish(&host, &lost("h2"));
        let reason =
            eventually("the reason", SOON, || host.reports.unpublished().ok_or("none".to_owned()));
        for words in ["write /humanz/v1-probes/h1", "permission denied"] {
            assert!(reason.contains(words), "{reason}");
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
        publish(&host, &lost("h3"));
        until_published(&etcd, "h1", &lost("h3"));
        eventually("no reason", SOON, || host.reports.unpublished().map_or(Ok(()), Err));
        eventually("its own report", SOON, || match read(&host) {
            Ok(found) if found.reports["h1"] == lost("h3") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        check_writes(&host, 1300);
    });
}
