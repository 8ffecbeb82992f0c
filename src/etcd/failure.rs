//! Pure. What kind of failure an error of the crate is.

use std::time::SystemTime;

use etcd_client::Error;

use crate::etcd::settings::EtcdSettings;
use crate::etcd::tls::files::Files;
use crate::etcd::tls::meaning;
use crate::lease::EtcdError;
use crate::net::FailureReason;

/// Why one attempt on one member failed.
pub enum Failure {
    /// The member: try the next.
    Member(FailureReason),
    /// Certificates: the next may take them.
    Files(FailureReason),
    /// User and password.
    Login(FailureReason),
    /// The token: renew it.
    Token(FailureReason),
    /// The request: no member would take it.
    Request(Rejection),
}

/// A refusal whose error is made when what and where are known.
pub struct Rejection {
    kind: fn(String) -> EtcdError,
    reason: String,
}

impl Rejection {
    pub fn of(self, what: &str, endpoint: &str) -> EtcdError {
        (self.kind)(format!("{what}: etcd {endpoint}: {}", self.reason))
    }
}

impl Failure {
    pub fn into_reason(self) -> FailureReason {
        match self {
            Self::Member(why) | Self::Files(why) | Self::Login(why) | Self::Token(why) => why,
            Self::Request(Rejection { reason, .. }) => reason.into(),
        }
    }

    /// The failure of a new connection with `files`: one that broke off may have failed because of TLS.
    pub fn of_connection(
        error: &Error,
        settings: &EtcdSettings,
        files: &Files,
        tls: bool,
        now: SystemTime,
    ) -> Failure {
        match Failure::of(error, settings) {
            Failure::Member(why) if broke_off(&why.what) => {
                Failure::Files(meaning::of_broken_connection(&why.what, settings, files, tls, now))
            }
            failure => failure,
        }
    }

    /// What `error` means for a host with these `settings`.
    pub fn of(error: &Error, settings: &EtcdSettings) -> Failure {
        if let Some(why) = meaning::of(cause(error), settings) {
            return Failure::Files(why);
        }
        match sort(error) {
            Sort::Member => Failure::Member(reason(error).into()),
            Sort::Login => Failure::Login(wrong_login(&reason(error), settings)),
            Sort::Token if settings.user.is_none() => Failure::Token(FailureReason::new(
                reason(error),
                "set ETCD_USER and ETCD_PASSWORD_FILE, or a client certificate whose name is that \
                 of the user",
            )),
            Sort::Token => Failure::Token(reason(error).into()),
            Sort::Request(kind) => Failure::Request(Rejection { kind, reason: reason(error) }),
        }
    }
}

fn wrong_login(reason: &str, settings: &EtcdSettings) -> FailureReason {
    let user = settings.user.as_deref().unwrap_or_default();
    let file = settings.password_file.as_deref().map(|path| path.display().to_string());
    let file = file.unwrap_or_default();
    FailureReason::new(
        format!("{reason}: ETCD_USER {user} with the password in ETCD_PASSWORD_FILE {file}"),
        "correct ETCD_USER, or write its password to ETCD_PASSWORD_FILE",
    )
}

/// The connection was made and then closed.
fn broke_off(why: &str) -> bool {
    let says = |words: &str| why.contains(words);
    let transport = says("transport error") || says("h2 protocol error");
    transport && !says("connect error") && !says("dns error")
}

/// The source of an error of the crate, which has none.
fn cause(error: &Error) -> &(dyn std::error::Error + 'static) {
    match error {
        Error::GRpcStatus(status) => status,
        Error::TransportError(error) => error,
        Error::IoError(error) => error,
        other => other,
    }
}

enum Sort {
    Member,
    Login,
    Token,
    Request(fn(String) -> EtcdError),
}

fn refused(why: String) -> EtcdError {
    let fix = why.contains("database space exceeded").then(|| NO_SPACE.to_owned());
    EtcdError::Refused(FailureReason { what: why, fix })
}

/// The fix of an etcd that takes deletions only.
const NO_SPACE: &str = "etcdctl alarm list # it is full: compact and defragment it, then: etcdctl alarm disarm; \
    agents that start before appear silent to others: remove no host";

/// What kind of failure an error of the crate is. The numbers are gRPC's status codes
/// (`google.rpc.Code`); the texts are etcd's (`api/v3rpc/rpctypes/error.go`), which uses one code
/// for several things.
fn sort(error: &Error) -> Sort {
    let status = match error {
        Error::GRpcStatus(status) => status,
        Error::InvalidArgs(_) | Error::InvalidUri(_) => return Sort::Request(refused),
        Error::LeaseKeepAliveError(text) if text == "lease not found" => {
            return Sort::Request(EtcdError::NoLease);
        }
        _ => return Sort::Member,
    };
    let says = |text: &str| status.message().contains(text);
    let stale = ["invalid auth token", "revision of auth store is old", "user name is empty"];
    if stale.into_iter().any(says) {
        return Sort::Token;
    }
    if says("invalid user ID or password") {
        return Sort::Login;
    }
    match i32::from(status.code()) {
        16 => Sort::Token,
        5 if says("lease") => Sort::Request(EtcdError::NoLease),
        7 => Sort::Request(EtcdError::Denied),
        11 if says("compacted") => Sort::Request(EtcdError::Compacted),
        11 if says("message length too large") => Sort::Request(EtcdError::TooLarge),
        3 | 5 | 8 | 9 | 11 => Sort::Request(refused),
        _ => Sort::Member,
    }
}

/// The error in one line, without the crate's own words around it.
pub fn reason(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => {
            let cause = std::error::Error::source(status).map(chain);
            let message = status.message();
            match cause {
                Some(cause) if message.is_empty() || cause.contains(message) => cause,
                Some(cause) => format!("{message}: {cause}"),
                None if message.is_empty() => status.code().to_string(),
                None => message.to_owned(),
            }
        }
        Error::TransportError(error) => chain(error),
        other => chain(other),
    }
}

/// `error` and its sources in one line; a source that the text already contains is left out.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let reason = source.to_string();
        if !text.contains(&reason) {
            text.push_str(": ");
            text.push_str(&reason);
        }
        next = source.source();
    }
    text
}
