//! Pure. What a member that does not take this host's files, or whose certificate is not taken, means.

use std::error::Error as StdError;
use std::io;
use std::path::Path;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error};

use crate::etcd::settings::EtcdSettings;
use crate::etcd::tls::files::Files;
use crate::etcd::tls::handshake::Cause;
use crate::etcd::tls::validity::Date;

/// What went wrong with TLS below `error`, and what to do; `None` if it was something else.
pub fn of(error: &(dyn StdError + 'static), settings: &EtcdSettings) -> Option<String> {
    below(error).map(|error| of_tls(error, settings))
}

/// What came of a handshake with `files`, after a connection by TLS or without it had broken off.
pub fn of_handshake(
    cause: &Cause,
    tls: bool,
    settings: &EtcdSettings,
    files: &Files,
) -> Option<String> {
    match cause {
        Cause::Tls(Error::InvalidCertificate(_) | Error::AlertReceived(_)) if !tls => {
            Some("it speaks TLS; write https:// in ETCD_HOST, and set ETCD_CACERT".to_owned())
        }
        _ if !tls => None,
        Cause::HungUp => Some(format!("it hung up during the handshake; perhaps {NO_TLS}")),
        Cause::Tls(error @ Error::AlertReceived(_)) => match files.useless_now() {
            Some(why) => Some(format!("it refuses the certificate: {why}")),
            None => Some(of_tls(error, settings)),
        },
        Cause::Tls(error) => Some(of_tls(error, settings)),
    }
}

const NO_TLS: &str = "it does not speak TLS; write http:// in ETCD_HOST, or turn TLS on there";

/// What `error` means, and what to do.
fn of_tls(error: &Error, settings: &EtcdSettings) -> String {
    let shown =
        |path: Option<&Path>| path.map(|path| path.display().to_string()).unwrap_or_default();
    let ca = shown(settings.ca.as_deref());
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => format!(
            "the authority that signed its certificate is not in ETCD_CACERT {ca}; add it there"
        ),
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => format!(
            "its certificate expired at {}; renew it on the member, or set the clock of this host",
            Date(not_after.as_secs())
        ),
        Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
            format!(
                "its certificate is not valid before {}; set the clock of this host or the member's",
                Date(not_before.as_secs())
            )
        }
        Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        }) => format!(
            "its certificate is not for {} but for {}; write one of its names in ETCD_HOST, or give \
             the member a certificate with that subjectAltName",
            name(expected),
            names(presented)
        ),
        Error::InvalidMessage(_) => NO_TLS.to_owned(),
        Error::AlertReceived(alert) => refused(*alert, settings),
        other => format!("TLS: {other}"),
    }
}

/// What a member says about this host's certificate.
fn refused(alert: AlertDescription, settings: &EtcdSettings) -> String {
    let Some(cert) = &settings.cert else {
        return format!(
            "it wants a certificate of this host ({alert:?}): set ETCD_CERT and ETCD_KEY"
        );
    };
    let cert = format!("the certificate in ETCD_CERT {}", cert.display());
    match alert {
        AlertDescription::UnknownCA => format!(
            "it does not know who signed {cert}; let an authority of its --trusted-ca-file sign it"
        ),
        AlertDescription::CertificateExpired => {
            format!("{cert} is not valid at this time; renew it, or set the clocks")
        }
        _ => format!(
            "it refuses {cert} ({alert:?}); an authority of its --trusted-ca-file must have signed \
             it, for clients (extendedKeyUsage clientAuth)"
        ),
    }
}

fn name(name: &ServerName<'_>) -> String {
    name.to_str().into_owned()
}

/// `DnsName("a")` and `IpAddress(192.0.2.1)` are what the crate calls them.
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

/// The error of TLS in a chain of errors; that of a stream hides what it holds.
fn below<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
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
    fn an_error_of_tls_is_found_in_what_holds_it() {
        let tls = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let held = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls()));
        for error in [&tls() as &(dyn StdError + 'static), &held] {
            let told = of(error, &EtcdSettings::default()).unwrap();
            assert!(told.contains("is not in ETCD_CACERT"), "{told}");
        }
        let other = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(of(&other, &EtcdSettings::default()), None);
    }

    #[test]
    fn names_are_shown_without_their_kind() {
        let presented = ["DnsName(\"etcd-1\")", "IpAddress(192.0.2.1)", "plain"].map(String::from);
        assert_eq!(names(&presented), "etcd-1, 192.0.2.1, plain");
    }
}
