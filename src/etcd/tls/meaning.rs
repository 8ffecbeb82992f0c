//! Pure. TLS errors with their fix.

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use rustls::pki_types::ServerName;
use rustls::{CertificateError, Error};

use crate::etcd::settings::EtcdSettings;
use crate::etcd::tls::files::Files;
use crate::etcd::tls::validity::Date;
use crate::net::FailureReason;

/// The TLS error among the sources of `error`, with its fix; `None` if there is none.
pub fn of(error: &(dyn StdError + 'static), settings: &EtcdSettings) -> Option<FailureReason> {
    tls_error(error).map(|error| of_tls(error, settings))
}

/// A connection that the member closed right after it was made, with the error `why`: it may refuse
/// this host's certificate, or not speak TLS. Its alert may get lost (RFC 8446 §4.4.2): a client that
/// is writing at that moment gets an error of the closed connection.
pub fn of_broken_connection(
    why: &str,
    settings: &EtcdSettings,
    files: &Files,
    tls: bool,
    now: SystemTime,
) -> FailureReason {
    if !tls {
        let fix = "if it speaks TLS, write https:// in ETCD_HOST, and set ETCD_CACERT";
        return FailureReason::new("it closed the connection", fix);
    }
    if why.contains("handshake eof") {
        let what = "it closed the connection during the handshake; perhaps it does not speak TLS";
        return FailureReason::new(what, USE_NO_TLS);
    }
    match files.invalid_at(now) {
        Some(invalid) => FailureReason::from(invalid).at("it refuses the certificate"),
        None if why.contains("alert") => refused(settings, &format!(" ({why})")),
        None => refused(settings, ""),
    }
}

/// The fix for a member that does not speak TLS.
const USE_NO_TLS: &str = "write http:// in ETCD_HOST, or turn TLS on there";

fn of_tls(error: &Error, settings: &EtcdSettings) -> FailureReason {
    let shown =
        |path: Option<&Path>| path.map(|path| path.display().to_string()).unwrap_or_default();
    let ca = shown(settings.ca.as_deref());
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => FailureReason::new(
            format!("the authority that signed its certificate is not in ETCD_CACERT {ca}"),
            "add that authority to ETCD_CACERT",
        ),
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            FailureReason::new(
                format!("its certificate expired at {}", Date(not_after.as_secs())),
                "renew it on the member, or set the clock of this host",
            )
        }
        Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
            FailureReason::new(
                format!("its certificate is not valid before {}", Date(not_before.as_secs())),
                "set the clock of this host or the member's",
            )
        }
        Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        }) => FailureReason::new(
            format!("its certificate is not for {} but for {}", name(expected), names(presented)),
            "write one of its names in ETCD_HOST, or give the member a certificate with that \
             subjectAltName",
        ),
        Error::InvalidMessage(_) => FailureReason::new("it does not speak TLS", USE_NO_TLS),
        Error::AlertReceived(alert) => refused(settings, &format!(" ({alert:?})")),
        other => format!("TLS: {other}").into(),
    }
}

/// A member refuses this host's certificate; `alert`: its alert, in brackets.
fn refused(settings: &EtcdSettings, alert: &str) -> FailureReason {
    match &settings.cert {
        None => FailureReason::new(
            format!("it closed the connection: it may require a client certificate{alert}"),
            "set ETCD_CERT and ETCD_KEY",
        ),
        Some(cert) => FailureReason::new(
            format!(
                "it closed the connection: perhaps it refuses the certificate in ETCD_CERT {}{alert}",
                cert.display()
            ),
            "let an authority of its --trusted-ca-file sign the certificate, for clients \
             (extendedKeyUsage clientAuth)",
        ),
    }
}

fn name(name: &ServerName<'_>) -> String {
    name.to_str().into_owned()
}

/// Without the crate's notation: `DnsName("a")`, `IpAddress(192.0.2.1)`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    match presented {
        [] => "no name at all".to_owned(),
        names => names.iter().map(bare).collect::<Vec<_>>().join(", "),
    }
}

/// The TLS error in a chain of errors; an `io::Error` holds it without a source.
pub fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(found) = next {
        if let Some(tls) = found.downcast_ref() {
            return Some(tls);
        }
        let held = found.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match held {
            Some(held) => Some(held),
            None => found.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tls_error_is_found_among_the_sources() {
        let tls = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let held = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls()));
        for error in [&tls() as &(dyn StdError + 'static), &held] {
            let reason = of(error, &EtcdSettings::default()).unwrap();
            assert!(reason.what.contains("is not in ETCD_CACERT"), "{reason}");
            assert_eq!(reason.fix.as_deref(), Some("add that authority to ETCD_CACERT"));
        }
        let other = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(of(&other, &EtcdSettings::default()), None);
    }

    #[test]
    fn names_are_shown_without_their_type() {
        let presented = ["DnsName(\"etcd-1\")", "IpAddress(192.0.2.1)", "plain"].map(String::from);
        assert_eq!(names(&presented), "etcd-1, 192.0.2.1, plain");
    }
}
