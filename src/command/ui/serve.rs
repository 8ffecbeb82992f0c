//! Serves the page; its data comes from the agent's socket.

use std::convert::Infallible;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime;
use tokio::task::{JoinError, LocalSet, spawn_blocking};

use crate::api::http::{HttpRequest, JSON, Response};
use crate::api::http_server::{self, ClientConnection};
use crate::api::listen::Socket;
use crate::inspect::agent_socket;
use crate::settings::exit::{self, Exit};

/// Nothing from elsewhere, nothing in the page's text that could run, no frame around it.
const GUARD: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file of the page, as packaging/page.rs compresses it.
macro_rules! compressed {
    ($file:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".gz"))
    };
}

/// Where the page is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageAddress {
    Loopback(SocketAddr),
    Socket(PathBuf),
}

/// JSON for the page; else why that is not known.
pub type FindValue = Arc<dyn Fn() -> Result<Value, String> + Send + Sync>;

/// The same as text, that of a former look where one is being taken.
pub type FindText = Arc<dyn Fn() -> Result<Arc<[u8]>, String> + Send + Sync>;

/// JSON for words that were typed.
pub type ExplainPath = Arc<dyn Fn(&[&str]) -> Result<Value, String> + Send + Sync>;

/// Where the page's data comes from.
pub struct PageSources {
    /// The agent's socket.
    pub agent: PathBuf,
    /// Who connects to what.
    pub flows: FindValue,
    /// The pods of this host.
    pub pods: FindValue,
    /// Networks of tenants, groups, and who may reach what.
    pub tenants: FindText,
    /// Where packets between two ends are lost.
    pub explain: ExplainPath,
}

/// Serves the page at `place`; `ready` is called once clients can connect.
///
/// # Errors
/// The place cannot be had, or `ready` failed.
pub fn serve(
    place: &PageAddress,
    sources: PageSources,
    ready: impl FnOnce() -> Result<(), Exit>,
) -> Result<Infallible, Exit> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(anyhow::Error::from)?;
    let unavailable = |place: &dyn Display, error| {
        Exit::new(exit::UNAVAILABLE, format!("listen on {place}: {error}"))
    };
    LocalSet::new().block_on(&runtime, async {
        match place {
            PageAddress::Loopback(address) => {
                let listener = TcpListener::bind(address).await;
                let listener = listener.map_err(|error| unavailable(address, error))?;
                ready()?;
                let accept = async || Ok(listener.accept().await?.0);
                let respond = async move |stream: &mut TcpStream, request, _: &ClientConnection| {
                    let response = answer(&request, true, &sources).await;
                    http_server::write(stream, &request, &response).await
                };
                Ok(http_server::serve(accept, respond).await)
            }
            PageAddress::Socket(path) => {
                let unavailable = |error| unavailable(&path.display(), error);
                let socket = Socket::open(path).map_err(unavailable)?;
                let listener = socket.listener.try_clone().map_err(unavailable)?;
                let listener = UnixListener::from_std(listener).map_err(unavailable)?;
                ready()?;
                let accept = async || Ok(listener.accept().await?.0);
                let respond =
                    async move |stream: &mut UnixStream, request, _: &ClientConnection| {
                        let response = answer(&request, false, &sources).await;
                        http_server::write(stream, &request, &response).await
                    };
                Ok(http_server::serve(accept, respond).await)
            }
        }
    })
}

/// The response. `named`: the request must call this host by a name of its own.
async fn answer(request: &HttpRequest, named: bool, sources: &PageSources) -> Response {
    if named && !request.is_for_loopback() {
        return Response::text(403, "open this page by 127.0.0.1, [::1] or localhost");
    }
    let response = match request.path.as_str() {
        "/" => part(HTML, compressed!("page.html")),
        "/page.js" => part(SCRIPT, compressed!("page.js")),
        "/matrix.js" => part(SCRIPT, compressed!("matrix.js")),
        "/map.js" => part(SCRIPT, compressed!("map.js")),
        "/history.js" => part(SCRIPT, compressed!("history.js")),
        "/pods.js" => part(SCRIPT, compressed!("pods.js")),
        "/tenants.js" => part(SCRIPT, compressed!("tenants.js")),
        "/flows.js" => part(SCRIPT, compressed!("flows.js")),
        "/explain.js" => part(SCRIPT, compressed!("explain.js")),
        "/page.css" => part(STYLE, compressed!("page.css")),
        "/v1/explain" => {
            let Some(words) = request.explain.clone() else {
                return Response::text(403, "only this page asks that");
            };
            let explain = Arc::clone(&sources.explain);
            let words = move || explain(&words.split('\t').collect::<Vec<_>>());
            found(spawn_blocking(move || words().map(text)).await)
        }
        "/v1/tenants" => {
            let source = Arc::clone(&sources.tenants);
            found(spawn_blocking(move || source()).await)
        }
        path @ ("/v1/flows" | "/v1/pods") => {
            let source = if path == "/v1/pods" { &sources.pods } else { &sources.flows };
            let source = Arc::clone(source);
            found(spawn_blocking(move || source().map(text)).await)
        }
        path @ ("/v1/status" | "/v1/history" | "/v1/matrix") => {
            let (agent, path) = (sources.agent.clone(), path.to_owned());
            found(spawn_blocking(move || agent_socket::get(&agent, &path).map(text)).await)
        }
        _ => Response::text(404, "there is only /"),
    };
    Response { headers: GUARD, ..response }
}

fn part(media: &'static str, body: &[u8]) -> Response {
    Response { gzip: true, ..Response::new(200, media, body) }
}

fn text(value: Value) -> Arc<[u8]> {
    value.to_string().into_bytes().into()
}

fn found(found: Result<Result<Arc<[u8]>, String>, JoinError>) -> Response {
    match found {
        Ok(Ok(text)) => Response::shared(200, JSON, text),
        Ok(Err(why)) => Response::text(502, &why),
        Err(error) => Response::text(502, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, host: Option<&str>) -> Response {
        asked_to_explain(path, host, None)
    }

    fn asked_to_explain(path: &str, host: Option<&str>, explain: Option<&str>) -> Response {
        let (path, host) = (path.to_owned(), host.map(str::to_owned));
        let explain = explain.map(str::to_owned);
        let request = HttpRequest { path, host, head_only: false, explain };
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let sources = PageSources {
            agent: "/nonexistent".into(),
            flows: Arc::new(|| Err("FLOWS is off".to_owned())),
            pods: Arc::new(|| Err("the stores cannot be read".to_owned())),
            tenants: Arc::new(|| Err("the agent does not answer".to_owned())),
            explain: Arc::new(|words| Ok(words.into())),
        };
        runtime.block_on(answer(&request, true, &sources))
    }

    #[test]
    fn a_page_under_a_foreign_name_is_refused() {
        assert_eq!(asked("/", Some("127.0.0.1:8104")).status, 200);
        assert_eq!(asked("/", Some("evil.example:8104")).status, 403);
        assert_eq!(asked("/v1/status", None).status, 403);
    }

    #[test]
    fn a_page_from_elsewhere_gets_nothing_explained() {
        let status = |host, explain| asked_to_explain("/v1/explain", Some(host), explain).status;
        assert_eq!(status("localhost", None), 403, "as an image or a form of another page");
        assert_eq!(status("evil.example", Some("a b")), 403);
        let response = asked_to_explain("/v1/explain", Some("localhost"), Some("a/b\t10.0.0.1"));
        assert_eq!((response.status, &*response.body), (200, &br#"["a/b","10.0.0.1"]"#[..]));
    }

    #[test]
    fn without_an_agent_the_reason_is_shown() {
        let response = asked("/v1/status", Some("localhost"));
        let text = str::from_utf8(&response.body).unwrap();
        assert_eq!(response.status, 502);
        assert!(text.contains("no agent serves this host"), "{text}");
        assert_eq!(asked("/v1/flows", Some("localhost")).status, 502);
        assert_eq!(asked("/v1/pods", Some("localhost")).status, 502);
        assert_eq!(asked("/v1/tenants", Some("localhost")).status, 502);
        assert_eq!(asked("/v1/changes", Some("localhost")).status, 404);
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for text in [
            include_str!("page.html"),
            include_str!("page.js"),
            include_str!("matrix.js"),
            include_str!("map.js"),
            include_str!("history.js"),
            include_str!("pods.js"),
            include_str!("tenants.js"),
            include_str!("flows.js"),
            include_str!("explain.js"),
            include_str!("page.css"),
        ] {
            assert!(!text.contains("http://") && !text.contains("https://"), "{text}");
            assert!(!text.contains("innerHTML") && !text.contains("style="), "{text}");
        }
    }
}
