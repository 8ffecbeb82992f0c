//! etcd over https: with CAs only, with certificates on both sides, and with wrong ones.

use etcd_client::Permission;
use humanz::etcd::{EtcdStart, Update};
use humanz::net::FailureReason;

use crate::host::{HOSTS, Host, settings, start};
use crate::support::certificates::{CLIENT, Certificates, Wanted, openssl};
use crate::support::etcd::{EtcdServer, isolated};

/// etcd by https with the pair `server`; asking its clients for a certificate by the authorities in
/// `clients`, if there are any.
pub fn serve(certificates: &Certificates, server: &str, clients: Option<&str>) -> EtcdServer {
    let arguments = certificates.arguments(server, clients);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    EtcdServer::start_tls(&arguments, certificates.ours())
}

/// The same with a certificate that the test itself would not take.
fn serve_unseen(certificates: &Certificates, server: &str) -> EtcdServer {
    let arguments = certificates.arguments(server, None);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    EtcdServer::start_tls_unseen(&arguments, certificates.ours())
}

/// A host that shows the certificate `name`.
pub fn start_as(certificates: &Certificates, etcd: &EtcdServer, name: Option<&str>) -> EtcdStart {
    let mut start = start(etcd, "h1");
    start.etcd.ca = Some(certificates.path("ca.pem"));
    if let Some(name) = name {
        start.etcd.cert = Some(certificates.path(&format!("{name}.pem")));
        start.etcd.key = Some(certificates.path(&format!("{name}.key")));
    }
    start
}

/// Waits until `host` reports a disconnection with these words; gives its reason.
fn disconnected(host: &Host, words: &str) -> FailureReason {
    let mut reason = None;
    host.reported(0, words, |update| match update {
        Update::Disconnected { why } if why.to_string().contains(words) => {
            reason = Some(why.clone());
            true
        }
        _ => false,
    });
    reason.unwrap()
}

#[test]
fn authorities_alone_are_enough_and_a_host_name_is_checked_too() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = serve(&certificates, "server", None);
        for endpoint in [etcd.url(), "https://localhost:2379".to_owned()] {
            let mut start = start_as(&certificates, &etcd, None);
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
fn a_client_certificate_is_shown_and_one_that_comes_later_used_without_a_restart() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = serve(&certificates, "server", Some("ca.pem"));
        let host = Host::launch(start_as(&certificates, &etcd, Some("mine")));
        disconnected(&host, "mine.pem: cannot be read: No such file");
        certificates.copy("client", "mine");
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn the_name_in_a_certificate_is_a_user_of_etcd() {
    isolated(|| {
        let certificates = Certificates::new();
        certificates.sign(&Wanted { name: "nobody", ca: "ca", days: (-1, 30), says: CLIENT });
        let etcd = serve(&certificates, "server", Some("ca.pem"));
        etcd.call(async |client| {
            client.user_add("root", "secret", None).await?;
            client.role_add("root").await?;
            client.user_grant_role("root", "root").await?;
            client.user_add("client", "unused", None).await?;
            client.role_add("host").await?;
            let all = Permission::read_write("/humanz/").with_prefix();
            client.role_grant_permission("host", all).await?;
            client.user_grant_role("client", "host").await?;
            client.auth_enable().await.map(drop)
        });
        let host = Host::launch(start_as(&certificates, &etcd, Some("client")));
        assert_eq!(host.subnet(), "10.244.1.0/24");
        let stranger = Host::launch(start_as(&certificates, &etcd, Some("nobody")));
        disconnected(&stranger, "permission denied");
    });
}

/// Name, change to a correct host, words of the report.
type Case<'a> = (&'a str, &'a dyn Fn(&mut EtcdStart), &'a [&'a str]);

fn check(certificates: &Certificates, etcd: &EtcdServer, cases: &[Case<'_>]) {
    for (case, change, wanted) in cases {
        let mut start = start_as(certificates, etcd, Some("client"));
        change(&mut start);
        let reason = disconnected(&Host::launch(start), wanted[0]);
        let line = reason.to_string();
        println!("{case}: {reason:?}");
        // A member that nothing listens at has no fix that is its own.
        assert_eq!(reason.fix.is_none(), wanted == &["Connection refused"], "{case}: {reason:?}");
        for words in *wanted {
            assert!(line.contains(words), "{case}: no {words:?} in: {line}");
        }
    }
}

#[test]
fn errors_in_the_files_of_this_host_include_the_file_and_the_fix() {
    isolated(|| {
        let certificates = Certificates::new();
        let etcd = serve(&certificates, "server", Some("ca.pem"));
        let sign = |name, ca, days, says| certificates.sign(&Wanted { name, ca, days, says });
        sign("stranger", "other-ca", (-1, 30), CLIENT);
        sign("expired", "ca", (-3, -1), CLIENT);
        sign("early", "ca", (1, 3), CLIENT);
        sign("no-client", "ca", (-1, 30), "extendedKeyUsage=serverAuth\n");
        let (key, path) = (certificates.text("client.key"), |name: &str| certificates.path(name));
        let locked = certificates.text("locked.key");
        openssl(&["ec", "-aes128", "-passout", "pass:x", "-in", &key, "-out", &locked]);
        std::fs::write(path("garbage.pem"), "garbage").unwrap();
        let whole = std::fs::read_to_string(path("client.pem")).unwrap();
        std::fs::write(path("half.pem"), &whole[..whole.len() / 2]).unwrap();
        let shows = |start: &mut EtcdStart, name: &str| {
            start.etcd.cert = Some(path(&format!("{name}.pem")));
            start.etcd.key = Some(path(&format!("{name}.key")));
        };
        let cert = |start: &mut EtcdStart, name: &str| start.etcd.cert = Some(path(name));
        check(
            &certificates,
            &etcd,
            &[
                ("no authorities", &|start| start.etcd.ca = None, &["https needs ETCD_CACERT"]),
                (
                    "no such file",
                    &|start| start.etcd.ca = Some("/nonexistent.pem".into()),
                    &["ETCD_CACERT=/nonexistent.pem: cannot be read: No such file"],
                ),
                (
                    "no certificates in it",
                    &|start| start.etcd.ca = Some(path("garbage.pem")),
                    &["ETCD_CACERT", "garbage.pem: contains no PEM certificate"],
                ),
                (
                    "half a file",
                    &|start| cert(start, "half.pem"),
                    &["half.pem: not PEM, or truncated"],
                ),
                (
                    "not its key",
                    &|start| cert(start, "stranger.pem"),
                    &["ETCD_KEY", "client.key: not the key of", "stranger.pem # replace both"],
                ),
                (
                    "a key with a passphrase",
                    &|start| start.etcd.key = Some(path("locked.key")),
                    &["locked.key: contains no PEM private key", "passphrase"],
                ),
                (
                    "wrong authority",
                    &|start| start.etcd.ca = Some(path("other-ca.pem")),
                    &[
                        "the authority that signed its certificate is not in ETCD_CACERT",
                        "other-ca.pem",
                    ],
                ),
                (
                    "no certificate",
                    &|start| (start.etcd.cert, start.etcd.key) = (None, None),
                    &["it may require a client certificate", "set ETCD_CERT and ETCD_KEY"],
                ),
                (
                    "signed by somebody else",
                    &|start| shows(start, "stranger"),
                    &["perhaps it refuses", "stranger.pem", "--trusted-ca-file"],
                ),
                ("expired", &|start| shows(start, "expired"), &["expired.pem: expired at"]),
                ("not valid yet", &|start| shows(start, "early"), &["early.pem: not valid before"]),
                (
                    "not for clients",
                    &|start| shows(start, "no-client"),
                    &["no-client.pem", "clientAuth"],
                ),
            ],
        );
    });
}

#[test]
fn errors_of_a_member_include_the_fix() {
    isolated(|| {
        let certificates = Certificates::new();
        let expired = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
        let etcd = serve(&certificates, "server", None);
        check(
            &certificates,
            &etcd,
            &[
                (
                    "nobody listens there",
                    &|start| start.etcd.endpoints = vec!["https://127.0.0.2:2379".to_owned()],
                    &["Connection refused"],
                ),
                (
                    "it speaks TLS",
                    &|start| start.etcd = settings(&["http://127.0.0.1:2379".to_owned()]),
                    &["etcd http://127.0.0.1:2379", "https://"],
                ),
            ],
        );
        drop(etcd);
        for (name, days, says, wanted) in [
            (
                "expired",
                (-3, -1),
                expired,
                ["its certificate expired at", "renew it on the member"],
            ),
            (
                "elsewhere",
                (-1, 30),
                "subjectAltName=IP:192.0.2.1,DNS:etcd-1\nextendedKeyUsage=serverAuth,clientAuth\n",
                ["is not for 127.0.0.1 but for", "192.0.2.1"],
            ),
        ] {
            certificates.sign(&Wanted { name, ca: "ca", days, says });
            let etcd = serve_unseen(&certificates, name);
            check(&certificates, &etcd, &[(name, &|_| {}, &wanted)]);
        }
        let plain = EtcdServer::start();
        check(
            &certificates,
            &plain,
            &[(
                "it does not speak TLS",
                &|start| start.etcd.endpoints = vec!["https://127.0.0.1:2379".to_owned()],
                &["it does not speak TLS; write http://"],
            )],
        );
    });
}
