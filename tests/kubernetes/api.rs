//! A small API server: nodes, pods, namespaces and policies, as kubernetes.io documents list (limit, continue), watch (bookmarks, 410
//! Gone), the status of a node, bearer tokens and client certificates; and its failures.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request, Response, Uri};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::certificates::Certificates;
use crate::rbac::Rule;
use crate::state::{NODES, State, path_of};
use crate::support::Node;

use crate::support::process::lock;

pub use crate::state::Mode;

pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 6443;
pub const URL: &str = "https://192.0.2.2:6443";
pub const TOKEN: &str = "the-first-token";

struct Server {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

pub struct Api {
    pub certificates: Certificates,
    place: Node,
    server: Arc<Server>,
    running: Mutex<Option<Running>>,
}

struct Running {
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Api {
    /// Runs on `place`, which has [`ADDRESS`].
    pub fn start(place: &Node) -> Self {
        let api = Self::stopped(place);
        api.run();
        api
    }

    pub fn stopped(place: &Node) -> Self {
        let mut state = State { version: 100, may_patch: true, ..State::default() };
        state.tokens.insert(TOKEN.into());
        let (changed, _) = watch::channel(0);
        Self {
            certificates: Certificates::new(&ADDRESS.to_string()),
            place: place.clone(),
            server: Arc::new(Server { state: Mutex::new(state), changed }),
            running: Mutex::default(),
        }
    }

    /// Begins to listen, with all it knew.
    pub fn run(&self) {
        let address = SocketAddr::from((ADDRESS, PORT));
        let listener = self.place.with_namespace(|namespace| {
            namespace.on_its_network(|| {
                crate::support::eventually("a free port", Duration::from_secs(20), || {
                    TcpListener::bind(address).map_err(|error| error.to_string())
                })
            })
        });
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (server, tls) = (Arc::clone(&self.server), self.tls());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, tls, server) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        *lock(&self.running) = Some(Running { stop, thread });
    }

    /// Is gone, with all connections.
    pub fn stop(&self) {
        if let Some(Running { stop, thread }) = lock(&self.running).take() {
            let _ = stop.send(());
            thread.join().unwrap();
        }
    }

    fn tls(&self) -> TlsAcceptor {
        let der = |file: &str| {
            CertificateDer::from_pem_slice(self.certificates.text(file).as_bytes()).unwrap()
        };
        let key = PrivateKeyDer::from_pem_slice(self.certificates.text("server.key").as_bytes());
        let mut roots = RootCertStore::empty();
        roots.add(der("ca.pem")).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
        let clients = clients.allow_unauthenticated().build().unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![der("server.pem")], key.unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut lock(&self.server.state));
        self.server.changed.send_modify(|count| *count += 1);
        result
    }

    /// Creates or changes an object, which its definition must take.
    pub fn put(&self, object: Value) {
        self.change(|state| state.put(object));
    }

    /// The same as with a definition that has no schema.
    pub fn put_unchecked(&self, object: Value) {
        self.change(|state| state.put_unchecked(object));
    }

    /// Changes a node that is there.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.edit_of("Node", name, change);
    }

    /// Changes an object that is there; `key` is `namespace/name`.
    pub fn edit_of(&self, kind: &str, key: &str, change: impl FnOnce(&mut Value)) {
        let mut object = lock(&self.server.state).get(path_of(kind), key).unwrap();
        change(&mut object);
        self.put(object);
    }

    /// Deletes a node.
    pub fn delete(&self, name: &str) {
        self.delete_of("Node", name);
    }

    pub fn delete_of(&self, kind: &str, key: &str) {
        self.change(|state| state.delete(path_of(kind), key));
    }

    /// Serves the custom resource of `kind` from now on, or no longer.
    pub fn serve_custom(&self, kind: &str, serves: bool) {
        self.serve_path(path_of(kind), serves);
    }

    /// The same for one version of a resource.
    pub fn serve_path(&self, path: &'static str, serves: bool) {
        self.change(|state| {
            if serves {
                state.custom.insert(path);
            } else {
                state.custom.remove(path);
                state.broken += 1;
            }
        });
    }

    /// An object, if it is there.
    pub fn get(&self, kind: &str, key: &str) -> Option<Value> {
        lock(&self.server.state).get(path_of(kind), key)
    }

    pub fn node(&self, name: &str) -> Value {
        lock(&self.server.state).get(NODES, name).unwrap()
    }

    /// Permits what the role in `manifest` permits, instead of everything.
    pub fn enforce(&self, rules: Vec<Rule>) {
        self.change(|state| state.rules = Some(rules));
    }

    /// Other objects change: versions advance without an event for watches of nodes.
    pub fn pass_versions(&self, count: u64) {
        self.change(|state| state.version += count);
    }

    /// Sends a bookmark to every watch.
    pub fn bookmark(&self) {
        self.change(|state| state.bookmarks += 1);
    }

    /// Forgets all history.
    pub fn compact(&self) {
        self.change(State::compact);
    }

    /// Compacts all history, except for running watches, which have received it.
    pub fn compact_keeping_watches(&self) {
        self.change(|state| {
            state.version += 1;
            state.compacted = state.version;
            state.spared = state.version;
            state.events.clear();
        });
    }

    /// Breaks every watch in the middle.
    pub fn break_watches(&self) {
        self.change(|state| state.broken += 1);
    }

    pub fn set_mode(&self, mode: Mode) {
        self.change(|state| {
            state.mode = mode;
            state.broken += 1;
        });
    }

    /// The resource of `kind` alone behaves like that.
    pub fn set_mode_of(&self, kind: &str, mode: Mode) {
        self.change(|state| {
            state.modes.insert(path_of(kind), mode);
            state.broken += 1;
        });
    }

    pub fn refuse_by_status(&self) {
        self.change(|state| state.refuses_by_status = true);
    }

    pub fn forbid_patches(&self) {
        self.change(|state| state.may_patch = false);
    }

    pub fn allow_patches(&self) {
        self.change(|state| state.may_patch = true);
    }

    pub fn compact_between_pages(&self) {
        self.change(|state| state.compacts_between_pages = true);
    }

    /// Only this token is good from now on; connections stay.
    pub fn set_token(&self, token: &str) {
        self.change(|state| state.tokens = BTreeSet::from([token.to_owned()]));
    }

    /// `METHOD path?query` of every request so far.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.server.state).requests.clone()
    }

    /// Lists that were asked for from their beginning.
    pub fn lists(&self) -> usize {
        let is_list = |line: &&String| line.contains("/nodes?limit") && !line.contains("continue");
        self.requests().iter().filter(is_list).count()
    }

    pub fn patches(&self) -> usize {
        self.requests().iter().filter(|line| line.starts_with("PATCH")).count()
    }

    pub fn watches(&self) -> usize {
        self.requests().iter().filter(|line| line.contains("/nodes?watch=1")).count()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, server: Arc<Server>) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(connection(stream, tls.clone(), Arc::clone(&server)));
    }
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, server: Arc<Server>) {
    let Ok(stream) = tls.accept(stream).await else { return };
    let is_known = stream.get_ref().1.peer_certificates().is_some();
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, is_known, Arc::clone(&server)));
    }
}

fn query(uri: &Uri) -> BTreeMap<String, String> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), unescaped(value))).collect()
}

fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push(char::from(u8::from_str_radix(&part[..2], 16).unwrap()));
        plain.push_str(&part[2..]);
    }
    plain
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code})
}

fn reply(respond: &mut SendResponse<tonic::codegen::Bytes>, code: u16, body: impl Into<Vec<u8>>) {
    let head = Response::builder().status(code).header("content-type", "application/json");
    if let Ok(mut stream) = respond.send_response(head.body(()).unwrap(), false) {
        let _ = stream.send_data(body.into().into(), true);
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<tonic::codegen::Bytes>,
    is_known: bool,
    server: Arc<Server>,
) {
    let (head, mut body) = request.into_parts();
    let token = head.headers.get("authorization").and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let (mode, is_allowed, may_patch) = {
        let mut state = lock(&server.state);
        state.requests.push(format!("{} {}", head.method, head.uri));
        (state.mode_of(head.uri.path()), is_known || state.tokens.contains(token), state.may_patch)
    };
    if !is_allowed {
        return reply(&mut respond, 401, status(401, "Unauthorized", "Unauthorized").to_string());
    }
    let forbidden = |what: &str| {
        let message = format!(
            "{what} is forbidden: User \"system:serviceaccount:kube-system:humanz\" cannot do that"
        );
        status(403, "Forbidden", &message).to_string()
    };
    match mode {
        Mode::Forbidden => return reply(&mut respond, 403, forbidden("nodes")),
        Mode::Silent => return std::future::pending().await,
        Mode::Garbage => return reply(&mut respond, 200, "{\"kind\":\"NodeList\",<html>\n"),
        Mode::Huge => {
            let mut huge =
                b"{\"kind\":\"NodeList\",\"metadata\":{\"resourceVersion\":\"1\"},\"items\":["
                    .to_vec();
            huge.resize(40_000_000, b' ');
            return reply(&mut respond, 200, huge);
        }
        Mode::Well | Mode::Brief | Mode::Bookmark | Mode::Endless => {}
    }
    let query = query(&head.uri);
    let object = lock(&server.state).object_at(head.uri.path());
    if let Some((path, key, is_status)) = object {
        let verb = if head.method == Method::PATCH { "patch" } else { "get" };
        if !lock(&server.state).permits_object(verb, head.uri.path()) {
            return reply(&mut respond, 403, forbidden(head.uri.path()));
        }
        let answered = match verb {
            "get" => lock(&server.state).get(path, &key).ok_or((404, "not found")),
            _ => {
                assert_eq!(head.headers["content-type"], "application/merge-patch+json");
                let patch = serde_json::from_slice(&whole(&mut body).await).unwrap();
                let done = lock(&server.state).merge((path, &key, is_status), &patch);
                server.changed.send_modify(|count| *count += 1);
                done
            }
        };
        return match answered {
            Ok(object) => reply(&mut respond, 200, object.to_string()),
            Err((code, why)) => reply(&mut respond, code, status(code, why, why).to_string()),
        };
    }
    if head.method == Method::PATCH {
        if !may_patch {
            return reply(&mut respond, 403, forbidden("nodes/status"));
        }
        assert_eq!(head.headers["content-type"], "application/strategic-merge-patch+json");
        let text = whole(&mut body).await;
        let name = head.uri.path().strip_prefix("/api/v1/nodes/").unwrap().strip_suffix("/status");
        lock(&server.state).patch(name.unwrap(), &serde_json::from_slice(&text).unwrap());
        server.changed.send_modify(|count| *count += 1);
        return reply(&mut respond, 200, "{}");
    }
    let is_resource = query.contains_key("limit");
    let verb = match query.contains_key("watch") {
        true => "watch",
        false if is_resource => "list",
        false => "get",
    };
    let (path, described, permitted) = {
        let (state, path) = (lock(&server.state), head.uri.path());
        (state.serves(path), state.describes(path), state.permits(verb, path))
    };
    if !permitted {
        let resource = head.uri.path().rsplit('/').next().unwrap_or_default();
        return reply(&mut respond, 403, forbidden(resource));
    }
    if let ("get", true, Some(said)) = (verb, permitted, described) {
        return reply(&mut respond, 200, said.to_string());
    }
    let Some(path) = path else {
        return reply(&mut respond, 404, status(404, "NotFound", "not found").to_string());
    };
    if verb == "watch" {
        return follow(&server, path, &query, respond, mode).await;
    }
    if mode == Mode::Endless {
        let metadata = json!({"resourceVersion": "100", "continue": "again"});
        let list =
            json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": []});
        return reply(&mut respond, 200, list.to_string());
    }
    let list = lock(&server.state).list(path, &query);
    match list {
        Ok(list) => reply(&mut respond, 200, list.to_string()),
        Err((code, why)) => reply(&mut respond, code, status(code, "Expired", why).to_string()),
    }
}

async fn whole(body: &mut RecvStream) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some(Ok(bytes)) = body.data().await {
        text.extend_from_slice(&bytes);
    }
    text
}

async fn follow(
    server: &Server,
    path: &'static str,
    query: &BTreeMap<String, String>,
    mut respond: SendResponse<tonic::codegen::Bytes>,
    mode: Mode,
) {
    let mut changed = server.changed.subscribe();
    let mut from: u64 = query["resourceVersion"].parse().unwrap();
    let (broken, mut bookmarks, by_status) = {
        let state = lock(&server.state);
        (state.broken, state.bookmarks, state.refuses_by_status)
    };
    let too_old = || status(410, "Expired", "too old resource version");
    if by_status && from < lock(&server.state).compacted {
        return reply(&mut respond, 410, too_old().to_string());
    }
    let head = Response::builder().status(200).header("content-type", "application/json");
    let Ok(mut stream) = respond.send_response(head.body(()).unwrap(), false) else { return };
    if mode == Mode::Brief {
        let _ = stream.send_data(tonic::codegen::Bytes::new(), true);
        return;
    }
    let mut send =
        |event: Value, ends: bool| stream.send_data(format!("{event}\n").into(), ends).is_ok();
    if mode == Mode::Bookmark {
        send(lock(&server.state).bookmark(path), true);
        return;
    }
    let mut is_new = true;
    loop {
        let (events, breaks) = {
            let state = lock(&server.state);
            if from < state.compacted && (state.spared != state.compacted || is_new) {
                send(json!({"type": "ERROR", "object": too_old()}), true);
                return;
            }
            let mut events = state.events(path, query, from);
            from = state.events.last().map_or(from, |event| from.max(event.version));
            let wants = query.get("allowWatchBookmarks").is_some_and(|value| value == "true");
            if wants && state.bookmarks > bookmarks {
                bookmarks = state.bookmarks;
                from = state.version;
                events.push(state.bookmark(path));
            }
            (events, state.broken > broken)
        };
        is_new = false;
        for event in events {
            if !send(event, false) {
                return;
            }
        }
        if breaks {
            let _ = stream.send_data("{\"type\":\"ADDED\",\"object\":{\"metad".into(), false);
            tokio::time::sleep(Duration::from_millis(20)).await;
            return stream.send_reset(h2::Reason::INTERNAL_ERROR);
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}
