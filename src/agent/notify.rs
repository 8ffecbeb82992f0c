//! Notifies the service manager: ready, reloading, alive, stopping.
//!
//! Source: sd_notify(3), sd_watchdog_enabled(3). Without `NOTIFY_SOCKET` nothing is sent. A service manager that does not
//! listen holds nothing up: what it has no room for is not sent.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The start is over.
pub fn ready(status: &str) {
    send(&format!("READY=1\nSTATUS={status}"));
}

/// What the agent does at this moment.
pub fn status(status: &str) {
    send(&format!("STATUS={status}"));
}

/// The settings are read again; [`ready`] says when that is done.
pub fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
}

/// The loop still turns.
pub fn alive() {
    if watchdog_interval().is_some() {
        send("WATCHDOG=1");
    }
}

/// The agent is about to leave.
pub fn stopping() {
    send("STOPPING=1");
}

/// A service manager listens, and starts the agent again when it ends.
pub fn is_supervised() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// How often [`alive`] must be called: half of what the service manager allows.
pub fn watchdog_interval() -> Option<Duration> {
    let micros: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    let is_ours =
        std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == process::id().to_string());
    (micros > 0 && is_ours).then(|| Duration::from_micros(micros / 2))
}

fn send(message: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    match send_to(&address, message) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            log::debug!("the service manager does not listen: {message:?} not sent");
        }
        Err(error) => {
            log::warn!("notify the service manager on {address:?} ({message:?}): {error}");
        }
        Ok(_) => {}
    }
}

/// `address`: a path, or `@` and an abstract name.
fn send_to(address: &OsStr, message: &str) -> io::Result<usize> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message.as_bytes(), &address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_manager_that_does_not_listen_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let mut sent = (0..10_000).map(|_| send_to(path.as_os_str(), "WATCHDOG=1"));
        let refused = sent.find_map(Result::err).unwrap();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        let mut first = [0; 64];
        let length = manager.recv(&mut first).unwrap();
        assert_eq!(&first[..length], b"WATCHDOG=1");
    }

    #[test]
    fn an_abstract_name_is_understood() {
        let name = format!("humanz-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send_to(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
        let mut message = [0; 64];
        let length = manager.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
    }
}
