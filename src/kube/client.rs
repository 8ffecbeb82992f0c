//! Calls of the Kubernetes API; only this file, `answer` and `watch` use the HTTP crates.
//!
//! HTTP/2, which every API server speaks, through the client that the connection with etcd uses too.

use std::future::poll_fn;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tonic::transport::channel::Change;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tower_service::Service;

use crate::etcd::failure::chain;
use crate::kube::access::Access;
use crate::kube::answer::{ApiError, broken, next_bytes};
use crate::kube::object::{self, PageEnd};
use crate::kube::query::{Query, escaped};
use crate::kube::settings::KubeSettings;
use crate::kube::watch::WatchStream;
use crate::lease::records::NodeName;
use crate::net::FailureReason;
use crate::os::random;

/// Changes of the server's address that may wait; there is one.
const REQUESTS: usize = 4;

/// Longest time for a TCP connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Silence before a ping …
const PING_AFTER: Duration = Duration::from_secs(15);

/// … and the longest wait for its answer.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for an answer; of a watch, for its beginning.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a watch lasts, at least; at most twice as long. As in client-go.
const WATCH_SECONDS: u64 = 300;

/// How much longer a server may take to end a watch.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// Pages of a list in a row that may be empty: a server may have left out all that was on them.
const EMPTY_PAGES: usize = 100;

/// Largest page accepted, in bytes; fewer objects are requested if it is larger.
const PAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Largest description of a group or a version read, in bytes.
const DISCOVERY_LIMIT: usize = 1024 * 1024;

/// Largest explanation of a refusal read, in bytes.
const REFUSAL_LIMIT: usize = 16 * 1024;

/// A connection with the API, made by the first call, and again after it broke.
pub struct Api {
    access: Access,
    channel: Channel,
}

impl Api {
    /// Reads the files in `settings`. To be called in an event loop.
    pub fn open(settings: &KubeSettings) -> Result<Api, ApiError> {
        let access = Access::open(settings).map_err(failed_without_call)?;
        let failed = |error: tonic::transport::Error| {
            failed_without_call(format!("{}: {}", access.server.origin, chain(&error)))
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&access.ca));
        if let Some((certificate, key)) = &access.client {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &access.server_name {
            tls = tls.domain_name(name);
        }
        let endpoint = Endpoint::from_shared(access.server.origin.clone()).map_err(failed)?;
        let endpoint = endpoint.tls_config(tls).map_err(failed)?;
        let endpoint = endpoint
            .user_agent(concat!("humanz-agent/", env!("CARGO_PKG_VERSION")))
            .map_err(failed)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        // As etcd-client does: any other way would bring the whole client a second time.
        let (channel, members) = Channel::balance_channel(REQUESTS);
        let insert = Change::Insert(endpoint.uri().clone(), endpoint);
        members.try_send(insert).map_err(|error| failed_without_call(error.to_string()))?;
        Ok(Api { access, channel })
    }

    pub fn endpoint(&self) -> &str {
        &self.access.server.origin
    }

    /// Lists everything, page by page, and returns the version of the list.
    ///
    /// `take` parses a page. An error of it is one of the list.
    pub async fn list(
        &self,
        query: &Query,
        mut take: impl FnMut(&[u8]) -> Result<PageEnd, String>,
    ) -> Result<String, ApiError> {
        let what = format!("list {}", query.name);
        let (mut next, mut version, mut count, mut empty) = (None, None, 0, 0);
        let mut limit = query.page;
        loop {
            let bytes = match self.page(&what, query, limit, next.as_deref()).await {
                Err(ApiError::TooLarge(_)) if limit > 1 => {
                    limit /= 2;
                    continue;
                }
                page => page?,
            };
            let page = take(&bytes).map_err(|error| self.failed(&what, error))?;
            count += page.count;
            if count > query.limit {
                return Err(self.failed(&what, format!("more than {}", query.limit)));
            }
            empty = if page.count == 0 { empty + 1 } else { 0 };
            if empty > EMPTY_PAGES {
                return Err(self.failed(&what, format!("{empty} empty pages, and no end")));
            }
            let version = version.get_or_insert(page.version);
            next = page.next;
            if next.is_none() {
                return Ok(std::mem::take(version));
            }
        }
    }

    async fn page(
        &self,
        what: &str,
        query: &Query,
        limit: usize,
        next: Option<&str>,
    ) -> Result<Vec<u8>, ApiError> {
        let mut path = format!("{}?limit={limit}{}", query.path, query.selected());
        if let Some(next) = next {
            path.push_str("&continue=");
            path.push_str(&escaped(next));
        }
        let answer = async {
            let mut body = self.send(what, Method::GET, &path, None).await?;
            self.whole(what, &mut body, PAGE_LIMIT).await
        };
        timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| self.no_answer(what))?
    }

    /// What `parse` makes of what is at `path`, an object or what the API says of itself; `None` if there is nothing.
    pub async fn discover<T>(
        &self,
        path: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, ApiError> {
        let what = format!("read {path}");
        let answer = async {
            let mut body = self.send(&what, Method::GET, path, None).await?;
            self.whole(&what, &mut body, DISCOVERY_LIMIT).await
        };
        match timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| self.no_answer(&what))? {
            Ok(bytes) => parse(&bytes).map(Some).map_err(|error| self.failed(&what, error)),
            Err(ApiError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Follows the objects from `version` on.
    pub async fn watch(&self, query: &Query, version: &str) -> Result<WatchStream, ApiError> {
        let what = format!("watch {}", query.name);
        let seconds = WATCH_SECONDS + random::below(WATCH_SECONDS as usize) as u64;
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={seconds}{}",
            query.path,
            escaped(version),
            query.selected()
        );
        let answer = self.send(&what, Method::GET, &path, None);
        let body = timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| self.no_answer(&what))??;
        let until = Instant::now() + Duration::from_secs(seconds) + WATCH_GRACE;
        Ok(WatchStream::new(format!("{what}: {}", self.endpoint()), body, until))
    }

    /// Changes conditions of a node by a strategic merge patch.
    pub async fn patch_status(&self, name: &NodeName, patch: String) -> Result<(), ApiError> {
        let what = format!("set the conditions of node {name}");
        let path = format!("/api/v1/nodes/{name}/status");
        self.patch(&what, &path, ("strategic-merge-patch", patch)).await
    }

    /// Changes the custom resource at `path`, or its `/status`, by a JSON merge patch (RFC 7396); one that has a
    /// `resourceVersion` is refused if the object has another one by now.
    pub async fn merge(&self, path: &str, patch: String) -> Result<(), ApiError> {
        self.patch(&format!("change {path}"), path, ("merge-patch", patch)).await
    }

    async fn patch(
        &self,
        what: &str,
        path: &str,
        patch: (&'static str, String),
    ) -> Result<(), ApiError> {
        let answer = self.send(what, Method::PATCH, path, Some(patch));
        timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| self.no_answer(what))?.map(drop)
    }

    /// The body of a successful answer.
    async fn send(
        &self,
        what: &str,
        method: Method,
        path: &str,
        patch: Option<(&'static str, String)>,
    ) -> Result<Body, ApiError> {
        let uri = format!("{}{path}", self.access.server.prefix);
        let mut request =
            Request::builder().method(method).uri(uri).header(ACCEPT, "application/json");
        if let Some(token) = self.access.token().map_err(failed_without_call)? {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value = value.map_err(|_| self.failed(what, "invalid token"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if let Some((kind, _)) = &patch {
            request = request.header(CONTENT_TYPE, format!("application/{kind}+json"));
        }
        let body = patch.map_or_else(Body::empty, |(_, text)| Body::new(text));
        let request = request.body(body).map_err(|error| self.failed(what, error.to_string()))?;
        let mut channel = self.channel.clone();
        let broken = |error: tonic::transport::Error| self.failed(what, broken(&error));
        poll_fn(|context| channel.poll_ready(context)).await.map_err(broken)?;
        let answer = channel.call(request).await.map_err(broken)?;
        let status = answer.status();
        let mut body = answer.into_body();
        if status == StatusCode::OK {
            return Ok(body);
        }
        let body = self.whole(what, &mut body, REFUSAL_LIMIT).await.unwrap_or_default();
        Err(self.refused(what, status, &object::refusal(&body)))
    }

    /// All bytes of a body.
    async fn whole(&self, what: &str, body: &mut Body, limit: usize) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::new();
        while let Some(more) = next_bytes(body).await.map_err(|error| self.failed(what, error))? {
            if bytes.len() + more.len() > limit {
                let why = format!("{what}: {}: more than {limit} bytes", self.endpoint());
                return Err(ApiError::TooLarge(why));
            }
            bytes.extend_from_slice(&more);
        }
        Ok(bytes)
    }

    fn refused(&self, what: &str, status: StatusCode, said: &str) -> ApiError {
        let code = status.as_u16();
        let fix = match code {
            401 => Some(
                "humanz-agent config # KUBECONFIG: is the token (or client certificate) this cluster's, and not expired?",
            ),
            403 => Some(
                "kubectl get clusterrole humanz -o yaml # give its account the role in packaging/daemonset-kubernetes.yaml \
                 (POLICY=kubernetes: policy-role.yaml, of the controller: controller.yaml)",
            ),
            _ => None,
        };
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        let why = format!("{what}: {}: status {status}{said}", self.endpoint());
        match code {
            404 => ApiError::Missing(why),
            409 => ApiError::Conflict(why),
            410 => ApiError::Expired(why),
            _ => ApiError::Failed(FailureReason { what: why, fix: fix.map(str::to_owned) }),
        }
    }

    fn failed(&self, what: &str, why: impl Into<FailureReason>) -> ApiError {
        ApiError::Failed(why.into().at(format_args!("{what}: {}", self.endpoint())))
    }

    fn no_answer(&self, what: &str) -> ApiError {
        self.failed(what, format!("no answer within {ANSWER_TIMEOUT:?}"))
    }
}

fn failed_without_call(why: String) -> ApiError {
    ApiError::Failed(why.into())
}
