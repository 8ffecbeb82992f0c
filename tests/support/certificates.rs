//! Certificates made for a test, with openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use tempfile::TempDir;

/// The extensions of a server certificate.
pub const SERVER: &str =
    "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n";

/// The extensions of a client certificate.
pub const CLIENT: &str = "extendedKeyUsage=clientAuth\n";

/// Runs openssl, which must succeed.
pub fn openssl(arguments: &[&str]) {
    let done = Command::new("openssl").args(arguments).output().expect("run openssl");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "openssl {arguments:?}: {said}");
}

/// A certificate to be made.
pub struct Wanted<'a> {
    /// The name of its files, and its common name.
    pub name: &'a str,
    /// The authority that signs it.
    pub ca: &'a str,
    /// From when until when it is valid, in days from now.
    pub days: (i64, i64),
    /// Its extensions.
    pub says: &'a str,
}

/// A directory with CAs and the certificates that they signed: `name.pem` and `name.key`.
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// The authorities `ca` and `other-ca`; `server` and `client` by the first.
    pub fn new() -> Certificates {
        let certificates = Certificates { folder: tempfile::tempdir().unwrap() };
        for authority in ["ca", "other-ca"] {
            let (key, certificate) = certificates.pair(authority);
            let subject = format!("/CN={authority}");
            certificates.request(&subject, &key, &["-x509", "-days", "1", "-out", &certificate]);
        }
        for (name, says) in [("server", SERVER), ("client", CLIENT)] {
            certificates.sign(&Wanted { name, ca: "ca", days: (-1, 30), says });
        }
        certificates
    }

    fn request(&self, subject: &str, key: &str, more: &[&str]) {
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        openssl(&[&["req", "-subj", subject, "-keyout", key], &curve[..], more].concat());
    }

    /// Makes a key and signs its certificate.
    pub fn sign(&self, wanted: &Wanted<'_>) {
        let (key, certificate) = self.pair(wanted.name);
        let (ca_key, ca) = self.pair(wanted.ca);
        let (request, extensions) = (self.text("request"), self.text("extensions"));
        let (settings, database) = (self.text("settings"), self.text("database"));
        fs::write(&extensions, wanted.says).unwrap();
        fs::write(&database, "").unwrap();
        let folder = self.text("");
        let text = format!(
            "[ca]\ndefault_ca=one\n[one]\nnew_certs_dir={folder}\ndatabase={database}\n\
             default_md=sha256\nrand_serial=yes\npolicy=any\n[any]\ncommonName=supplied\n"
        );
        fs::write(&settings, text).unwrap();
        self.request(&format!("/CN={}", wanted.name), &key, &["-out", &request]);
        let (from, until) = (day(wanted.days.0), day(wanted.days.1));
        let signer = ["-cert", ca.as_str(), "-keyfile", ca_key.as_str()];
        let files = ["-in", &request, "-extfile", &extensions, "-out", &certificate];
        let times = ["-startdate", &from, "-enddate", &until];
        let how = ["ca", "-batch", "-notext", "-config", &settings];
        openssl(&[&how[..], &signer, &files, &times].concat());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Paths of key and certificate.
    pub fn pair(&self, name: &str) -> (String, String) {
        (self.text(&format!("{name}.key")), self.text(&format!("{name}.pem")))
    }

    /// Copies key and certificate of `from` to `to`, each as a rename would put it there.
    pub fn copy(&self, from: &str, to: &str) {
        for kind in ["key", "pem"] {
            replace(
                &self.path(&format!("{to}.{kind}")),
                &fs::read(self.path(&format!("{from}.{kind}"))).unwrap(),
            );
        }
    }

    /// How the test itself connects: as the client.
    pub fn ours(&self) -> ConnectOptions {
        self.login("client")
    }

    /// How whoever has that pair connects.
    pub fn login(&self, name: &str) -> ConnectOptions {
        let read = |path: &str| fs::read(path).unwrap();
        let (key, certificate) = self.pair(name);
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read(&self.pair("ca").1)))
            .identity(Identity::from_pem(read(&certificate), read(&key)));
        ConnectOptions::new().with_tls(tls)
    }

    /// The arguments of an etcd that speaks https with the pair `server`, and asks its clients for a
    /// certificate by the authorities in `clients`, if there are any.
    pub fn arguments(&self, server: &str, clients: Option<&str>) -> Vec<String> {
        let (key, certificate) = self.pair(server);
        let own = ["--cert-file".to_owned(), certificate, "--key-file".to_owned(), key];
        let trusted = clients.map(|clients| {
            let flag = |name: &str| name.to_owned();
            [flag("--client-cert-auth"), flag("--trusted-ca-file"), self.text(clients)]
        });
        own.into_iter().chain(trusted.into_iter().flatten()).collect()
    }
}

/// A file in place of another, whole at every moment.
pub fn replace(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(&new, path).unwrap();
}

/// `YYYYMMDDhhmmssZ`, that many days from now.
fn day(from_now: i64) -> String {
    let format = ["-u", "+%Y%m%d%H%M%SZ", "-d", &format!("{from_now} days")];
    let said = Command::new("date").args(format).output().expect("run date");
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}
