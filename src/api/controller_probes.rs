//! Answers the probes of the controller on its socket, with the HTTP server of the agent.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use tokio::net::{UnixListener, UnixStream};

use crate::api::http::{HttpRequest, Response};
use crate::api::http_server::{self, ClientConnection};
use crate::api::listen::Socket;
use crate::controller::Working;

/// Answers `/healthz` (its loop turns) and `/readyz` (it works). To be awaited in a `LocalSet`.
pub async fn serve(socket: Option<Socket>, working: Arc<Working>) -> Infallible {
    let Some(socket) = socket else { return pending().await };
    let listener = match socket.listener.try_clone().and_then(UnixListener::from_std) {
        Ok(listener) => listener,
        Err(error) => {
            log::error!("no probe is answered: {error}");
            return pending().await;
        }
    };
    let accept = async || Ok(listener.accept().await?.0);
    let respond =
        async move |stream: &mut UnixStream, request: HttpRequest, _: &ClientConnection| {
            http_server::write(stream, &request, &response(&request, &working)).await
        };
    http_server::serve(accept, respond).await
}

fn response(request: &HttpRequest, working: &Working) -> Response {
    match (request.path.as_str(), working.trouble()) {
        ("/readyz", Some(why)) => Response::text(503, &why),
        ("/readyz" | "/healthz", _) => Response::text(200, "ok"),
        _ => Response::text(404, "not found; there are /healthz and /readyz"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_depends_on_the_state_and_liveness_does_not() {
        let status = |working: &Working, path: &str| {
            let request = HttpRequest { path: path.to_owned(), ..HttpRequest::default() };
            response(&request, working).status
        };
        let working = Working::default();
        assert_eq!(
            ["/readyz", "/healthz", "/x"].map(|path| status(&working, path)),
            [503, 200, 404]
        );
        working.follows(None, true);
        assert_eq!(status(&working, "/readyz"), 200);
        working.writes(Some("etcd does not answer".to_owned()));
        assert_eq!(["/readyz", "/healthz"].map(|path| status(&working, path)), [503, 200]);
    }
}
