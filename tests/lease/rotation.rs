//! Certificates, authorities and passwords that are replaced while a host runs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use humanz::etcd::Update;

use crate::host::{HOSTS, HUMANZ, Host, SOON};
use crate::support::certificates::{CLIENT, Certificates, SERVER, Wanted, replace};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;
use crate::tls::{serve, start_as};

/// The local ports of this process' connections with the etcd of this thread's network. Those of the
/// test itself last for one call.
fn connections() -> BTreeSet<u16> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let files = fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let ours: BTreeSet<_> = files.filter_map(|file| fs::read_link(file.path()).ok()).collect();
    let of_client = |line: &str| {
        let parts: Vec<_> = line.split_whitespace().collect();
        let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
        let [_, local, remote, state, _, _, _, _, _, inode, ..] = parts[..] else { return None };
        let is_ours = ours.contains(Path::new(&format!("socket:[{inode}]")));
        (is_ours && state == "01" && port(remote) == Some(2379)).then(|| port(local)).flatten()
    };
    table.lines().filter_map(of_client).collect()
}

/// An existing host, and the state that must not change.
struct Before {
    host: Host,
    mark: usize,
    connections: BTreeSet<u16>,
    liveness_key: (i64, i64),
}

/// The create revision and the etcd lease of the liveness key: both change if it was ever deleted.
pub fn liveness_key(etcd: &EtcdServer) -> (i64, i64) {
    let key = format!("{HUMANZ}/alive/h1");
    etcd.call(async |client| {
        let answer = client.get(key.as_str(), None).await?;
        Ok(answer.kvs().first().map_or((0, 0), |kv| (kv.create_revision(), kv.lease())))
    })
}

impl Before {
    fn of(host: Host, etcd: &EtcdServer) -> Before {
        etcd.put(&format!("{HOSTS}/h2"), "10.244.2.0/24");
        host.until_peers("h2", |peers| peers.by_name.contains_key("h2"));
        let liveness_key = eventually("a liveness key", SOON, || {
            let shown = liveness_key(etcd);
            if shown.0 > 0 { Ok(shown) } else { Err("none yet".to_owned()) }
        });
        Before { mark: host.mark(), connections: connections(), liveness_key, host }
    }

    /// Waits until the connections of before are gone, and others there; nothing else may have
    /// happened.
    fn moved(&mut self, etcd: &EtcdServer) {
        let before = self.connections.clone();
        self.connections = eventually("other connections", SOON, || {
            let now = connections();
            let all_new = !now.is_empty() && now.is_disjoint(&before);
            if all_new { Ok(now) } else { Err(format!("{now:?}, before {before:?}")) }
        });
        self.undisturbed(etcd);
    }

    /// The state after a restart of etcd, once the host has its connection again.
    fn restarted(self, etcd: &mut EtcdServer) -> Before {
        etcd.restart();
        let connected = |update: &Update| matches!(update, Update::Connected { .. });
        self.host.reported(self.mark, "the return", connected);
        Before::of(self.host, etcd)
    }

    fn undisturbed(&self, etcd: &EtcdServer) {
        for update in self.host.since(self.mark) {
            assert!(
                matches!(update, Update::Snapshot(_) | Update::Files { .. }),
                "the rotation was noticed: {update:?}"
            );
        }
        assert_eq!(self.host.ever_missing(self.mark, &["h1", "h2"]), [].into());
        assert_eq!(liveness_key(etcd), self.liveness_key, "the liveness key was recreated");
        let name = format!("after{}", self.host.mark());
        etcd.put(&format!("{HOSTS}/{name}"), "10.244.77.0/24");
        self.host.until("what came afterwards", |found| found.hosts.contains_key(name.as_str()));
        etcd.delete(&format!("{HOSTS}/{name}"));
    }

    /// Waits until exactly these words are reported about the files; none: no problem.
    fn files(&self, words: &[&str]) {
        let what = format!("{words:?} about the files");
        self.host.wait(&what, |updates| {
            let last = updates.iter().rev().find_map(|(_, update)| match update {
                Update::Files { problems, .. } => Some(problems.clone()),
                _ => None,
            });
            let wrong = last.unwrap_or_default();
            let text = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            let all = words.iter().all(|words| text.contains(words));
            (all && wrong.is_empty() == words.is_empty()).then_some(())
        });
    }
}

#[test]
fn a_renewed_certificate_is_used_without_interruption_however_it_is_installed() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = serve(&certificates, "server", Some("ca.pem"));
        let sign =
            |name| certificates.sign(&Wanted { name, ca: "ca", days: (-1, 30), says: CLIENT });
        ["second", "third"].into_iter().for_each(sign);
        // As Kubernetes mounts a secret: the files are links into `..data`, a link itself.
        for (version, name) in [("..1", "client"), ("..2", "second")] {
            fs::create_dir(certificates.path(version)).unwrap();
            for kind in ["key", "pem"] {
                let from = certificates.path(&format!("{name}.{kind}"));
                fs::copy(from, certificates.path(version).join(format!("mine.{kind}"))).unwrap();
            }
        }
        symlink("..1", certificates.path("..data")).unwrap();
        for kind in ["key", "pem"] {
            let file = format!("mine.{kind}");
            symlink(Path::new("..data").join(&file), certificates.path(&file)).unwrap();
        }
        let host = Host::launch(start_as(&certificates, &etcd, Some("mine")));
        let mut before = Before::of(host, &etcd);
        symlink("..2", certificates.path("..new")).unwrap();
        fs::rename(certificates.path("..new"), certificates.path("..data")).unwrap();
        before.moved(&etcd);
        // By renames, one after the other.
        certificates.copy("third", "mine");
        before.moved(&etcd);
        // By writes into the file.
        for kind in ["key", "pem"] {
            let from = certificates.path(&format!("client.{kind}"));
            fs::copy(from, certificates.path(&format!("mine.{kind}"))).unwrap();
        }
        before.moved(&etcd);
        before.files(&[]);
    });
}

#[test]
fn unusable_files_are_reported_and_the_previous_ones_stay_in_use() {
    isolated(|| {
        let certificates = Certificates::new();
        let mut etcd = serve(&certificates, "server", Some("ca.pem"));
        for (name, ca) in [("second", "ca"), ("stranger", "other-ca")] {
            certificates.sign(&Wanted { name, ca, days: (-1, 30), says: CLIENT });
        }
        certificates.copy("client", "mine");
        let host = Host::launch(start_as(&certificates, &etcd, Some("mine")));
        let mut before = Before::of(host, &etcd);
        let key = fs::read(certificates.path("second.key")).unwrap();
        replace(&certificates.path("mine.key"), &key);
        before.files(&[
            "mine.key: not the key of the certificate in",
            "the previous content stays in use",
        ]);
        before.undisturbed(&etcd);
        fs::write(certificates.path("mine.pem"), "-----BEGIN CERT").unwrap();
        before.files(&["mine.pem: ", "stays in use"]);
        certificates.copy("stranger", "mine");
        before.files(&["refuses the certificate in ETCD_CERT", "mine.pem", "stays in use"]);
        before.undisturbed(&etcd);
        assert_eq!(connections(), before.connections, "it connected anew for nothing");
        // A connection that breaks meanwhile is reopened with the previous files.
        before = before.restarted(&mut etcd);
        before.files(&["refuses the certificate in ETCD_CERT", "mine.pem", "stays in use"]);
        certificates.copy("second", "mine");
        before.moved(&etcd);
        before.files(&[]);
    });
}

#[test]
fn the_authorities_of_a_running_cluster_are_replaced() {
    isolated(|| {
        let certificates = Certificates::new();
        let mut etcd = serve(&certificates, "server", Some("ca.pem"));
        for (name, says) in [("new-server", SERVER), ("new-client", CLIENT)] {
            certificates.sign(&Wanted { name, ca: "other-ca", days: (-1, 30), says });
        }
        let authority = |name: &str| fs::read_to_string(certificates.path(name)).unwrap();
        let (old, new) = (authority("ca.pem"), authority("other-ca.pem"));
        fs::write(certificates.path("both.pem"), format!("{old}{new}")).unwrap();
        certificates.copy("client", "mine");
        replace(&certificates.path("trusted.pem"), old.as_bytes());
        let mut start = start_as(&certificates, &etcd, Some("mine"));
        start.etcd.ca = Some(certificates.path("trusted.pem"));
        let mut before = Before::of(Host::launch(start), &etcd);
        // In the reverse order nothing works, and nothing is lost.
        replace(&certificates.path("trusted.pem"), new.as_bytes());
        before.files(&["is not in ETCD_CACERT", "trusted.pem", "stays in use"]);
        before.undisturbed(&etcd);
        // Hosts trust both; members trust both and have new certificates; hosts get new ones.
        replace(&certificates.path("trusted.pem"), format!("{old}{new}").as_bytes());
        before.moved(&etcd);
        before.files(&[]);
        let arguments = certificates.arguments("server", Some("both.pem"));
        etcd.change_arguments(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        before = before.restarted(&mut etcd);
        certificates.copy("new-client", "mine");
        before.moved(&etcd);
        before.files(&[]);
    });
}

#[test]
fn a_certificate_that_expires_soon_is_reported_until_it_is_renewed() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = serve(&certificates, "server", Some("ca.pem"));
        certificates.sign(&Wanted { name: "old", ca: "ca", days: (-300, 13), says: CLIENT });
        certificates.copy("old", "mine");
        let mut before =
            Before::of(Host::launch(start_as(&certificates, &etcd, Some("mine"))), &etcd);
        before.files(&["mine.pem: expires at 20", "replace it with a renewed one"]);
        certificates.copy("client", "mine");
        before.moved(&etcd);
        before.files(&[]);
    });
}
