//! Says whether the controller works: in its log, once for each time, and on a socket for the probes of `ready`.

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Longest request that is read, in bytes.
const REQUEST: usize = 1024;

/// Longest time for one.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is in the way; nothing: it works.
#[derive(Debug, Default)]
pub struct Working(Mutex<WorkingState>);

#[derive(Debug, Default)]
struct WorkingState {
    is_whole: bool,
    follows: Option<String>,
    writes: Option<String>,
}

impl Working {
    /// How the API is followed.
    pub fn follows(&self, trouble: Option<String>, is_whole: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        note("custom resources are not followed now", &state.follows, &trouble);
        state.follows = trouble;
        if is_whole && !state.is_whole {
            log::info!("all custom resources are known");
        }
        state.is_whole = is_whole;
    }

    /// How the last round ended.
    pub fn writes(&self, trouble: Option<String>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        note("not everything could be written; this is tried again", &state.writes, &trouble);
        state.writes = trouble;
    }

    /// Why not everything is as it should be.
    fn trouble(&self) -> Option<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unread = (!state.is_whole).then(|| "custom resources have not been read".to_owned());
        state.follows.clone().or(unread).or_else(|| state.writes.clone())
    }
}

fn note(what: &str, before: &Option<String>, now: &Option<String>) {
    match (before, now) {
        (before, Some(why)) if before.as_ref() != Some(why) => log::error!("{what}: {why}"),
        (Some(_), None) => log::info!("ended: {what}"),
        _ => {}
    }
}

/// Listens at `path`, in place of one that is gone.
///
/// # Errors
/// Somebody answers there, as the agent of this host does at its own place.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let why = format!(
            "SOCKET={}: another process answers there; give this one another place",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers `/healthz` (it turns) and `/readyz` (it works) from now on. To be called in an event loop.
pub fn serve(listener: Option<UnixListener>, working: Arc<Working>) {
    let listener = listener.map(tokio::net::UnixListener::from_std);
    let Some(Ok(listener)) = listener else { return };
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let answered = timeout(PATIENCE, answer(stream, &working)).await;
                    log::trace!("answered: {answered:?}");
                }
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        }
    });
}

async fn answer(mut stream: UnixStream, working: &Working) -> io::Result<()> {
    let mut request = [0; REQUEST];
    let length = stream.read(&mut request).await?;
    let trouble = match request[..length].starts_with(b"GET /readyz ") {
        true => working.trouble(),
        false => None,
    };
    let code = if trouble.is_some() { "503 Service Unavailable" } else { "200 OK" };
    let text = trouble.unwrap_or_else(|| "ok".to_owned());
    stream.write_all(format!("HTTP/1.0 {code}\r\n\r\n{text}\n").as_bytes()).await?;
    stream.shutdown().await
}
