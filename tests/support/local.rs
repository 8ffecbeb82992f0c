//! A client of the agent's API.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::node::Node;
use super::wait::{SOON, eventually};

pub const SOCKET: &str = "/run/humanz/agent.sock";

/// Connects from within the host.
pub fn connect(host: &Node) -> std::io::Result<UnixStream> {
    let stream = host.inside(|| UnixStream::connect(SOCKET))?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    Ok(stream)
}

/// Sends `bytes` and returns the whole reply.
pub fn send(host: &Node, bytes: &[u8]) -> String {
    let mut stream = connect(host).unwrap();
    // The server may close before the request is complete.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Status code and body.
pub fn get(host: &Node, path: &str) -> (u16, String) {
    let answer = send(host, format!("GET {path} HTTP/1.1\r\nHost: local\r\n\r\n").as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    assert_eq!(body.len(), length.parse::<usize>().unwrap(), "{head}");
    (code, body.to_owned())
}

pub fn status(host: &Node) -> Value {
    let (code, body) = get(host, "/v1/status");
    assert_eq!(code, 200, "{body}");
    let status: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
    for problem in status["problems"].as_array().into_iter().flatten() {
        let fix = problem["fix"].as_str().unwrap_or_default();
        assert!(!fix.is_empty(), "a problem without a fix: {problem:#}");
    }
    status
}

/// Something of this kind is wrong.
pub fn has_problem(status: &Value, kind: &str) -> bool {
    problems(status, kind).next().is_some()
}

/// The problems of this kind, in the order in which they are shown.
pub fn problems<'a>(status: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let problems = status["problems"].as_array().into_iter().flatten();
    problems.filter(move |problem| problem["kind"] == kind)
}

/// The first problem of this kind with that subject: `host h2`.
pub fn problem<'a>(status: &'a Value, kind: &str, subject: &str) -> Option<&'a Value> {
    problems(status, kind).find(|problem| problem["subject"] == subject)
}

/// The problem of this kind with that subject, once there is one.
pub fn wait_problem(host: &Node, kind: &str, subject: &str) -> Value {
    let what = format!("a problem {kind} with the subject {subject}");
    let status = status_when(host, &what, |status| problem(status, kind, subject).is_some());
    problem(&status, kind, subject).unwrap().clone()
}

/// The status, once `holds`.
pub fn status_when(host: &Node, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("{}: status: {what}", host.name()), 3 * SOON, || {
        let status = status(host);
        if holds(&status) { Ok(status) } else { Err(format!("{status:#}")) }
    })
}

/// The stream of changes from now on.
pub struct Changes(BufReader<UnixStream>);

impl Changes {
    pub fn follow(host: &Node) -> Self {
        let mut stream = connect(host).unwrap();
        stream.write_all(b"GET /v1/changes HTTP/1.1\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "no head came");
        }
        Self(reader)
    }

    /// The next one; `None` at the end.
    pub fn next_change(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))),
            Err(error) => panic!("no change came: {error}"),
        }
    }

    /// The next one whose `what` contains `text`.
    pub fn wait(&mut self, text: &str) -> Value {
        loop {
            let change = self.next_change().expect("the agent is there");
            if change["what"].as_str().is_some_and(|what| what.contains(text)) {
                return change;
            }
        }
    }
}
