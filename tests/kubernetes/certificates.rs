//! A CA, and certificates of the API and of a client, made by openssl.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// For an API that answers at `address`.
    pub fn new(address: &str) -> Self {
        let certificates = Self { folder: tempfile::tempdir().unwrap() };
        for authority in ["ca", "other"] {
            let line = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
            let line = format!(
                "{line} -subj /CN={authority} -keyout {authority}.key -out {authority}.pem"
            );
            certificates.openssl(&line);
        }
        certificates.sign("server", &format!("subjectAltName=IP:{address},DNS:kubernetes"));
        certificates.sign("client", "extendedKeyUsage=clientAuth");
        certificates
    }

    /// The text of `NAME.pem`, `NAME.key`.
    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder.path().join(file)).unwrap()
    }

    fn sign(&self, name: &str, extensions: &str) {
        fs::write(self.folder.path().join("extensions"), extensions).unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /O=humanz/CN={name} -keyout {name}.key -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem"
        ));
    }

    fn openssl(&self, line: &str) {
        let mut openssl = Command::new("openssl");
        let done = openssl.args(line.split(' ')).current_dir(self.folder.path()).output();
        let done = done.expect("run openssl (package openssl)");
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }
}
