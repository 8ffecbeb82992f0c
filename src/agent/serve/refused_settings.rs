//! Invalid settings, which problems they are, and when they are read again.

use std::time::{Duration, Instant};

use crate::net::Problem;

/// Time between two looks at settings that are invalid.
const AGAIN: Duration = Duration::from_secs(2);

/// The settings that this host should have are invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSettings {
    pub faults: Vec<Problem>,
    /// The agent started in spite of them, with the settings that it served last: it takes over the right ones
    /// by itself.
    pub since_start: bool,
    pub look_at: Instant,
}

impl RefusedSettings {
    pub fn new(faults: Vec<Problem>, since_start: bool) -> RefusedSettings {
        RefusedSettings { faults, since_start, look_at: Instant::now() + AGAIN }
    }

    /// Each invalid setting with what holds instead.
    pub fn problems(&self) -> impl Iterator<Item = Problem> {
        let instead = if self.since_start {
            "until it is right this host is served with its last valid settings; the right ones are \
             taken over at once"
        } else {
            "until it is right the last valid settings hold, after a restart, too; then \
             have the agent reload them"
        };
        self.faults.iter().cloned().map(move |fault| {
            let fix = fault.fix.as_deref().unwrap_or("humanz-agent config # correct it");
            let fix = format!("{fix}; {instead}");
            fault.with_fix(fix)
        })
    }
}
