//! Pure. A host asks another one for pods of a connectivity test, and what that answers.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::lease::records::value::{SCHEMA, json_within, to_json};
use crate::lease::records::{NodeName, RecordError};

/// Longest value, in bytes: two pods with two addresses each have 200.
const LIMIT: usize = 1024;

/// Pods of an answer …
const PODS: usize = 2;

/// … and the most addresses of each.
const ADDRESSES: usize = 2;

/// The key `$HUMANZ_PREFIX/connectivity/<host that asks>/<hostname>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRequest {
    pub from: NodeName,
    /// The revision that made its key: another request of the same host has another one.
    pub revision: i64,
}

/// The value of `$HUMANZ_PREFIX-connectivity/<hostname>/<host that asks>`, with an etcd lease of its own without
/// keep-alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestAnswer {
    schema: u32,
    pub state: TestPodsState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestPodsState {
    /// The request was read, and pods are being attached.
    Preparing,
    /// The addresses of each pod.
    Pods(Vec<Vec<IpAddr>>),
    /// This host holds pods for another host.
    Busy(NodeName),
    /// The settings refuse all tests.
    Off,
    /// No pod can be attached; the log of that host has the reason.
    Failed,
}

impl TestAnswer {
    pub fn new(state: TestPodsState) -> TestAnswer {
        TestAnswer { schema: SCHEMA, state }
    }

    /// # Errors
    /// [`RecordError`] if `value` is no such JSON object of at most 1 KiB. Without pods, or addresses of one, nothing could be
    /// tested.
    pub fn parse(value: &[u8]) -> Result<TestAnswer, RecordError> {
        let answer: TestAnswer = json_within(value, LIMIT)?;
        match &answer.state {
            TestPodsState::Pods(pods)
                if pods.len() != PODS
                    || pods.iter().any(|pod| !(1..=ADDRESSES).contains(&pod.len())) =>
            {
                Err(RecordError::Json(format!("not {PODS} pods with 1 to {ADDRESSES} addresses")))
            }
            _ => Ok(answer),
        }
    }

    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_back_as_written() {
        let pods = [&["10.244.1.2", "fd10::2"][..], &["10.244.1.3"]];
        let pods = pods.map(|pod| pod.iter().map(|text| text.parse().unwrap()).collect()).into();
        for (state, text) in [
            (TestPodsState::Preparing, r#"{"schema":1,"state":"preparing"}"#),
            (
                TestPodsState::Pods(pods),
                r#"{"schema":1,"state":{"pods":[["10.244.1.2","fd10::2"],["10.244.1.3"]]}}"#,
            ),
            (TestPodsState::Busy("h3".parse().unwrap()), r#"{"schema":1,"state":{"busy":"h3"}}"#),
            (TestPodsState::Off, r#"{"schema":1,"state":"off"}"#),
            (TestPodsState::Failed, r#"{"schema":1,"state":"failed"}"#),
        ] {
            let answer = TestAnswer::new(state);
            assert_eq!(answer.to_json(), text);
            assert_eq!(TestAnswer::parse(text.as_bytes()), Ok(answer));
        }
    }

    #[test]
    fn hostile_answers_are_refused() {
        let long = format!(r#"{{"schema":1,"state":"off","x":"{}"}}"#, "x".repeat(LIMIT));
        for bad in [
            "",
            "[]",
            r#"{"schema":2,"state":"off"}"#,
            r#"{"schema":1,"state":"sudo"}"#,
            r#"{"schema":1,"state":{"pods":[["10.0.0.0/8"]]}}"#,
            r#"{"schema":1,"state":{"pods":[]}}"#,
            r#"{"schema":1,"state":{"pods":[[],[]]}}"#,
            r#"{"schema":1,"state":{"pods":[["10.0.0.1"]]}}"#,
            r#"{"schema":1,"state":{"pods":[["10.0.0.1"],[]]}}"#,
            r#"{"schema":1,"state":{"pods":[["10.0.0.1"],["10.0.0.2"],["10.0.0.3"]]}}"#,
            r#"{"schema":1,"state":{"pods":[["10.0.0.9"],["10.0.0.1","10.0.0.2","10.0.0.3"]]}}"#,
            r#"{"schema":1,"state":{"busy":"h3; reboot"}}"#,
            &long,
        ] {
            assert!(TestAnswer::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
