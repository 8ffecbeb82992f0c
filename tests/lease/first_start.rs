//! The first host of an empty etcd: how long it waits for hosts that had keys there.

use std::thread::sleep;
use std::time::{Duration, Instant};

use humanz::etcd::EtcdStart;
use humanz::lease::session::grace::GRACE;

use crate::host::{HOSTS, Host, settings, start};
use crate::support::certificates::Certificates;
use crate::support::etcd::{EtcdServer, isolated};
use crate::tls::{serve, start_as};

/// Age from which an etcd that was never written to keeps nobody waiting.
const OLD: Duration = Duration::from_secs(7);

/// How long a new host takes until it has a subnet.
fn founding(start: EtcdStart) -> Duration {
    let begin = Instant::now();
    let host = Host::launch(start);
    host.subnet();
    begin.elapsed()
}

fn whole_wait(took: Duration) -> bool {
    took > GRACE - Duration::from_millis(100)
}

#[test]
fn the_first_host_of_an_etcd_that_has_been_running_does_not_wait_for_other_hosts() {
    isolated(|| {
        let certificates = Certificates::new();
        let by_tls = serve(&certificates, "server", Some("ca.pem"));
        let plain = EtcdServer::start_other();
        sleep(OLD);
        for start in [start(&plain, "h1"), start_as(&certificates, &by_tls, Some("client"))] {
            let took = founding(start);
            println!("{took:?}");
            assert!(took < GRACE / 2, "{took:?}");
        }
    });
}

#[test]
fn data_that_were_deleted_are_waited_for_however_long_etcd_has_been_running() {
    isolated(|| {
        let etcd = EtcdServer::start();
        sleep(OLD);
        let key = format!("{HOSTS}/lost");
        etcd.put(&key, "10.244.9.0/24");
        etcd.delete(&key);
        let took = founding(start(&etcd, "h1"));
        assert!(whole_wait(took), "{took:?}");
    });
}

/// They may have been apart all the time, without a leader: no host could put anything back.
#[test]
fn several_members_prove_nothing_however_long_they_have_been_running() {
    isolated(|| {
        let members = EtcdServer::start_three();
        sleep(OLD);
        let mut start = start(&members[0], "h1");
        start.etcd = settings(&members.iter().map(EtcdServer::url).collect::<Vec<_>>());
        let took = founding(start);
        assert!(whole_wait(took), "{took:?}");
    });
}

#[test]
fn a_new_host_waits_anew_when_etcd_was_away_in_its_wait() {
    for freeze in [false, true] {
        isolated(|| {
            let mut etcd = EtcdServer::start();
            let host = Host::launch(start(&etcd, "h1"));
            sleep(Duration::from_millis(1_200));
            // Away until the wait would nearly be over: survivors could not put anything back meanwhile.
            if freeze {
                etcd.freeze();
                sleep(Duration::from_millis(700));
                etcd.thaw();
            } else {
                etcd.kill();
                etcd.restart();
            }
            let back = Instant::now();
            host.subnet();
            let waited = back.elapsed();
            assert!(waited > GRACE - Duration::from_millis(100), "freeze {freeze}: {waited:?}");
        });
    }
}
