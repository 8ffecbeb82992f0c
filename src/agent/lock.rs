//! The locks that say that an agent serves this host: one in the state directory, one in the network namespace.

mod network;

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Context;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::agent::lock::network::{AGAIN, LockHolder, NAME, NetworkLock, TRIES, Taken};
use crate::os::files;
use crate::settings::exit::{self, Exit};

/// Both locks. Gone with the process, however it ends.
#[derive(Debug)]
pub struct HostLock {
    _file: Option<Flock<File>>,
    _network: Option<NetworkLock>,
}

/// Keeps a second agent from serving this host.
///
/// # Errors
/// Another agent serves it, or `state_dir` cannot be written to.
pub fn take(state_dir: &Path) -> Result<HostLock, Exit> {
    Ok(HostLock { _file: Some(take_file(state_dir)?), _network: take_network()? })
}

/// The same, where `state_dir` is not made for it.
///
/// # Errors
/// As those of [`take`].
pub fn take_in_place(state_dir: &Path) -> Result<HostLock, Exit> {
    let file = if state_dir.exists() { Some(take_file(state_dir)?) } else { None };
    Ok(HostLock { _file: file, _network: take_network()? })
}

/// `None`: a process that is no agent has it.
fn take_network() -> Result<Option<NetworkLock>, Exit> {
    match network::take(NAME).with_context(|| format!("bind the socket @{NAME}"))? {
        Taken::Now(lock) => Ok(Some(lock)),
        Taken::ByAgent(holder) => Err(Exit::new(exit::FAILURE, elsewhere(&holder))),
        Taken::ByStranger => {
            log::warn!(
                "a process that is no agent holds the socket @{NAME}: a second agent with another \
                 STATE_DIR would not be noticed; find it (ss -xlp | grep @{NAME}) and end it"
            );
            Ok(None)
        }
    }
}

fn elsewhere(holder: &LockHolder) -> String {
    format!(
        "another humanz-agent, with a STATE_DIR of its own, serves this host ({holder}); a host has one \
         agent: a unit, a pod of the DaemonSet, or one started by hand (ss -xlp | grep @{NAME})"
    )
}

/// The agent that serves this network namespace, in words; any state directory may be its own.
pub fn network_holder() -> Option<String> {
    network::holder(NAME).map(|holder| holder.to_string())
}

fn take_file(state_dir: &Path) -> Result<Flock<File>, Exit> {
    let path = path(state_dir);
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut file = file.map_err(files::failed("create", &path))?;
    // flock(2) needs read access only.
    files::keep_private(&file).with_context(|| format!("protect {}", path.display()))?;
    for _ in 0..TRIES {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => {
                let what = format!("lock {}: {errno}", path.display());
                return Err(Exit::new(exit::FAILURE, what));
            }
        };
        thread::sleep(AGAIN);
    }
    let why = format!("another humanz-agent serves this host ({} is locked)", path.display());
    Err(Exit::new(exit::FAILURE, why))
}

/// Whether an agent serves this host, be it that it does not answer.
pub fn is_held(state_dir: &Path) -> bool {
    let Ok(file) = File::open(path(state_dir)) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

/// Whether this user may not take the lock: then it is not known whether an agent serves this host.
pub fn is_denied(state_dir: &Path) -> bool {
    let opened = File::options().write(true).open(path(state_dir));
    matches!(opened, Err(error) if error.kind() == ErrorKind::PermissionDenied)
}

/// Where the lock is.
pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_serves_a_host_and_a_reader_of_the_lock_keeps_none_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(!is_held(path), "no agent ever was here");
        let lock = take_file(path).unwrap();
        assert!(is_held(path));
        assert!(take_file(path).unwrap_err().why.contains("another humanz-agent"));
        drop(lock);
        assert!(!is_held(path));
        let file = File::open(path.join("lock")).unwrap();
        let looking = Flock::lock(file, FlockArg::LockSharedNonblock).unwrap();
        let wait = thread::spawn(move || {
            thread::sleep(AGAIN / 2);
            drop(looking);
        });
        take_file(path).unwrap();
        wait.join().unwrap();
    }
}
