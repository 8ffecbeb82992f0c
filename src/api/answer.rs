//! The response to each path.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json as object};
use tokio::sync::broadcast::Receiver;

use crate::agent::readiness::not_ready;
use crate::agent::shared_state::SharedState;
use crate::api::http::{HttpRequest, JSON, Response, TEXT};
use crate::api::metrics::metrics;
use crate::api::metrics::page::MEDIA;
use crate::api::status;
use crate::netlink::nflog::LoggedPacket;
use crate::policy::view::View;

#[derive(Debug)]
pub enum Answer {
    Whole(Response),
    /// A stream of every change from now on.
    Changes,
    /// A stream of every denied packet from now on.
    Drops(Receiver<LoggedPacket>),
    /// The reachability reports of all hosts, read from etcd.
    Matrix,
}

/// The listener that a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The socket: only root can open it.
    Socket,
    /// Any process of this host.
    Loopback,
}

/// The answer to a request.
pub fn answer(shared: &SharedState, listener: Listener, request: &HttpRequest) -> Answer {
    if listener == Listener::Loopback && !request.is_for_loopback() {
        return Answer::Whole(Response::text(
            403,
            "Host: must be localhost or a loopback address; a proxy sets it, see humanz-agent(8)",
        ));
    }
    Answer::Whole(match (request.path.as_str(), listener) {
        ("/healthz", _) => health(shared),
        ("/readyz", _) => readiness(shared),
        ("/metrics", _) => Response::new(200, MEDIA, metrics(shared)),
        ("/v1/status", Listener::Socket) => json(&status::status(shared)),
        ("/v1/settings", Listener::Socket) => json(&settings(shared)),
        ("/v1/policies", Listener::Socket) => policies(shared),
        ("/v1/changes", Listener::Socket) if !request.head_only => return Answer::Changes,
        ("/v1/history", Listener::Socket) => json(&*shared.history()),
        ("/v1/flows", Listener::Socket) => json(&shared.flows.reply()),
        ("/v1/drops", Listener::Socket) if !request.head_only => {
            match shared.flows.follow_drops() {
                Some(drops) => return Answer::Drops(drops),
                None => Response::text(503, "this agent does not read denied packets (FLOWS)"),
            }
        }
        ("/v1/matrix", Listener::Socket) => return Answer::Matrix,
        _ => Response::text(
            404,
            "there is /metrics, /healthz, /readyz; on the socket /v1/status, /v1/settings, /v1/policies, /v1/flows, \
             /v1/history, /v1/changes, /v1/drops and /v1/matrix, too",
        ),
    })
}

/// The settings that this host is served with, by variable, as text.
fn settings(shared: &SharedState) -> Value {
    object!({ "schema": 1, "settings": *shared.settings() })
}

/// Everything that is known of policies; without a view where they are off or not known yet.
#[derive(Serialize)]
struct PoliciesReply<'a> {
    schema: u32,
    on: bool,
    view: Option<&'a View>,
}

fn policies(shared: &SharedState) -> Response {
    let snapshot = shared.snapshot();
    let on = snapshot.as_ref().is_some_and(|known| known.settings.policy.is_some());
    let view = snapshot.as_ref().and_then(|known| known.policies.as_deref());
    json(&PoliciesReply { schema: 1, on, view })
}

pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => Response::new(200, JSON, text + "\n"),
        Err(error) => Response::text(500, &error.to_string()),
    }
}

/// 200 while every loop turns; else 503 and which does not. Waiting for etcd or a peer is healthy: a restart
/// would not help.
fn health(shared: &SharedState) -> Response {
    let mut text = String::new();
    let mut status = 200;
    for beat in shared.heartbeats() {
        let Some(since) = beat.since() else { continue };
        let hangs = since > beat.limit;
        status = if hangs { 503 } else { status };
        let (verdict, since) = (if hangs { "HANGS" } else { "ok" }, since.as_secs_f32());
        writeln!(
            text,
            "{} {verdict}: last beat {since:.1} s ago, limit {:?}",
            beat.name, beat.limit
        )
        .expect("a String takes everything");
    }
    Response::new(status, TEXT, text)
}

/// 200 while pods can be attached: plugin and CNI configuration exist, and a full reconcile succeeded.
fn readiness(shared: &SharedState) -> Response {
    let Some(known) = shared.snapshot() else {
        return Response::text(503, "not ready: no reconcile yet");
    };
    if let Some(why) = not_ready(shared, &known) {
        return Response::text(503, &format!("not ready: {why}"));
    }
    Response::text(200, "ready")
}
