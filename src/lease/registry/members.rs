//! The members of the etcd cluster: one connection at a time, the next one when it fails.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity as Pair, KvClient, LeaseClient,
    TlsOptions, WatchClient,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::error::{EtcdError, chain};
use super::random;
use super::settings::EtcdSettings;

/// Largest answer taken, in bytes. A watch is cut into pieces of 2 MiB by the server; a range asks
/// for fewer keys if it meets more.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;

/// Longest time for a TCP connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that says nothing for so long is asked; etcd closes those that ask more often than
/// every 5 s (its `--grpc-keepalive-min-time`).
const PING_AFTER: Duration = Duration::from_secs(6);

/// … and given up without an answer for so long.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to one member.
#[derive(Clone)]
pub struct Member {
    pub kv: KvClient,
    pub watch: WatchClient,
    pub lease: LeaseClient,
}

/// The members, of which one is in use.
pub struct Members {
    settings: RefCell<Rc<EtcdSettings>>,
    current: Cell<usize>,
    connection: RefCell<Option<Member>>,
    replaced: Notify,
}

impl Members {
    /// Starts with a random member, so that hosts spread over them.
    pub fn new(settings: EtcdSettings) -> Members {
        let first = random::below(settings.endpoints.len());
        Members {
            settings: RefCell::new(Rc::new(settings)),
            current: Cell::new(first),
            connection: RefCell::new(None),
            replaced: Notify::new(),
        }
    }

    /// Other members, or other ways to them, from now on: a call under way begins again.
    pub fn replace(&self, settings: EtcdSettings) {
        self.current.set(random::below(settings.endpoints.len()));
        self.settings.replace(Rc::new(settings));
        self.connection.take();
        self.replaced.notify_waiters();
    }

    fn settings(&self) -> Rc<EtcdSettings> {
        Rc::clone(&self.settings.borrow())
    }

    /// The URL of the member in use.
    pub fn endpoint(&self) -> String {
        self.settings().endpoints.get(self.current.get()).cloned().unwrap_or_default()
    }

    /// The answer to `request` of the first member that gives one, beginning with the one in use.
    /// Each has the configured time. A token that is no longer good is renewed once.
    ///
    /// A request may reach several members: it must be harmless when done twice.
    pub async fn call<T>(
        &self,
        what: &str,
        request: impl AsyncFn(Member) -> Result<T, Error>,
    ) -> Result<T, EtcdError> {
        let mut unreachable = Vec::new();
        let mut renewed = false;
        while unreachable.len() < self.settings().endpoints.len().max(1) {
            let (settings, index) = (self.settings(), self.current.get());
            let endpoint = self.endpoint();
            let attempt = tokio::select! {
                attempt = timeout(settings.timeout, self.attempt(&request)) => attempt,
                () = self.replaced.notified() => continue,
            };
            let failure = match attempt {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Member(format!("no answer within {:?}", settings.timeout)),
            };
            match failure {
                Failure::Request(error) => return Err(error.of(what, &endpoint)),
                Failure::Token(_) if !renewed => {
                    renewed = true;
                    self.connection.take();
                }
                Failure::Token(reason) => {
                    return Err(EtcdError::Refused(format!("{what}: etcd {endpoint}: {reason}")));
                }
                Failure::Member(reason) => {
                    let advice = Self::advice(&reason);
                    unreachable.push(format!("etcd {endpoint}: {reason}{advice}"));
                    self.give_up(index);
                }
            }
        }
        Err(EtcdError::Unreachable(unreachable.join("; ")))
    }

    /// Gives the member in use up: the next call goes to another one.
    pub fn next(&self) {
        self.give_up(self.current.get());
    }

    /// Gives a member up, unless another call has done so already.
    fn give_up(&self, index: usize) {
        if self.current.get() == index {
            self.connection.take();
            self.current.set((index + 1) % self.settings().endpoints.len().max(1));
        }
    }

    async fn attempt<T>(
        &self,
        request: &impl AsyncFn(Member) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let known = self.connection.borrow().clone();
        let member = match known {
            Some(member) => member,
            None => {
                let options = self.options()?;
                let client = Client::connect([self.endpoint()], Some(options)).await?;
                let member = Member {
                    kv: client.kv_client().max_decoding_message_size(ANSWER_LIMIT),
                    watch: client.watch_client().max_decoding_message_size(ANSWER_LIMIT),
                    lease: client.lease_client(),
                };
                self.connection.replace(Some(member.clone()));
                member
            }
        };
        Ok(request(member).await?)
    }

    /// What to do about a TLS handshake that failed.
    fn advice(reason: &str) -> &'static str {
        let refused = ["BadCertificate", "CertificateRequired", "HandshakeFailure"];
        if reason.contains("UnknownIssuer") {
            "; the authority that signed its certificate is not in ETCD_CACERT"
        } else if refused.iter().any(|alert| reason.contains(alert)) {
            "; it wants a certificate that it trusts: ETCD_CERT and ETCD_KEY"
        } else {
            ""
        }
    }

    fn options(&self) -> Result<ConnectOptions, Failure> {
        let settings = self.settings();
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT.min(settings.timeout))
            .with_keep_alive(PING_AFTER, PING_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if self.endpoint().starts_with("https://") {
            let ca = settings.ca.as_deref().ok_or_else(|| {
                Failure::Member("https needs ETCD_CACERT, the file of its authorities".to_owned())
            })?;
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
            if let (Some(cert), Some(key)) = (&settings.cert, &settings.key) {
                tls = tls.identity(Pair::from_pem(read(cert)?, read(key)?));
            }
            options = options.with_tls(tls);
        }
        if let (Some(user), Some(file)) = (&settings.user, &settings.password_file) {
            let password = read(file)?;
            options = options.with_user(user, password.trim_end());
        }
        Ok(options)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    fs::read_to_string(path).map_err(|error| Failure::Member(format!("read {shown}: {error}")))
}

/// Why one attempt on one member failed.
enum Failure {
    /// The member: try the next.
    Member(String),
    /// The token: renew it.
    Token(String),
    /// The request: no member would take it.
    Request(Refusal),
}

/// A refusal whose error is made when what and where are known.
struct Refusal {
    kind: fn(String) -> EtcdError,
    reason: String,
}

impl Refusal {
    fn of(self, what: &str, endpoint: &str) -> EtcdError {
        (self.kind)(format!("{what}: etcd {endpoint}: {}", self.reason))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match sort(&error) {
            Sort::Member => Failure::Member(reason(&error)),
            Sort::Token => Failure::Token(reason(&error)),
            Sort::Request(kind) => Failure::Request(Refusal { kind, reason: reason(&error) }),
        }
    }
}

enum Sort {
    Member,
    Token,
    Request(fn(String) -> EtcdError),
}

/// What kind of failure an error of the crate is. The numbers are gRPC's status codes
/// (`google.rpc.Code`); the texts are etcd's (`api/v3rpc/rpctypes/error.go`), which uses one code
/// for several things.
fn sort(error: &Error) -> Sort {
    let status = match error {
        Error::GRpcStatus(status) => status,
        Error::InvalidArgs(_) | Error::InvalidUri(_) => return Sort::Request(EtcdError::Refused),
        Error::LeaseKeepAliveError(text) if text == "lease not found" => {
            return Sort::Request(EtcdError::NoLease);
        }
        _ => return Sort::Member,
    };
    let says = |text: &str| status.message().contains(text);
    if says("invalid auth token") || says("revision of auth store is old") {
        return Sort::Token;
    }
    match i32::from(status.code()) {
        16 => Sort::Token,
        5 if says("lease") => Sort::Request(EtcdError::NoLease),
        7 => Sort::Request(EtcdError::Denied),
        11 if says("compacted") => Sort::Request(EtcdError::Compacted),
        11 if says("message length too large") => Sort::Request(EtcdError::TooLarge),
        3 | 5 | 8 | 9 | 11 => Sort::Request(EtcdError::Refused),
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
