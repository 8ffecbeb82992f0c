//! Waiting for conditions, with a deadline.

use std::time::{Duration, Instant};

/// How long a local thing may take on a busy machine before a test gives up on it.
pub const SOON: Duration = Duration::from_secs(40);

/// How many times longer everything may take where programs run slowly: `PATIENCE`, else 1.
pub fn patience() -> u32 {
    let given = std::env::var("PATIENCE").ok();
    given.map_or(1, |text| text.parse().expect("PATIENCE is a number"))
}

/// The first value that `probe` returns; polls every few milliseconds.
///
/// # Panics
/// After `within` (times `PATIENCE`), saying `what` was waited for and why `probe` refused last.
pub fn eventually<T>(
    what: &str,
    within: Duration,
    mut probe: impl FnMut() -> Result<T, String>,
) -> T {
    let (start, within) = (Instant::now(), within * patience());
    loop {
        match probe() {
            Ok(value) => return value,
            Err(why) if start.elapsed() > within => {
                panic!("{what}: not within {within:?}: {why}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// [`eventually`] for a condition that says nothing about itself, within [`SOON`].
pub fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, SOON, || if holds() { Ok(()) } else { Err("it is not so".into()) });
}
