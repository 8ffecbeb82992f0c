//! etcd that does not answer, and recovers.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use humanz::etcd::{EtcdSetup, Update};
use humanz::lease::records::HostPods;

use crate::host::{HOSTS, HUMANZ, Host, SOON, settings, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

fn disconnected(update: &Update) -> bool {
    matches!(update, Update::Disconnected { .. })
}

fn connected(update: &Update) -> bool {
    matches!(update, Update::Connected { .. })
}

#[test]
fn a_killed_etcd_is_reported_at_once_and_later_changes_are_read_afterwards() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        one.until_peers("h2", |peers| peers.by_name.contains_key("h2"));
        let mark = one.mark();
        let killed = Instant::now();
        etcd.kill();
        let elapsed = one.reported(mark, "the loss", disconnected).duration_since(killed);
        etcd.restart();
        let back = Instant::now();
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        let known = one.until_peers("h3", |peers| peers.by_name.contains_key("h3"));
        println!(
            "reported after {elapsed:?}, in sync {:?} after etcd was back",
            known.duration_since(back)
        );
        assert!(elapsed < Duration::from_secs(2));
        assert_eq!(one.ever_missing(mark, &["h1", "h2"]), [].into());
        assert_eq!((one.subnet(), two.subnet()), ("10.244.1.0/24".into(), "10.244.2.0/24".into()));
    });
}

#[test]
fn a_host_that_starts_before_etcd_waits_and_logs_the_reason() {
    isolated(|| {
        let mut etcd = EtcdServer::start();
        etcd.kill();
        let host = Host::launch(start(&etcd, "h1"));
        host.reported(0, "why", |update| match update {
            Update::Disconnected { why } => {
                why.what.contains("etcd http://127.0.0.1:2379")
                    && why.what.contains("Connection refused")
            }
            _ => false,
        });
        etcd.restart();
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn a_frozen_etcd_is_reported_and_peers_are_kept() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, _two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        one.until_peers("h2", |peers| peers.by_name.contains_key("h2"));
        let mark = one.mark();
        let frozen = Instant::now();
        etcd.freeze();
        let noticed = one.reported(mark, "the silence", disconnected).duration_since(frozen);
        println!("silence noticed after {noticed:?}");
        etcd.thaw();
        one.reported(mark, "the return", connected);
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        one.until_peers("h3", |peers| peers.by_name.contains_key("h3"));
        assert_eq!(one.ever_missing(mark, &["h1", "h2"]), [].into());
    });
}

#[test]
fn a_watch_that_begins_in_compacted_history_reads_again() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::launch(start(&etcd, "h1"));
        // While it comes up, history is compacted as fast as it is written: some of its watches begin
        // at a revision that is gone.
        etcd.call(async |client| {
            let until = Instant::now() + Duration::from_secs(3);
            let mut n = 0u32;
            while Instant::now() < until {
                n += 1;
                let put = client.put(
                    format!("{HOSTS}/c"),
                    format!("10.244.{}.0/24", 100 + n % 100),
                    None,
                );
                let revision = put.await?.header().map_or(0, |header| header.revision());
                client.compact(revision, None).await?;
            }
            Ok(())
        });
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        host.until_peers("h3", |peers| peers.by_name.contains_key("h3"));
    });
}

#[test]
fn compaction_while_a_host_is_cut_off_loses_nothing() {
    isolated(|| {
        let address = |verb: &str| {
            let arguments = ["address", verb, "192.0.2.250/32", "dev", "lo"];
            let done = std::process::Command::new("ip").args(arguments).status().unwrap();
            assert!(done.success(), "ip {arguments:?}");
        };
        address("add");
        let etcd = EtcdServer::start_with(&["--listen-client-urls", "http://0.0.0.0:2379"]);
        let mut cut_off = start(&etcd, "h1");
        cut_off.etcd = settings(&["http://192.0.2.250:2379".to_owned()]);
        let host = Host::launch(cut_off);
        host.snapshot();
        etcd.put(&format!("{HOSTS}/h2"), "10.244.2.0/24");
        host.until_peers("h2", |peers| peers.by_name.contains_key("h2"));
        let mark = host.mark();
        address("del");
        host.reported(mark, "the cut", disconnected);
        etcd.delete(&format!("{HOSTS}/h2"));
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        etcd.compact();
        address("add");
        host.until_peers("h3 without h2", |peers| {
            peers.by_name.contains_key("h3") && !peers.by_name.contains_key("h2")
        });
    });
}

#[test]
fn of_three_members_any_one_may_die_or_freeze() {
    isolated(|| {
        let mut members = EtcdServer::start_three();
        let endpoints: Vec<_> = members.iter().map(EtcdServer::url).collect();
        let mut start = start(&members[0], "h1");
        start.etcd = settings(&endpoints);
        start.etcd.timeout = Duration::from_secs(2);
        let host = Host::launch(start);
        host.snapshot();
        for victim in 0..3 {
            members[victim].kill();
            println!("member {victim} killed: {:?}", still_served(&members, victim, &host, "k"));
            members[victim].restart();
        }
        for victim in 0..3 {
            members[victim].freeze();
            println!("member {victim} frozen: {:?}", still_served(&members, victim, &host, "f"));
            members[victim].thaw();
        }
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

/// The session hung for ever, and the agent with it when it was stopped: the answer had the old etcd lease borrowed.
#[test]
fn an_etcd_lease_that_is_replaced_while_pods_are_answered_holds_up_no_session() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let host = Host::up(&etcd, "h1");
        let alive = || etcd.pairs(&format!("{HUMANZ}/alive/h1")).first().map_or(0, |it| it.lease());
        eventually("the alive key", SOON, || if alive() > 0 { Ok(()) } else { Err("none".into()) });
        let before = alive();
        let (asked, was_asked) = channel();
        host.reports.pods.answer_with(Arc::new(move || {
            asked.send(()).unwrap();
            Some(HostPods::new([]))
        }));
        etcd.freeze();
        host.reports.pods.ask(Duration::ZERO);
        was_asked.recv_timeout(SOON).unwrap();
        // With other settings it may be another etcd, and the lease is a new one.
        let mut setup = EtcdSetup { etcd: settings(&[etcd.url()]), network: host.network.clone() };
        setup.etcd.timeout *= 2;
        host.handle().session.set_up(setup);
        thread::sleep(Duration::from_millis(300));
        etcd.thaw();
        eventually("the alive key has the new lease", SOON, || match alive() {
            lease if lease == 0 || lease == before => Err(format!("{lease}")),
            _ => Ok(()),
        });
        let stopped = thread::spawn(|| host.stop());
        eventually("the session ends", SOON, || {
            if stopped.is_finished() { Ok(()) } else { Err("it runs".into()) }
        });
    });
}

/// Puts a key without member `victim` and waits until `host` knows; how long that took from now.
fn still_served(members: &[EtcdServer], victim: usize, host: &Host, prefix: &str) -> Duration {
    let begin = Instant::now();
    let name = format!("{prefix}{victim}");
    let key = format!("{HOSTS}/{name}");
    eventually("a put without the member", SOON, || {
        let put = members[(victim + 1) % 3].try_put(&key, "10.244.77.0/24");
        put.map_err(|error| error.to_string())
    });
    let known = host.until("the put", |found| found.hosts.contains_key(name.as_str()));
    known.saturating_duration_since(begin)
}
