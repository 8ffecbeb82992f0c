//! Pure. The pods of a host, as it answers a request for them.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::records::RecordError;
use crate::lease::records::value::{SCHEMA, json_within, to_json};

/// Longest value, in bytes: a bridge has 1,023 ports, and a pod with usual names in two families 120 bytes, and 45 for what
/// it sends.
const LIMIT: usize = 192 * 1024;

/// Room for what is not a pod.
const FRAME: usize = 128;

/// The value of `$HUMANZ_PREFIX-pods/<hostname>`, with an etcd lease of its own without keep-alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPods {
    schema: u32,
    pub pods: Vec<HostPod>,
    /// Pods for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
    /// When the bytes were counted: milliseconds since the host was started; `None`: by an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPod {
    /// `namespace/name`, or the container where the runtime gave no pod.
    pub pod: Box<str>,
    pub network: Box<str>,
    pub addresses: Vec<IpAddr>,
    /// That it has sent, and received, since it was attached; `None`: that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<[u64; 2]>,
}

impl HostPods {
    /// Of `all` pods the first for which there is room: at most [`LIMIT`] bytes.
    pub fn new(all: impl IntoIterator<Item = HostPod>) -> HostPods {
        let mut answer = HostPods { schema: SCHEMA, pods: Vec::new(), more: 0, counted_at: None };
        let mut bytes = FRAME;
        for pod in all {
            bytes += to_json(&pod).len() + 1;
            match bytes <= LIMIT {
                true => answer.pods.push(pod),
                false => answer.more += 1,
            }
        }
        answer
    }

    /// With bytes that were counted so long after the host's start.
    pub fn counted(self, at: Option<Duration>) -> HostPods {
        let at = at.and_then(|at| u64::try_from(at.as_millis()).ok());
        HostPods { counted_at: at, ..self }
    }

    /// # Errors
    /// [`RecordError`] if `value` is no such JSON object of at most 128 KiB.
    pub fn parse(value: &[u8]) -> Result<HostPods, RecordError> {
        json_within(value, LIMIT)
    }

    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> HostPod {
        let addresses = ["10.244.1.2", "fd10::2"].map(|text| text.parse().unwrap()).into();
        HostPod { pod: name.into(), network: "humanz".into(), addresses, bytes: None }
    }

    #[test]
    fn an_answer_is_read_back_as_written() {
        let answer = HostPods::new([pod("default/web")]);
        let text = answer.to_json();
        assert_eq!(
            text,
            r#"{"schema":1,"pods":[{"pod":"default/web","network":"humanz","addresses":["10.244.1.2","fd10::2"]}]}"#
        );
        assert_eq!(HostPods::parse(text.as_bytes()), Ok(answer));
        let counted = HostPod { bytes: Some([5, u64::MAX]), ..pod("default/web") };
        let answer = HostPods::new([counted]).counted(Some(Duration::from_millis(7)));
        let text = answer.to_json();
        assert!(text.ends_with(r#""bytes":[5,18446744073709551615]}],"counted_at":7}"#), "{text}");
        assert_eq!(HostPods::parse(text.as_bytes()), Ok(answer));
    }

    #[test]
    fn pods_without_room_are_counted() {
        // Each quote needs two bytes.
        for name in ["x".repeat(300), "\"".repeat(300)] {
            let most = || HostPod { bytes: Some([u64::MAX; 2]), ..pod(&name) };
            let answer = HostPods::new((0..1023).map(|_| most()));
            let answer = answer.counted(Some(Duration::from_millis(u64::MAX)));
            let text = answer.to_json();
            assert!(text.len() <= LIMIT, "{}", text.len());
            assert_eq!(answer.pods.len() + answer.more as usize, 1023);
            assert!(answer.pods.len() > 150, "{}", answer.pods.len());
            assert!(HostPods::parse(text.as_bytes()) == Ok(answer));
        }
        let usual = |n| HostPod {
            bytes: Some([u64::MAX / 1000; 2]),
            ..pod(&format!("production/web-7d4b9c6f5-{n:05}"))
        };
        assert_eq!(HostPods::new((0..1023).map(usual)).more, 0);
    }

    #[test]
    fn hostile_answers_are_refused() {
        let long = format!(r#"{{"schema":1,"pods":[],"x":"{}"}}"#, "x".repeat(LIMIT));
        for bad in [
            "",
            "[]",
            r#"{"schema":2,"pods":[]}"#,
            r#"{"schema":1,"pods":{}}"#,
            r#"{"schema":1,"pods":[{"pod":"a","network":"b","addresses":["x"]}]}"#,
            r#"{"schema":1,"pods":[{"pod":"a","network":"b","addresses":["10.0.0.0/8"]}]}"#,
            r#"{"schema":1,"pods":[],"more":-1}"#,
            r#"{"schema":1,"pods":[],"counted_at":-1}"#,
            r#"{"schema":1,"pods":[{"pod":"a","network":"b","addresses":[],"bytes":[1]}]}"#,
            r#"{"schema":1,"pods":[{"pod":"a","network":"b","addresses":[],"bytes":[1,1e30]}]}"#,
            &long,
        ] {
            assert!(HostPods::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
