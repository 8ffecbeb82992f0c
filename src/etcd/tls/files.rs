//! The files with certificates, key and password.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use crate::etcd::settings::EtcdSettings;
use crate::etcd::tls::validity::{Date, Validity};
use crate::net::{Object, Problem, ProblemKind};

/// Longest file accepted, in bytes: a bundle of all public authorities has a quarter of it.
const LIMIT: u64 = 1024 * 1024;

/// The credentials of a connection. Not `Debug`: they are secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// The authorities, in PEM.
    pub ca: Option<Pem>,
    /// This host's certificate, and its key in PEM.
    pub pair: Option<(Pem, String)>,
    pub password: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The content of the file.
    pub text: String,
    /// Variable and file.
    setting: Object,
    /// Of authorities: of the one that is valid longest.
    validity: Option<Validity>,
}

impl Files {
    /// Reads the files in `settings`, those of TLS only if `tls`. A faulty file is replaced by that in
    /// `before`; certificate and key only together. Gives the faults, too.
    pub fn read(settings: &EtcdSettings, tls: bool, before: &Files) -> (Files, Vec<Problem>) {
        let mut faults = Vec::new();
        let mut files = Files::default();
        if let Some(path) = settings.ca.as_deref().filter(|_| tls) {
            let read = At { variable: "ETCD_CACERT", path }.authorities();
            files.ca = read.map(Some).unwrap_or_else(|fault| {
                faults.push(fault);
                before.ca.clone()
            });
        }
        if let (Some(cert), Some(key), true) = (&settings.cert, &settings.key, tls) {
            files.pair = pair(cert, key).map(Some).unwrap_or_else(|fault| {
                faults.push(fault);
                before.pair.clone()
            });
        }
        if let Some(path) = &settings.password_file {
            let read = At { variable: "ETCD_PASSWORD_FILE", path }.password();
            files.password = read.map(Some).unwrap_or_else(|fault| {
                faults.push(fault);
                before.password.clone()
            });
        }
        (files, faults)
    }

    /// Nothing that `settings` require is missing.
    pub fn are_complete(&self, settings: &EtcdSettings, tls: bool) -> bool {
        let missing = |wanted: bool, exists: bool| wanted && !exists;
        !(missing(tls && settings.ca.is_some(), self.ca.is_some())
            || missing(tls && settings.cert.is_some(), self.pair.is_some())
            || missing(settings.password_file.is_some(), self.password.is_some()))
    }

    /// The certificates that are invalid at this time or will be soon.
    pub fn untimely(&self, now: SystemTime) -> Vec<Problem> {
        self.certificates().filter_map(|pem| pem.untimely(now)).collect()
    }

    /// Why this host's certificate is invalid at that time.
    pub fn invalid_at(&self, now: SystemTime) -> Option<Problem> {
        let found = self.pair.as_ref()?.0.untimely(now)?;
        (found.kind == ProblemKind::Certificate).then_some(found)
    }

    /// The end of validity of the first certificate.
    pub fn until(&self) -> Option<SystemTime> {
        let ends = self.certificates().filter_map(|pem| Some(pem.validity?.until));
        ends.min().map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn certificates(&self) -> impl Iterator<Item = &Pem> {
        self.ca.iter().chain(self.pair.as_ref().map(|(certificate, _)| certificate))
    }
}

impl Pem {
    fn untimely(&self, now: SystemTime) -> Option<Problem> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let validity = self.validity?;
        let renew = "humanz-agent config # replace it with a renewed one, which is applied without a restart";
        let until = Date(validity.until);
        let (kind, what, fix) = if validity.is_to_come(now) {
            let from = Date(validity.from);
            let fix = "timedatectl # check the clock of this host";
            (ProblemKind::Certificate, format!("not valid before {from}"), fix)
        } else if validity.is_over(now) {
            (ProblemKind::Certificate, format!("expired at {until}"), renew)
        } else if validity.is_old(now) {
            (ProblemKind::CertificateExpiring, format!("expires at {until}"), renew)
        } else {
            return None;
        };
        let what = format!("{}: {what}", self.setting);
        Some(Problem::new(kind, self.setting.clone(), what).with_fix(fix))
    }
}

/// A certificate and its key.
fn pair(cert: &Path, key: &Path) -> Result<(Pem, String), Problem> {
    let at = At { variable: "ETCD_CERT", path: cert };
    let (pem, chain) = at.certificates(&at.read()?, |validities| validities.first().copied())?;
    Ok((pem, At { variable: "ETCD_KEY", path: key }.key_of(chain, cert)?))
}

/// A file and its variable.
struct At<'a> {
    variable: &'static str,
    path: &'a Path,
}

impl At<'_> {
    fn setting(&self) -> Object {
        Object::Setting(self.variable, self.path.display().to_string())
    }

    fn fault(&self, wrong: impl fmt::Display) -> Problem {
        let what = format!("{}: {wrong}", self.setting());
        let fix = format!("ls -lL {} # put a good one in its place", self.path.display());
        Problem::new(ProblemKind::EtcdFiles, self.setting(), what).with_fix(fix)
    }

    fn read(&self) -> Result<String, Problem> {
        let read = || -> io::Result<String> {
            // Opening a pipe would block.
            if !fs::metadata(self.path)?.is_file() {
                return Err(io::Error::other("not a file"));
            }
            let mut bytes = Vec::new();
            File::open(self.path)?.take(LIMIT).read_to_end(&mut bytes)?;
            String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8"))
        };
        read().map_err(|error| self.fault(format!("cannot be read: {error}")))
    }

    fn password(&self) -> Result<String, Problem> {
        let text = self.read()?;
        match text.trim_end() {
            "" => Err(self.fault("empty")),
            password => Ok(password.to_owned()),
        }
    }

    fn authorities(&self) -> Result<Pem, Problem> {
        let longest = |validities: &[Validity]| {
            validities.iter().max_by_key(|validity| validity.until).copied()
        };
        Ok(self.certificates(&self.read()?, longest)?.0)
    }

    fn certificates(
        &self,
        text: &str,
        counts: impl Fn(&[Validity]) -> Option<Validity>,
    ) -> Result<(Pem, Vec<CertificateDer<'static>>), Problem> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let found = found.map_err(|_| self.fault("not PEM, or truncated"))?;
        if found.is_empty() {
            return Err(self.fault("contains no PEM certificate"));
        }
        let validities: Option<Vec<_>> = found.iter().map(|one| Validity::of(one)).collect();
        let Some(validities) = validities else {
            return Err(self.fault("contains an invalid or truncated certificate"));
        };
        let setting = self.setting();
        Ok((Pem { text: text.to_owned(), setting, validity: counts(&validities) }, found))
    }

    /// The key in PEM, if it belongs to the first certificate of `chain`, which is in `cert`.
    fn key_of(&self, chain: Vec<CertificateDer<'static>>, cert: &Path) -> Result<String, Problem> {
        let text = self.read()?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| {
            self.fault("contains no PEM private key (one with a passphrase cannot be used)")
        })?;
        match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
            Ok(_) => Ok(text),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                let wrong =
                    format!("not the key of the certificate in ETCD_CERT {}", cert.display());
                Err(self.fault(wrong).with_fix(format!(
                    "openssl x509 -noout -text -in {} # replace both",
                    cert.display()
                )))
            }
            Err(error) => {
                let fix = format!(
                    "openssl pkey -noout -text_pub -in {} # use RSA from 2048 bits, ECDSA on P-256 or P-384, or Ed25519",
                    self.path.display()
                );
                Err(self.fault(format!("unsupported ({error})")).with_fix(fix))
            }
        }
    }
}

/// Identifies the current files: differs after a write, a rename or a change of a symbolic link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Vec<Option<[i64; 6]>>);

impl Stamp {
    pub fn of(settings: &EtcdSettings) -> Stamp {
        let files = [&settings.ca, &settings.cert, &settings.key, &settings.password_file];
        let stamp = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            let inode = (found.dev() as i64, found.ino() as i64, found.size() as i64);
            let changed = (found.mtime_nsec(), found.ctime(), found.ctime_nsec());
            Some([inode.0, inode.1, inode.2, changed.0, changed.1, changed.2])
        };
        Stamp(files.into_iter().flatten().map(|path| stamp(path)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(content: &[u8]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, content).unwrap();
        let settings = EtcdSettings { password_file: Some(path), ..EtcdSettings::default() };
        Files::read(&settings, true, &Files::default()).0.password
    }

    #[test]
    fn white_space_at_the_end_of_a_password_is_removed() {
        assert_eq!(password(b" a b \r\n"), Some(" a b".to_owned()));
        assert_eq!(password(b"a\nb"), Some("a\nb".to_owned()));
        assert_eq!(password(b" \n"), None);
        assert_eq!(password(b"\xff"), None);
    }

    #[test]
    fn a_path_that_is_no_file_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [pipe, folder.path().to_owned()] {
            let settings = EtcdSettings { ca: Some(path), ..EtcdSettings::default() };
            let (_, faults) = Files::read(&settings, true, &Files::default());
            assert!(faults[0].to_string().contains("cannot be read: not a file"), "{}", faults[0]);
        }
    }
}
