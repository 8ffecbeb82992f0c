//! What the files of certificates, key and password hold.

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

/// Longest file taken, in bytes: a bundle of every public authority has a quarter of it.
const LIMIT: u64 = 1024 * 1024;

/// What a connection is made with. It is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// The authorities, in PEM.
    pub ca: Option<Pem>,
    /// This host's certificate, and its key in PEM.
    pub pair: Option<(Pem, String)>,
    /// The user's password.
    pub password: Option<String>,
}

/// Certificates.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// As they are in the file.
    pub text: String,
    /// The variable and the file.
    name: String,
    /// Of those that the file is for: the longest.
    validity: Option<Validity>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The variable that names it.
    pub variable: &'static str,
    /// The file.
    pub path: String,
    /// What is wrong, and what to do.
    pub wrong: String,
}

/// A certificate whose time ends soon, has ended, or is yet to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untimely {
    /// The variable and the file.
    pub name: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub cure: &'static str,
    /// It can be used still.
    pub holds: bool,
}

impl fmt::Display for Untimely {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.name, self.what, self.cure)
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.variable, self.path, self.wrong)
    }
}

impl Files {
    /// Reads those that `settings` name; those of TLS only if it is spoken. In place of what cannot be
    /// used stands what `before` held, and in place of one of certificate and key both. Gives the
    /// faults, too.
    pub fn read(settings: &EtcdSettings, tls: bool, before: &Files) -> (Files, Vec<FileFault>) {
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

    /// They hold everything that `settings` want.
    pub fn are_complete(&self, settings: &EtcdSettings, tls: bool) -> bool {
        let missing = |wanted: bool, there: bool| wanted && !there;
        !(missing(tls && settings.ca.is_some(), self.ca.is_some())
            || missing(tls && settings.cert.is_some(), self.pair.is_some())
            || missing(settings.password_file.is_some(), self.password.is_some()))
    }

    /// What ends soon, has ended or is yet to begin, each with what to do; empty if all is well.
    pub fn untimely(&self) -> Vec<Untimely> {
        self.certificates().filter_map(Pem::untimely).collect()
    }

    /// Why this host's certificate is good for nothing at this moment.
    pub fn useless_now(&self) -> Option<String> {
        let found = self.pair.as_ref()?.0.untimely()?;
        (!found.holds).then(|| found.to_string())
    }

    /// When the first of them ends.
    pub fn until(&self) -> Option<SystemTime> {
        let ends = self.certificates().filter_map(|pem| Some(pem.validity?.until));
        ends.min().map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn certificates(&self) -> impl Iterator<Item = &Pem> {
        self.ca.iter().chain(self.pair.as_ref().map(|(certificate, _)| certificate))
    }
}

impl Pem {
    /// What is wrong with its time.
    fn untimely(&self) -> Option<Untimely> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let validity = self.validity?;
        let renew = "put a renewed one in its place, which is taken without a restart";
        let until = Date(validity.until);
        let (what, cure, holds) = if validity.is_to_come(now) {
            let from = Date(validity.from);
            (format!("not valid before {from}"), "look at the clock of this host", false)
        } else if validity.is_over(now) {
            (format!("expired at {until}"), renew, false)
        } else if validity.is_old(now) {
            (format!("expires at {until}"), renew, true)
        } else {
            return None;
        };
        Some(Untimely { name: self.name.clone(), what, cure, holds })
    }
}

/// A certificate and its key.
fn pair(cert: &Path, key: &Path) -> Result<(Pem, String), FileFault> {
    let at = At { variable: "ETCD_CERT", path: cert };
    let (pem, chain) = at.certificates(&at.read()?, |validities| validities.first().copied())?;
    Ok((pem, At { variable: "ETCD_KEY", path: key }.key_of(chain, cert)?))
}

/// A file and the variable that names it.
struct At<'a> {
    variable: &'static str,
    path: &'a Path,
}

impl At<'_> {
    fn fault(&self, wrong: impl Into<String>) -> FileFault {
        let path = self.path.display().to_string();
        FileFault { variable: self.variable, path, wrong: wrong.into() }
    }

    fn read(&self) -> Result<String, FileFault> {
        let read = || -> io::Result<String> {
            // Opening a pipe would wait for its writer.
            if !fs::metadata(self.path)?.is_file() {
                return Err(io::Error::other("not a file"));
            }
            let mut bytes = Vec::new();
            File::open(self.path)?.take(LIMIT).read_to_end(&mut bytes)?;
            String::from_utf8(bytes).map_err(|_| io::Error::other("not a text"))
        };
        read().map_err(|error| self.fault(format!("cannot be read: {error}")))
    }

    fn password(&self) -> Result<String, FileFault> {
        let text = self.read()?;
        match text.trim_end() {
            "" => Err(self.fault("empty; write the password of ETCD_USER into it")),
            password => Ok(password.to_owned()),
        }
    }

    /// A bundle is as good as the authority in it that lives longest.
    fn authorities(&self) -> Result<Pem, FileFault> {
        let longest = |validities: &[Validity]| {
            validities.iter().max_by_key(|validity| validity.until).copied()
        };
        Ok(self.certificates(&self.read()?, longest)?.0)
    }

    fn certificates(
        &self,
        text: &str,
        counts: impl Fn(&[Validity]) -> Option<Validity>,
    ) -> Result<(Pem, Vec<CertificateDer<'static>>), FileFault> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let found = found.map_err(|_| self.fault("not PEM, or only a part of it"))?;
        if found.is_empty() {
            return Err(self.fault("holds no certificate in PEM form"));
        }
        let validities: Option<Vec<_>> = found.iter().map(|one| Validity::of(one)).collect();
        let Some(validities) = validities else {
            return Err(self.fault("holds a certificate that is none, or only a part of it"));
        };
        let name = format!("{} {}", self.variable, self.path.display());
        Ok((Pem { text: text.to_owned(), name, validity: counts(&validities) }, found))
    }

    /// The text of the key, if it is that of the first certificate of `chain`, which is in `cert`.
    fn key_of(
        &self,
        chain: Vec<CertificateDer<'static>>,
        cert: &Path,
    ) -> Result<String, FileFault> {
        let text = self.read()?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| {
            self.fault("holds no private key in PEM form (one with a passphrase cannot be used)")
        })?;
        match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
            Ok(_) => Ok(text),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err(self.fault(format!(
                    "not the key of the certificate in ETCD_CERT {}; replace both",
                    cert.display()
                )))
            }
            Err(error) => Err(self.fault(format!(
                "of no use ({error}); take RSA from 2048 bits, ECDSA on P-256 or P-384, or Ed25519"
            ))),
        }
    }
}

/// What tells a file from its successor, however that took its place: by a write, a rename or another
/// symbolic link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Vec<Option<[i64; 6]>>);

impl Stamp {
    /// Of the files that `settings` name.
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
    fn white_space_at_the_end_is_no_part_of_a_password() {
        assert_eq!(password(b" a b \r\n"), Some(" a b".to_owned()));
        assert_eq!(password(b"a\nb"), Some("a\nb".to_owned()));
        assert_eq!(password(b" \n"), None);
        assert_eq!(password(b"\xff"), None);
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
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
