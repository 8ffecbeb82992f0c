//! Serves the HTTP clients of one listener, in a `LocalSet`.
//!
//! Every client is accepted at once. Where there are too many, the one that has been there longest goes:
//! a client that asks and reads is done in milliseconds, so that clients which hold their connection cost
//! only each other's.

mod connections;

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use crate::api::http::{self, HttpRequest, MAX_BYTES, ParsedRequest, Response};
use crate::api::http_server::connections::Connections;

pub use connections::ClientConnection;

/// Longest time for a request to arrive, and for a client to take a piece of its response.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Longest time for a client to take the whole response.
const LONGEST: Duration = Duration::from_secs(30);

/// Bytes that a client must take within [`PATIENCE`].
const PIECE: usize = 64 << 10;

/// Accepts clients for ever; `respond` writes the response to each request.
pub async fn serve<S, R>(accept: impl AsyncFn() -> io::Result<S>, respond: R) -> Infallible
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    R: AsyncFn(&mut S, HttpRequest, &ClientConnection) -> io::Result<()> + 'static,
{
    let (connections, respond) = (Rc::new(Connections::default()), Rc::new(respond));
    loop {
        match accept().await {
            Ok(mut stream) => {
                let (connection, respond) = (Connections::open(&connections), Rc::clone(&respond));
                let number = connection.number();
                let task = spawn_local(async move {
                    // A client that went away needs no response.
                    let _gone = serve_client(&mut stream, &*respond, &connection).await;
                });
                connections.served_by(number, task.abort_handle());
                // Its request may be there already: it is read before further clients are accepted.
                yield_now().await;
            }
            // Out of file descriptors, most likely: that passes.
            Err(error) => {
                log::debug!("accept a local client: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_client<S, R>(
    stream: &mut S,
    respond: &R,
    connection: &ClientConnection,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncFn(&mut S, HttpRequest, &ClientConnection) -> io::Result<()>,
{
    match timeout(PATIENCE, read_request(stream)).await {
        Ok(Some(Ok(request))) => respond(stream, request, connection).await,
        Ok(Some(Err(refused))) => write(stream, &HttpRequest::default(), &refused).await,
        Ok(None) => Ok(()),
        Err(_) => {
            write(stream, &HttpRequest::default(), &Response::text(408, "no request came")).await
        }
    }
}

/// `None`: the client went away.
async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
) -> Option<Result<HttpRequest, Response>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        match http::parse(&bytes) {
            ParsedRequest::Whole(request) => return Some(Ok(request)),
            ParsedRequest::Refused(response) => return Some(Err(response)),
            ParsedRequest::Part => {}
        }
        let room = (MAX_BYTES - bytes.len()) as u64;
        if (&mut *stream).take(room).read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Writes the `response` to `request` and ends the connection.
///
/// # Errors
/// The client went away, or does not read.
pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    request: &HttpRequest,
    response: &Response,
) -> io::Result<()> {
    let body = if request.head_only { &[] } else { &*response.body };
    let mut pieces = body.chunks(PIECE);
    // In one write: a short answer is one packet.
    let first = [&response.head(), pieces.next().unwrap_or_default()].concat();
    let pieces = async {
        for piece in [&*first].into_iter().chain(pieces) {
            timeout(PATIENCE, stream.write_all(piece)).await??;
        }
        stream.shutdown().await
    };
    timeout(LONGEST, pieces).await?
}
