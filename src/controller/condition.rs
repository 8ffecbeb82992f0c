//! Pure. Conditions in the status of custom resources.
//!
//! Source: `metav1.Condition`, and the API conventions of Kubernetes ("typical status properties").

use serde_json::{Value, json};

/// Reasons of `Accepted`.
pub const IN_FORCE: &str = "InForce";
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
pub const REFUSED: &str = "Refused";

/// The reason of `Removed=False`.
const IN_USE: &str = "InUse";

/// Those that are ours; others stay as they are.
const OURS: [&str; 2] = ["Accepted", "Removed"];

/// Others that are kept.
const OTHERS_LIMIT: usize = 32;

/// Longest message, in characters; 32768 bytes are what metav1.Condition allows.
const MESSAGE_LIMIT: usize = 2000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCondition {
    kind: &'static str,
    pub is_true: bool,
    pub reason: &'static str,
    pub message: String,
}

/// What stands in a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedStatus {
    pub condition: StatusCondition,
    /// Hosts that have blocks of a network.
    pub hosts: Option<usize>,
}

impl StatusCondition {
    pub fn accepted(is_true: bool, reason: &'static str, message: &str) -> StatusCondition {
        StatusCondition { kind: OURS[0], is_true, reason, message: limited(message) }
    }

    /// It is to go and cannot.
    pub fn not_removed(faults: &[String]) -> StatusCondition {
        let message = limited(&faults.join("; "));
        StatusCondition { kind: OURS[1], is_true: false, reason: IN_USE, message }
    }

    /// `accepted`, `not accepted (Refused): …`
    pub fn shown(&self) -> String {
        match (self.kind, self.is_true) {
            ("Accepted", true) => "accepted".to_owned(),
            ("Accepted", false) => format!("not accepted ({}): {}", self.reason, self.message),
            _ => format!("not removed ({}): {}", self.reason, self.message),
        }
    }
}

impl WantedStatus {
    /// What is to be written in place of `found` at the time `now`; `None`: it says that already. A condition that
    /// was there and is not wanted now stays: what was accepted is so until it is gone.
    pub fn change(&self, found: &Value, generation: i64, now: &str) -> Option<Value> {
        let listed = found["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let is = |one: &Value, kind: &str| one["type"] == kind;
        let before = listed.iter().find(|one| is(one, self.condition.kind));
        let word = if self.condition.is_true { "True" } else { "False" };
        let mut wanted = json!({
            "type": self.condition.kind, "status": word, "reason": self.condition.reason,
            "message": self.condition.message, "observedGeneration": generation,
            "lastTransitionTime": now,
        });
        let since = before.filter(|before| before["status"] == word);
        if let Some(since) = since.and_then(|before| before["lastTransitionTime"].as_str()) {
            wanted["lastTransitionTime"] = json!(since);
        }
        let hosts = self.hosts.map_or(Value::Null, |hosts| json!(hosts));
        if before == Some(&wanted) && found["hosts"] == hosts {
            return None;
        }
        let others = listed.iter().filter(|one| one.is_object() && !is(one, self.condition.kind));
        let mut conditions: Vec<&Value> = others.take(OTHERS_LIMIT).collect();
        conditions.push(&wanted);
        Some(json!({"conditions": conditions, "hosts": hosts}))
    }
}

fn limited(text: &str) -> String {
    let shown = |char: char| if char.is_control() { ' ' } else { char };
    text.chars().take(MESSAGE_LIMIT).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(is_true: bool, hosts: Option<usize>) -> WantedStatus {
        WantedStatus { condition: StatusCondition::accepted(is_true, REFUSED, "why\n"), hosts }
    }

    #[test]
    fn a_status_is_written_when_it_says_something_new() {
        let first = wanted(false, None).change(&Value::Null, 1, "t1").unwrap();
        let only = &first["conditions"][0];
        assert_eq!((&only["status"], &only["message"]), (&json!("False"), &json!("why ")));
        assert_eq!(wanted(false, None).change(&first, 1, "t2"), None);
        let later = wanted(false, None).change(&first, 2, "t2").unwrap();
        assert_eq!(later["conditions"][0]["lastTransitionTime"], "t1", "it is false since then");
        assert_eq!(later["conditions"][0]["observedGeneration"], 2);
        let turned = wanted(true, None).change(&later, 2, "t3").unwrap();
        assert_eq!(turned["conditions"][0]["lastTransitionTime"], "t3");
        let counted = wanted(true, Some(0)).change(&turned, 2, "t4").unwrap();
        assert_eq!(counted["hosts"], 0);
        assert_eq!(wanted(true, Some(0)).change(&counted, 2, "t5"), None);
    }

    #[test]
    fn what_others_wrote_stays_and_is_limited() {
        let foreign = json!({"type": "Seen", "status": "True"});
        let many: Vec<Value> = (0..100).map(|_| foreign.clone()).collect();
        let found = json!({"conditions": many});
        let after = wanted(true, None).change(&found, 1, "t1").unwrap();
        assert_eq!(after["conditions"].as_array().unwrap().len(), OTHERS_LIMIT + 1);
        assert_eq!(after["conditions"][0], foreign);
        for bad in [json!("x"), json!({"conditions": {}}), json!({"conditions": [7, null]})] {
            let after = wanted(true, None).change(&bad, 1, "t1").unwrap();
            assert_eq!(after["conditions"].as_array().unwrap().len(), 1, "{bad}");
        }
        let long = StatusCondition::accepted(false, REFUSED, &"x".repeat(1 << 20));
        assert_eq!(long.message.len(), MESSAGE_LIMIT);
    }
}
