//! etcd by https: with authorities only, and with certificates on both sides.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use humanz::lease::registry::{Start, Update};

use crate::host::{HOSTS, Host, settings, start};
use crate::support::etcd::{EtcdServer, isolated};

pub fn openssl(arguments: &[&str]) {
    let done = Command::new("openssl").args(arguments).output().expect("run openssl");
    assert!(
        done.status.success(),
        "openssl {arguments:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// An authority, and certificates of the server and of a client that it signed.
struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Certificates {
        let certificates = Certificates { folder: tempfile::tempdir().unwrap() };
        for authority in ["ca", "other-ca"] {
            let (key, certificate) = certificates.pair(authority);
            openssl(&[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "1",
                "-subj",
                &format!("/CN={authority}"),
                "-keyout",
                &key,
                "-out",
                &certificate,
            ]);
        }
        certificates.sign(
            "server",
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n",
        );
        certificates.sign("client", "extendedKeyUsage=clientAuth\n");
        certificates
    }

    fn sign(&self, name: &str, extensions: &str) {
        let (key, certificate) = self.pair(name);
        let (ca_key, ca) = self.pair("ca");
        let (request, file) = (self.text("request"), self.text("extensions"));
        fs::write(&file, extensions).unwrap();
        let subject = format!("/CN={name}");
        openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            &subject,
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-days",
            "1",
            "-extfile",
            &file,
            "-out",
            &certificate,
        ]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn pair(&self, name: &str) -> (String, String) {
        (self.text(&format!("{name}.key")), self.text(&format!("{name}.pem")))
    }

    /// How the test itself connects: as the client.
    fn ours(&self) -> ConnectOptions {
        let read = |path: &str| fs::read(path).unwrap();
        let (key, certificate) = self.pair("client");
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read(&self.pair("ca").1)))
            .identity(Identity::from_pem(read(&certificate), read(&key)));
        ConnectOptions::new().with_tls(tls)
    }

    fn serve(&self, clients_too: bool) -> EtcdServer {
        let (key, certificate) = self.pair("server");
        let ca = self.pair("ca").1;
        let mut arguments = vec!["--cert-file", &certificate, "--key-file", &key];
        if clients_too {
            arguments.extend(["--client-cert-auth", "--trusted-ca-file", &ca]);
        }
        EtcdServer::start_tls(&arguments, self.ours())
    }

    fn start(&self, etcd: &EtcdServer) -> Start {
        let mut start = start(etcd, "h1");
        start.etcd.ca = Some(self.path("ca.pem"));
        start
    }
}

fn told_why(host: &Host, words: &str) {
    host.told(0, words, |update| match update {
        Update::Disconnected { why } => why.contains(words),
        _ => false,
    });
}

#[test]
fn authorities_alone_are_enough_and_a_host_name_is_checked_too() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = certificates.serve(false);
        for endpoint in [etcd.url(), "https://localhost:2379".to_owned()] {
            let mut start = certificates.start(&etcd);
            start.etcd.endpoints = vec![endpoint];
            let host = Host::launch(start);
            assert_eq!(host.subnet(), "10.244.1.0/24");
            etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
            host.until_peers("h3", |peers| peers.by_name.contains_key("h3"));
            host.stop();
        }
    });
}

#[test]
fn a_client_certificate_is_shown_and_a_renewed_one_used_without_a_restart() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = certificates.serve(true);
        let mut start = certificates.start(&etcd);
        start.etcd.cert = Some(certificates.path("mine.pem"));
        start.etcd.key = Some(certificates.path("mine.key"));
        let host = Host::launch(start);
        told_why(&host, "mine.pem: No such file");
        let copy = |from: &str, to: &str| {
            fs::copy(certificates.path(from), certificates.path(to)).unwrap()
        };
        copy("client.key", "mine.key");
        copy("client.pem", "mine.pem");
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn what_is_wrong_with_certificates_is_told() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = certificates.serve(true);
        let check = |change: &dyn Fn(&mut Start), words: &str| {
            let mut start = certificates.start(&etcd);
            change(&mut start);
            told_why(&Host::launch(start), words);
        };
        let other: &Path = &certificates.path("other-ca.pem");
        check(&|start| start.etcd.ca = Some(other.to_owned()), "is not in ETCD_CACERT");
        check(&|start| start.etcd.ca = None, "ETCD_CACERT");
        check(&|start| start.etcd.ca = Some("/nonexistent.pem".into()), "read /nonexistent.pem");
        check(&|_| {}, "ETCD_CERT and ETCD_KEY");
        check(
            &|start| start.etcd = settings(&["http://127.0.0.1:2379".to_owned()]),
            "etcd http://127.0.0.1:2379",
        );
        check(
            &|start| start.etcd.endpoints = vec!["https://127.0.0.2:2379".to_owned()],
            "etcd https://127.0.0.2:2379",
        );
    });
}
