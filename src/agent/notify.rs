//! What the service manager is told: ready, alive, stopping.
//!
//! Source: sd_notify(3). Without `NOTIFY_SOCKET` nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// This host's network is up.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The loop still turns.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// The agent is about to leave.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// How often [`alive`] must be called: half of what the service manager allows.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn send(state: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        log::warn!("the service manager cannot be told {state:?}: {error}");
    }
}
