//! Which answer a path gets.

use std::fmt::Write as _;

use serde::Serialize;

use crate::agent::readiness::not_ready;
use crate::agent::shared_state::SharedState;
use crate::api::http::{JSON, Response, TEXT};
use crate::api::metrics::metrics;
use crate::api::metrics::page::MEDIA;
use crate::api::status;

/// What a client gets.
#[derive(Debug)]
pub enum Answer {
    /// All of it at once.
    Whole(Response),
    /// Every change from now on, until the client goes.
    Changes,
    /// What the other hosts told: etcd is asked.
    Matrix,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Who may open the socket: root.
    Socket,
    /// Any process of this host.
    Loopback,
}

/// The answer to a GET of `path`.
pub fn answer(shared: &SharedState, door: Door, path: &str) -> Answer {
    Answer::Whole(match (path, door) {
        ("/healthz", _) => health(shared),
        ("/readyz", _) => readiness(shared),
        ("/metrics", _) => Response::new(200, MEDIA, metrics(shared)),
        ("/v1/status", Door::Socket) => json(&status::status(shared)),
        ("/v1/changes", Door::Socket) => return Answer::Changes,
        ("/v1/matrix", Door::Socket) => return Answer::Matrix,
        _ => Response::text(
            404,
            "there is /metrics, /healthz, /readyz; on the socket /v1/status, /v1/changes and /v1/matrix, too",
        ),
    })
}

/// An object.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => Response::new(200, JSON, text + "\n"),
        Err(error) => Response::text(500, &error.to_string()),
    }
}

/// 200 while every loop turns; else 503 and which does not. What it waits for (etcd, a peer) is no
/// reason: a restart would not help.
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

/// 200 while pods can be plugged in: plugin and CNI configuration are there, and all the rest was made.
fn readiness(shared: &SharedState) -> Response {
    let Some(known) = shared.snapshot() else {
        return Response::text(503, "not ready: nothing was looked at yet");
    };
    if let Some(why) = not_ready(shared, &known) {
        return Response::text(503, &format!("not ready: {why}"));
    }
    Response::text(200, "ready")
}
