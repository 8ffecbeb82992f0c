//! The agent's HTTP server: a thread with an event loop of its own, which answers while the other loops
//! hang.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch as latest;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{interval, timeout};

use crate::agent::shared_state::{SharedState, StatusServer};
use crate::api::answer::{Answer, Listener, answer, json};
use crate::api::http::{self, HttpRequest, Response};
use crate::api::http_server::{self, ClientConnection, PATIENCE};
use crate::api::listen::{Listen, Socket};
use crate::api::reachability::reachability;
use crate::api::status::{self, ChangeLine};
use crate::flows::reply::DropLine;
use crate::netlink::nflog::LoggedPacket;
use crate::os::threads;
use crate::settings::Settings;

/// Time between two attempts to open a listener, or to open again a socket that was removed.
const RETRY: Duration = Duration::from_secs(10);

/// The running server. Dropped, it stops, too, but the caller does not wait for that.
#[derive(Debug)]
struct RunningServer {
    listen: latest::Sender<Listen>,
    thread: thread::JoinHandle<()>,
}

/// Starts the server, and waits until its listeners are open: who starts a unit asks it as soon as it is ready. An
/// address that cannot be had is logged and tried again.
///
/// # Errors
/// There can be no more threads, or no event loop.
pub fn start(shared: Arc<SharedState>, settings: &Settings) -> io::Result<Box<dyn StatusServer>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (listen, wanted) = latest::channel(Listen::of(settings));
    let (opened, was_opened) = channel();
    let thread = threads::spawn("local", move || {
        LocalSet::new().block_on(&runtime, serve(shared, wanted, opened));
    })?;
    // A thread that ended will not listen.
    let _ended = was_opened.recv();
    Ok(Box::new(RunningServer { listen, thread }))
}

impl StatusServer for RunningServer {
    fn move_to(&self, settings: &Settings) {
        let listen = Listen::of(settings);
        self.listen.send_if_modified(|known| {
            let changed = *known != listen;
            *known = listen;
            changed
        });
    }

    fn stop(self: Box<Self>) {
        drop(self.listen);
        // If it panicked, that was reported where it happened.
        drop(self.thread.join());
    }
}

async fn serve(shared: Arc<SharedState>, mut wanted: latest::Receiver<Listen>, opened: Sender<()>) {
    let mut listeners = Listeners::default();
    let mut tick = interval(RETRY);
    loop {
        let listen = wanted.borrow_and_update().clone();
        listeners.open(&shared, &listen);
        // Only the start waits.
        let _nobody_waits = opened.send(());
        tokio::select! {
            _ = tick.tick() => {}
            moved = wanted.changed() => if moved.is_err() { return },
        }
    }
}

#[derive(Default)]
struct Listeners {
    listen: Listen,
    socket: Option<OpenListener>,
    metrics: Option<OpenListener>,
    /// Why a listener could not be opened, as logged last.
    failures: Vec<String>,
}

/// Open until it is dropped.
struct OpenListener {
    task: JoinHandle<Infallible>,
    socket: Option<Socket>,
}

impl Drop for OpenListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listeners {
    fn open(&mut self, shared: &Arc<SharedState>, listen: &Listen) {
        if self.listen.socket != listen.socket {
            self.socket = None;
        }
        if self.listen.metrics != listen.metrics {
            self.metrics = None;
        }
        self.listen.clone_from(listen);
        let lost =
            |opened: &OpenListener| opened.socket.as_ref().is_some_and(|found| !found.is_there());
        if self.socket.as_ref().is_some_and(lost) {
            self.socket = None;
        }
        let mut failures = Vec::new();
        if let (None, Some(path)) = (&self.socket, &listen.socket) {
            match open_socket(shared, path) {
                Ok(opened) => self.socket = Some(opened),
                Err(error) => failures.push(format!(
                    "listen on {}: {error}; humanz-agent status and other subcommands show less (SOCKET)",
                    path.display()
                )),
            }
        }
        if let (None, Some(address)) = (&self.metrics, listen.metrics) {
            match open_metrics(shared, address) {
                Ok(opened) => self.metrics = Some(opened),
                Err(error) => failures.push(format!("listen on {address} (METRICS_ADDR): {error}")),
            }
        }
        if self.failures != failures {
            failures.iter().for_each(|failure| log::warn!("{failure}"));
            self.failures = failures;
        }
    }
}

fn open_socket(shared: &Arc<SharedState>, path: &Path) -> io::Result<OpenListener> {
    let socket = Socket::open(path)?;
    let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
    let accept = async move || Ok(listener.accept().await?.0);
    let shared = Arc::clone(shared);
    let respond = async move |stream: &mut UnixStream,
                              request: HttpRequest,
                              connection: &ClientConnection| {
        respond(stream, &shared, Listener::Socket, &request, connection).await
    };
    let task = spawn_local(http_server::serve(accept, respond));
    Ok(OpenListener { task, socket: Some(socket) })
}

fn open_metrics(shared: &Arc<SharedState>, address: SocketAddr) -> io::Result<OpenListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let accept = async move || Ok(listener.accept().await?.0);
    let shared = Arc::clone(shared);
    let respond =
        async move |stream: &mut TcpStream, request: HttpRequest, connection: &ClientConnection| {
            respond(stream, &shared, Listener::Loopback, &request, connection).await
        };
    let task = spawn_local(http_server::serve(accept, respond));
    Ok(OpenListener { task, socket: None })
}

async fn respond<S>(
    stream: &mut S,
    shared: &SharedState,
    listener: Listener,
    request: &HttpRequest,
    connection: &ClientConnection,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match answer(shared, listener, request) {
        Answer::Whole(response) => http_server::write(stream, request, &response).await,
        Answer::Changes if connection.follow() => stream_changes(stream, shared).await,
        Answer::Drops(drops) if connection.follow() => stream_drops(stream, drops).await,
        Answer::Changes | Answer::Drops(_) => {
            let full = Response::text(503, "too many clients follow changes or drops already");
            http_server::write(stream, request, &full).await
        }
        Answer::Matrix => {
            let found = serde_json::json!(reachability(shared).await);
            http_server::write(stream, request, &json(&found)).await
        }
    }
}

/// Writes every denied packet from now on, one JSON object a line, until the client goes away or they are
/// not read any more.
async fn stream_drops<S>(stream: &mut S, mut drops: Receiver<LoggedPacket>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    timeout(PATIENCE, stream.write_all(&http::endless("application/x-ndjson", ""))).await??;
    let mut ignored = [0; 64];
    loop {
        let line = tokio::select! {
            packet = drops.recv() => match packet {
                Ok(packet) => DropLine::Packet(packet),
                Err(RecvError::Lagged(lost)) => DropLine::Lost { lost },
                Err(RecvError::Closed) => return Ok(()),
            },
            read = stream.read(&mut ignored) => if read? == 0 { return Ok(()) } else { continue },
        };
        let text = serde_json::to_string(&line)? + "\n";
        timeout(PATIENCE, stream.write_all(text.as_bytes())).await??;
    }
}

/// Writes every change from now on, one JSON object a line, until the client goes away.
async fn stream_changes<S>(stream: &mut S, shared: &SharedState) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut last = shared.journal.follow();
    let mut sent = *last.borrow_and_update();
    timeout(PATIENCE, stream.write_all(&http::endless("application/x-ndjson", ""))).await??;
    let mut ignored = [0; 64];
    loop {
        tokio::select! {
            changed = last.changed() => if changed.is_err() { return Ok(()) },
            // A client sends nothing more; the end of its stream is its end.
            read = stream.read(&mut ignored) => if read? == 0 { return Ok(()) },
        }
        let newest = *last.borrow_and_update();
        let mut lines = String::new();
        for entry in shared.journal.after(sent) {
            if entry.number > sent + 1 {
                push(&mut lines, &ChangeLine::Lost { lost: entry.number - sent - 1 })?;
            }
            sent = entry.number;
            push(&mut lines, &ChangeLine::Change(status::change(&entry)))?;
        }
        sent = sent.max(newest);
        timeout(PATIENCE, stream.write_all(lines.as_bytes())).await??;
    }
}

fn push(lines: &mut String, line: &ChangeLine) -> io::Result<()> {
    lines.push_str(&serde_json::to_string(line)?);
    lines.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Texts, parse, values_only};

    #[test]
    fn once_started_it_can_be_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let socket = path.to_str().unwrap().to_owned();
        let texts = Texts::from([("SUBNET_SOURCE", "static".to_owned()), ("SOCKET", socket)]);
        let settings = parse(&texts, values_only).unwrap();
        for _ in 0..20 {
            let shared = SharedState::new("h1".into(), "m1".into(), texts.clone());
            let server = start(Arc::new(shared), &settings).unwrap();
            std::os::unix::net::UnixStream::connect(&path).unwrap();
            server.stop();
            assert!(!path.exists());
        }
    }
}
