//! Pure. When the next sample of the history is due, and what it is made of.

use std::time::{Duration, Instant};

/// Between two samples. As often the file is written.
const EVERY: Duration = Duration::from_secs(60);

/// What the next sample is made of.
pub struct Sampling {
    pub due: Instant,
    /// The host was served at some sample.
    pub is_begun: bool,
    /// The most since the last sample.
    pub problems: usize,
    /// The file could not be written.
    pub failed: bool,
}

impl Sampling {
    pub fn new(now: Instant) -> Sampling {
        Sampling { due: now + EVERY, is_begun: false, problems: 0, failed: false }
    }
}
