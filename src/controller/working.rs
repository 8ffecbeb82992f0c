//! Whether the controller works: in its log, once for each time, and for whoever asks.

use std::sync::{Mutex, PoisonError};

/// What is in the way; nothing: it works.
#[derive(Debug, Default)]
pub struct Working(Mutex<WorkingState>);

#[derive(Debug, Default)]
struct WorkingState {
    is_whole: bool,
    follows: Option<String>,
    writes: Option<String>,
}

impl Working {
    /// How the API is followed.
    pub fn follows(&self, trouble: Option<String>, is_whole: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        note("custom resources are not followed now", &state.follows, &trouble);
        state.follows = trouble;
        if is_whole && !state.is_whole {
            log::info!("all custom resources are known");
        }
        state.is_whole = is_whole;
    }

    /// How the last round ended.
    pub fn writes(&self, trouble: Option<String>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        note("not everything could be written; this is tried again", &state.writes, &trouble);
        state.writes = trouble;
    }

    /// Why not everything is as it should be.
    pub fn trouble(&self) -> Option<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unread = (!state.is_whole).then(|| "custom resources have not been read".to_owned());
        state.follows.clone().or(unread).or_else(|| state.writes.clone())
    }
}

fn note(what: &str, before: &Option<String>, now: &Option<String>) {
    match (before, now) {
        (before, Some(why)) if before.as_ref() != Some(why) => log::error!("{what}: {why}"),
        (Some(_), None) => log::info!("ended: {what}"),
        _ => {}
    }
}
