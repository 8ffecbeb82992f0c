//! Invalid and hostile values.

use crate::host::{HOSTS, HUMANZ, Host, SOON, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::eventually;

#[test]
fn hostile_values_are_reported_and_ignored_and_all_others_served() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let (one, two) = (Host::up(&etcd, "h1"), Host::up(&etcd, "h2"));
        let mut million = b"{\"schema\":1,\"x\":\"".to_vec();
        million.resize(1 << 20, b'x');
        let deep = "[".repeat(10_000);
        for (key, value) in [
            ("hosts/shell", "10.244.9.0/24; touch /tmp/owned".as_bytes()),
            ("hosts/subst", b"$(reboot)"),
            ("hosts/hostbits", b"10.244.9.7/24"),
            ("hosts/nocidr", b"10.244.9.0"),
            ("hosts/binary", b"\xff\x00\xfe"),
            ("hosts/empty", b""),
            ("hosts/million", &million),
            ("hosts/outside", b"192.168.0.0/24"),
            ("hosts/everything", b"0.0.0.0/0"),
            ("hosts/mine", b"10.244.1.0/24"),
            ("hosts/pool", b"10.244.0.0/16"),
            ("hosts/nested/name", b"10.244.9.0/24"),
            ("hosts/$(id)", b"10.244.9.0/24"),
            ("v1/nodes/h9", &million),
            ("v1/nodes/list", b"[]"),
            ("v1/nodes/deep", deep.as_bytes()),
            ("v1/nodes/types", br#"{"schema":"one","subnets":7}"#),
            ("v1/nodes/future", br#"{"schema":9}"#),
            ("v1/subnets/4/garbage", b"h1"),
            ("v1/subnets/4/10.244.50.0-24", b"; rm -rf /"),
            ("v1/subnets/9/10.244.50.0-24", b"h1"),
            ("v1/alive/h9", b"yes"),
        ] {
            etcd.put(&format!("/humanz/{key}"), value);
        }
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        for host in [&one, &two] {
            host.until_peers("h3", |peers| peers.by_name.contains_key("h3"));
            let snapshot = host.snapshot();
            assert_eq!(snapshot.faults.len(), 18, "{:#?}", snapshot.faults);
            let peers = host.peers();
            let names: Vec<_> = peers.by_name.keys().map(|name| name.as_str()).collect();
            let other = if host.subnet() == "10.244.1.0/24" { "h2" } else { "h1" };
            assert_eq!(names, [other, "h3"]);
            assert_eq!(peers.faults.len(), 4, "{:#?}", peers.faults);
            for fault in snapshot.faults.values() {
                assert!(fault.to_string().len() < 400, "{fault}");
            }
        }
        let three = Host::launch(start(&etcd, "h4"));
        assert!(!["10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"].contains(&&*three.subnet()));
        assert_eq!(one.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn large_values_that_do_not_fit_into_one_answer_are_still_read() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let million = vec![b'x'; 1 << 20];
        for n in 0..40 {
            etcd.put(&format!("{HUMANZ}/nodes/big{n}"), million.clone());
        }
        let host = Host::launch(start(&etcd, "h1"));
        host.until("the faults", |found| found.faults.len() == 40);
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn invalid_network_settings_are_reported_and_never_overwritten() {
    isolated(|| {
        let etcd = EtcdServer::start();
        let key = format!("{HUMANZ}/config");
        etcd.put(&key, "{}");
        let error = Host::launch(start(&etcd, "h1")).fatal().to_string();
        assert!(error.contains(&key), "{error}");
        assert_eq!(etcd.get(&key).unwrap(), "{}");
        etcd.delete(&key);
        let host = Host::up(&etcd, "h1");
        let good = etcd.get(&key).unwrap();
        let moved = good.replace("10.244.0.0/16", "10.128.0.0/16");
        for (number, bad) in ["garbage", "{}", &moved].into_iter().enumerate() {
            etcd.put(&key, bad);
            host.until("the fault", |found| found.faults.contains_key(&*key));
            // Everything else goes on: other hosts join, and own keys are repaired.
            let other = format!("h{}", number + 3);
            etcd.put(&format!("{HOSTS}/{other}"), format!("10.244.{}.0/24", number + 3));
            host.until_peers(&other, |peers| peers.by_name.contains_key(&*other));
            let at = etcd.version(&format!("{HOSTS}/h1"));
            etcd.put(&format!("{HOSTS}/h1"), "10.244.99.0/24");
            eventually("its key is put back", SOON, || {
                let version = etcd.version(&format!("{HOSTS}/h1"));
                if version > at + 1 { Ok(()) } else { Err(version.to_string()) }
            });
            assert_eq!(etcd.get(&key).unwrap(), bad);
        }
        // A host that starts keeps what it served, and reports the same.
        let mut again = start(&etcd, "h1");
        again.saved = Some(host.stop());
        etcd.put(&format!("{HOSTS}/h1"), "10.244.99.0/24");
        let host = Host::launch(again);
        assert_eq!(host.subnet(), "10.244.1.0/24");
        host.until("the fault", |found| found.faults.contains_key(&*key));
        assert_eq!(host.peers().by_name.len(), 3);
        etcd.put(&key, good);
        host.until("no fault", |found| found.faults.is_empty());
    });
}
