//! The server of the page: a thread for each of a few clients, and the agent's socket behind it.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::api::http::{self, JSON, MAX_BYTES, Parsed, Request, Response};
use crate::api::listen::Socket;
use crate::inspect::agent_socket;
use crate::settings::exit::{self, Exit};

use crate::command::ui::Place;

/// Clients at once; more are turned away.
const CLIENTS: usize = 16;

/// Longest silence of a client.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nothing from elsewhere, nothing in the page's text that could run, no frame host it.
const GUARD: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n";

/// Serves the page at `place`; `ready` is called once clients are let in. `agent`: its socket.
///
/// # Errors
/// The place cannot be had, or `ready` failed.
pub fn serve(
    place: &Place,
    agent: &Path,
    ready: impl FnOnce() -> Result<(), Exit>,
) -> Result<Infallible, Exit> {
    let clients = Arc::new(AtomicUsize::new(0));
    match place {
        Place::Loopback(address) => {
            let unavailable =
                |error| Exit::new(exit::UNAVAILABLE, format!("listen on {address}: {error}"));
            let listener = TcpListener::bind(address).map_err(unavailable)?;
            ready()?;
            admit(&clients, agent, true, || {
                let stream = listener.accept()?.0;
                limit(&stream, TcpStream::set_read_timeout, TcpStream::set_write_timeout)?;
                Ok(stream)
            })
        }
        Place::Socket(path) => {
            let unavailable = |error| {
                Exit::new(exit::UNAVAILABLE, format!("listen on {}: {error}", path.display()))
            };
            let socket = Socket::open(path).map_err(unavailable)?;
            socket.listener.set_nonblocking(false).map_err(unavailable)?;
            ready()?;
            admit(&clients, agent, false, || {
                let stream = socket.listener.accept()?.0;
                limit(&stream, UnixStream::set_read_timeout, UnixStream::set_write_timeout)?;
                Ok(stream)
            })
        }
    }
}

/// How a stream is told how long to wait.
type Limit<S> = fn(&S, Option<Duration>) -> io::Result<()>;

fn limit<S>(stream: &S, read: Limit<S>, write: Limit<S>) -> io::Result<()> {
    read(stream, Some(PATIENCE))?;
    write(stream, Some(PATIENCE))
}

/// Lets clients in, for ever.
fn admit<S: Read + Write + Send + 'static>(
    clients: &Arc<AtomicUsize>,
    agent: &Path,
    named: bool,
    accept: impl Fn() -> io::Result<S>,
) -> ! {
    loop {
        let Ok(mut stream) = accept() else {
            // Out of file descriptors, most likely: that passes.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if clients.load(Ordering::Relaxed) >= CLIENTS {
            continue;
        }
        clients.fetch_add(1, Ordering::Relaxed);
        let (agent, counted) = (agent.to_owned(), Arc::clone(clients));
        let served = move || {
            let response = request(&mut stream).map(|asked| match asked {
                Ok(request) => answer(&request, named, &agent),
                Err(refused) => refused,
            });
            // Who went away needs no answer.
            let _gone = response.map(|response| stream.write_all(&response.bytes()));
            counted.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().spawn(served).is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What a client asks for, or why he gets nothing; `None`: he went.
fn request(stream: &mut impl Read) -> Option<Result<Request, Response>> {
    let mut bytes = Vec::with_capacity(1024);
    let mut piece = [0; 1024];
    loop {
        match http::parse(&bytes) {
            Parsed::Whole(request) => return Some(Ok(request)),
            Parsed::Refused(response) => return Some(Err(response)),
            Parsed::Part => {}
        }
        let room = piece.len().min(MAX_BYTES - bytes.len());
        match stream.read(&mut piece[..room]) {
            Ok(0) | Err(_) => return None,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
        }
    }
}

/// The answer. `named`: the client must call this host by a name of its own.
fn answer(request: &Request, named: bool, agent: &Path) -> Response {
    if named && !request.host.as_deref().is_some_and(is_own_name) {
        return Response::text(403, "open this page by 127.0.0.1, [::1] or localhost");
    }
    let part = |media, text: &'static str| Response::new(200, media, text);
    let response = match request.path.as_str() {
        "/" => part("text/html; charset=utf-8", include_str!("page.html")),
        "/page.js" => part("text/javascript; charset=utf-8", include_str!("page.js")),
        "/matrix.js" => part("text/javascript; charset=utf-8", include_str!("matrix.js")),
        "/page.css" => part("text/css; charset=utf-8", include_str!("page.css")),
        path @ ("/v1/status" | "/v1/matrix") => match agent_socket::get(agent, path) {
            Ok(value) => Response::new(200, JSON, value.to_string()),
            Err(why) => Response::text(502, &why),
        },
        _ => Response::text(404, "there is only /"),
    };
    Response { headers: GUARD, ..response }
}

/// A name that no name server can give to somebody else's page: with another one, that page could
/// read this one through the reader's browser (DNS rebinding).
fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, host: Option<&str>) -> Response {
        let request = Request { path: path.to_owned(), host: host.map(str::to_owned) };
        answer(&request, true, Path::new("/nonexistent"))
    }

    #[test]
    fn a_page_of_somebody_elses_name_is_told_nothing() {
        for host in ["127.0.0.1:8104", "localhost", "LOCALHOST:80", "[::1]:8104", "127.9.9.9"] {
            assert_eq!(asked("/", Some(host)).status, 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8104",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "localhost.evil",
            "",
        ] {
            assert_eq!(asked("/", Some(host)).status, 403, "{host}");
        }
        assert_eq!(asked("/v1/status", None).status, 403);
    }

    #[test]
    fn without_an_agent_the_reason_is_told() {
        let response = asked("/v1/status", Some("localhost"));
        let text = String::from_utf8(response.body).unwrap();
        assert_eq!(response.status, 502);
        assert!(text.contains("no agent serves this host"), "{text}");
        assert_eq!(asked("/v1/changes", Some("localhost")).status, 404);
    }

    #[test]
    fn the_page_brings_everything_along() {
        for text in [
            include_str!("page.html"),
            include_str!("page.js"),
            include_str!("matrix.js"),
            include_str!("page.css"),
        ] {
            assert!(!text.contains("http://") && !text.contains("https://"), "{text}");
            assert!(!text.contains("innerHTML") && !text.contains("style="), "{text}");
        }
    }
}
