//! Serves the HTTP clients of one listener, a few at once, in a `LocalSet`.

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::api::http::{self, MAX_BYTES, Parsed, Request, Response};

/// Clients at once, at each listener; others wait.
const CLIENTS: usize = 16;

/// Longest time for a request to arrive, and for a client to take a piece of its response.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes that a client must take within [`PATIENCE`].
const PIECE: usize = 64 << 10;

/// Accepts clients for ever; `respond` writes the response to each request.
pub async fn serve<S, R>(accept: impl AsyncFn() -> io::Result<S>, respond: R) -> Infallible
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    R: AsyncFn(&mut S, Request) -> io::Result<()> + 'static,
{
    let (clients, respond) = (Arc::new(Semaphore::new(CLIENTS)), Rc::new(respond));
    loop {
        let place = Arc::clone(&clients).acquire_owned().await.expect("it is never closed");
        match accept().await {
            Ok(mut stream) => {
                let respond = Rc::clone(&respond);
                spawn_local(async move {
                    // A client that went away needs no response.
                    let _gone = serve_client(&mut stream, &*respond).await;
                    drop(place);
                });
            }
            // Out of file descriptors, most likely: that passes.
            Err(error) => {
                log::debug!("accept a local client: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_client<S, R>(stream: &mut S, respond: &R) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncFn(&mut S, Request) -> io::Result<()>,
{
    match timeout(PATIENCE, read_request(stream)).await {
        Ok(Some(Ok(request))) => respond(stream, request).await,
        Ok(Some(Err(refused))) => write(stream, &refused).await,
        Ok(None) => Ok(()),
        Err(_) => write(stream, &Response::text(408, "no request came")).await,
    }
}

/// `None`: the client went away.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Result<Request, Response>> {
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

/// Writes `response` and ends the connection.
///
/// # Errors
/// The client went away, or does not read.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), response: &Response) -> io::Result<()> {
    for piece in response.bytes().chunks(PIECE) {
        timeout(PATIENCE, stream.write_all(piece)).await??;
    }
    stream.shutdown().await
}
