//! Pure. The keys that exist as long as an agent: its alive key, and that of an agent that finds its
//! host's name in use.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::lease::records::value::{SCHEMA, label};
use crate::net::time::rfc3339;

/// The value of `alive/<hostname>`. The key exists while the agent keeps its etcd lease alive; ownership
/// does not depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alive {
    schema: u32,
    #[serde(deserialize_with = "label")]
    pub machine_id: Box<str>,
    /// Start of the agent by its own clock, for display: `2026-11-20T18:46:00Z`.
    #[serde(deserialize_with = "label")]
    pub since: Box<str>,
    /// Differs with every start of an agent; empty for an agent of an earlier version.
    #[serde(default, deserialize_with = "label", skip_serializing_if = "str::is_empty")]
    pub instance: Box<str>,
    /// Instance of the agent that asked for this value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Box<str>>,
}

impl Alive {
    pub fn new(machine_id: &str, since: SystemTime) -> Alive {
        Alive {
            schema: SCHEMA,
            machine_id: machine_id.into(),
            since: rfc3339(since).into(),
            instance: Box::default(),
            answers: None,
        }
    }

    /// The same of this instance of the agent, as an answer to another one.
    pub fn of(self, instance: &str, answers: Option<Box<str>>) -> Alive {
        Alive { instance: instance.into(), answers, ..self }
    }
}

/// The value of `contenders/<hostname>`: an agent with the machine id of the alive key asks the agent of
/// that key to show that it lives. The key exists as long as the agent that asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Contender {
    schema: u32,
    #[serde(deserialize_with = "label")]
    pub machine_id: Box<str>,
    #[serde(deserialize_with = "label")]
    pub boot_id: Box<str>,
    /// Differs with every start of an agent.
    #[serde(deserialize_with = "label")]
    pub instance: Box<str>,
    /// Start of the agent by its own clock, for display.
    #[serde(deserialize_with = "label")]
    pub since: Box<str>,
}

impl Contender {
    pub fn new(machine_id: &str, boot_id: &str, instance: &str, since: SystemTime) -> Contender {
        Contender {
            schema: SCHEMA,
            machine_id: machine_id.into(),
            boot_id: boot_id.into(),
            instance: instance.into(),
            since: rfc3339(since).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn it_is_read_back_as_written() {
        let alive = Alive::new("0123", UNIX_EPOCH);
        assert_eq!(Alive::parse(alive.to_json().as_bytes()).unwrap(), alive);
        let earlier = br#"{"schema":1,"machineId":"0123","since":"1970-01-01T00:00:00Z"}"#;
        assert_eq!(Alive::parse(earlier).unwrap(), alive);
        assert_eq!(alive.to_json().as_bytes(), earlier);
        let answer = alive.of("a1", Some("b2".into()));
        assert_eq!(Alive::parse(answer.to_json().as_bytes()).unwrap(), answer);
        assert!(Alive::parse(b"2026").is_err());
    }
}
