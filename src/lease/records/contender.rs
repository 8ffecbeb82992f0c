//! Pure. The key of an agent that finds its host's name in use by another agent.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::lease::records::RecordError;
use crate::lease::records::value::{SCHEMA, json, label, to_json};
use crate::net::time::rfc3339;

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

    /// # Errors
    /// [`RecordError`] if `value` is no such JSON object.
    pub fn parse(value: &[u8]) -> Result<Contender, RecordError> {
        json(value)
    }

    pub fn to_json(&self) -> String {
        to_json(self)
    }
}
