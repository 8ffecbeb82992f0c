//! The server: a thread with an event loop of its own, so that it answers also while the other
//! loops hang.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime;
use tokio::sync::{Semaphore, watch as latest};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{interval, timeout};

use crate::agent::shared_state::{SharedState, StatusServer};
use crate::api::answer::{Answer, Door, answer, json};
use crate::api::http::{self, MAX_BYTES, Parsed, Request, Response};
use crate::api::listen::{Listen, Socket};
use crate::api::reachability::matrix;
use crate::api::status;
use crate::settings::Settings;

/// Clients at once, at each door; others wait.
const CLIENTS: usize = 16;

/// Longest time for a request to come, and for a client to take what it is given.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket that could not be had, or that somebody removed, is made anew so often.
const AGAIN: Duration = Duration::from_secs(10);

/// The running server. Dropped, it stops, too, but nobody waits for that.
#[derive(Debug)]
struct Server {
    listen: latest::Sender<Listen>,
    thread: thread::JoinHandle<()>,
}

/// Starts the server. An address that cannot be had is logged and tried again.
///
/// # Errors
/// There can be no more threads, or no event loop.
pub fn start(shared: Arc<SharedState>, settings: &Settings) -> io::Result<Box<dyn StatusServer>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (listen, wanted) = latest::channel(Listen::of(settings));
    let thread = thread::Builder::new().name("local".into()).spawn(move || {
        LocalSet::new().block_on(&runtime, serve(shared, wanted));
    })?;
    Ok(Box::new(Server { listen, thread }))
}

impl StatusServer for Server {
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

async fn serve(shared: Arc<SharedState>, mut wanted: latest::Receiver<Listen>) {
    let mut doors = Doors::default();
    let mut tick = interval(AGAIN);
    loop {
        let listen = wanted.borrow_and_update().clone();
        doors.open(&shared, &listen);
        tokio::select! {
            _ = tick.tick() => {}
            moved = wanted.changed() => if moved.is_err() { return },
        }
    }
}

/// What is listened to now.
#[derive(Default)]
struct Doors {
    listen: Listen,
    socket: Option<Opened>,
    metrics: Option<Opened>,
    /// Why something is not listened to, as it was told.
    told: Vec<String>,
}

/// A door that is open as long as this lives.
struct Opened {
    task: JoinHandle<()>,
    socket: Option<Socket>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Doors {
    fn open(&mut self, shared: &Arc<SharedState>, listen: &Listen) {
        if self.listen.socket != listen.socket {
            self.socket = None;
        }
        if self.listen.metrics != listen.metrics {
            self.metrics = None;
        }
        self.listen.clone_from(listen);
        let lost = |opened: &Opened| opened.socket.as_ref().is_some_and(|found| !found.is_there());
        if self.socket.as_ref().is_some_and(lost) {
            self.socket = None;
        }
        let mut faults = Vec::new();
        if let (None, Some(path)) = (&self.socket, &listen.socket) {
            match open_socket(shared, path) {
                Ok(opened) => self.socket = Some(opened),
                Err(error) => faults.push(format!(
                    "listen on {}: {error}; humanz-agent status and others know less (SOCKET)",
                    path.display()
                )),
            }
        }
        if let (None, Some(address)) = (&self.metrics, listen.metrics) {
            match open_metrics(shared, address) {
                Ok(opened) => self.metrics = Some(opened),
                Err(error) => faults.push(format!("listen on {address} (METRICS_ADDR): {error}")),
            }
        }
        if self.told != faults {
            faults.iter().for_each(|fault| log::warn!("{fault}"));
            self.told = faults;
        }
    }
}

fn open_socket(shared: &Arc<SharedState>, path: &Path) -> io::Result<Opened> {
    let socket = Socket::open(path)?;
    let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
    let accept = async move || Ok(listener.accept().await?.0);
    let task = spawn_local(admit(Arc::clone(shared), Door::Socket, accept));
    Ok(Opened { task, socket: Some(socket) })
}

fn open_metrics(shared: &Arc<SharedState>, address: SocketAddr) -> io::Result<Opened> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let accept = async move || Ok(listener.accept().await?.0);
    let task = spawn_local(admit(Arc::clone(shared), Door::Loopback, accept));
    Ok(Opened { task, socket: None })
}

/// Lets clients in, some at once.
async fn admit<S>(shared: Arc<SharedState>, door: Door, accept: impl AsyncFn() -> io::Result<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let clients = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&clients).acquire_owned().await else { return };
        match accept().await {
            Ok(mut stream) => {
                let shared = Arc::clone(&shared);
                spawn_local(async move {
                    // What a client does not take or does not ask for is his loss.
                    let _gone = attend(&mut stream, &shared, door).await;
                    drop(place);
                });
            }
            Err(error) => rest(&error).await,
        }
    }
}

/// Out of file descriptors, most likely: that passes.
async fn rest(error: &io::Error) {
    log::debug!("accept a local client: {error}");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Serves one client, who may do as he likes.
async fn attend<S>(stream: &mut S, shared: &SharedState, door: Door) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match timeout(PATIENCE, request(stream)).await {
        Ok(Some(Ok(request))) => match answer(shared, door, &request.path) {
            Answer::Whole(response) => give(stream, &response.bytes()).await,
            Answer::Changes => follow(stream, shared).await,
            Answer::Matrix => give(stream, &json(&matrix(shared).await).bytes()).await,
        },
        Ok(Some(Err(refused))) => give(stream, &refused.bytes()).await,
        Ok(None) => Ok(()),
        Err(_) => give(stream, &Response::text(408, "no request came").bytes()).await,
    }
}

async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Result<Request, Response>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        match http::parse(&bytes) {
            Parsed::Whole(request) => return Some(Ok(request)),
            Parsed::Refused(response) => return Some(Err(response)),
            Parsed::Part => {}
        }
        let room = (MAX_BYTES - bytes.len()) as u64;
        if (&mut *stream).take(room).read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

async fn give(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(PIECE) {
        timeout(PATIENCE, stream.write_all(piece)).await??;
    }
    stream.shutdown().await
}

/// Bytes that a client must take within [`PATIENCE`].
const PIECE: usize = 64 << 10;

/// Writes every change from now on, one JSON object a line, until the client goes.
async fn follow<S>(stream: &mut S, shared: &SharedState) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut last = shared.journal.follow();
    let mut told = *last.borrow_and_update();
    timeout(PATIENCE, stream.write_all(&http::endless("application/x-ndjson", ""))).await??;
    let mut ignored = [0; 64];
    loop {
        tokio::select! {
            changed = last.changed() => if changed.is_err() { return Ok(()) },
            // The client has nothing to say, but the end of what it says is its end.
            read = stream.read(&mut ignored) => if read? == 0 { return Ok(()) },
        }
        let newest = *last.borrow_and_update();
        let mut lines = String::new();
        for entry in shared.journal.after(told) {
            if entry.number > told + 1 {
                let lost = serde_json::json!({ "lost": entry.number - told - 1 });
                lines.push_str(&format!("{lost}\n"));
            }
            told = entry.number;
            lines.push_str(&serde_json::to_string(&status::change(&entry))?);
            lines.push('\n');
        }
        told = told.max(newest);
        timeout(PATIENCE, stream.write_all(lines.as_bytes())).await??;
    }
}
