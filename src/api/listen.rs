//! The addresses of the HTTP server, and its socket in the file system.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::os::files;
use crate::settings::Settings;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    pub socket: Option<PathBuf>,
    /// A loopback address.
    pub metrics: Option<SocketAddr>,
}

impl Listen {
    pub fn of(settings: &Settings) -> Listen {
        Listen { socket: settings.socket.clone(), metrics: settings.metrics }
    }
}

/// Of the socket: root and its group.
const MODE: u32 = 0o660;

/// A socket in the file system; removed when dropped, if the file is still ours.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Device and number of the file.
    file: (u64, u64),
    pub listener: UnixListener,
}

impl Socket {
    /// Makes the socket, and replaces one without a server.
    ///
    /// # Errors
    /// The file is no socket, or another process serves it.
    pub fn open(path: &Path) -> io::Result<Socket> {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        refuse_foreign(path)?;
        // Made under another name, so that it never has other permissions.
        let new = files::unfinished(path);
        files::remove(&new).map_err(io::Error::other)?;
        let listener = UnixListener::bind(&new)?;
        fs::set_permissions(&new, Permissions::from_mode(MODE))?;
        let metadata = fs::symlink_metadata(&new)?;
        fs::rename(&new, path)?;
        listener.set_nonblocking(true)?;
        let file = (metadata.dev(), metadata.ino());
        Ok(Socket { path: path.to_owned(), file, listener })
    }

    /// The file is still this socket.
    pub fn is_there(&self) -> bool {
        let found = fs::symlink_metadata(&self.path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            // One that stays is replaced at the next start.
            let _stays = fs::remove_file(&self.path);
        }
    }
}

/// Only a socket without a server may be replaced.
fn refuse_foreign(path: &Path) -> io::Result<()> {
    let Some(found) = files::found(fs::symlink_metadata(path))? else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::other("the file is no socket; remove it"));
    }
    match knock(path) {
        Err(Errno::ECONNREFUSED) => Ok(()),
        // EAGAIN: so many wait already that no other client may.
        Ok(()) | Err(Errno::EAGAIN) => Err(io::Error::other("another process listens there")),
        Err(errno) => Err(errno.into()),
    }
}

fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_a_dead_agent_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/agent.sock");
        let living = Socket::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let refused = Socket::open(&path).unwrap_err().to_string();
        assert!(refused.contains("another process"), "{refused}");
        assert!(living.is_there());
        let dead = UnixListener::bind(folder.path().join("dead")).unwrap();
        drop(dead);
        Socket::open(&folder.path().join("dead")).unwrap();
        let foreign = folder.path().join("foreign");
        fs::write(&foreign, "mine").unwrap();
        let refused = Socket::open(&foreign).unwrap_err().to_string();
        assert!(refused.contains("no socket"), "{refused}");
        assert_eq!(fs::read(&foreign).unwrap(), b"mine");
    }

    #[test]
    fn an_agent_that_ends_takes_only_its_own_socket_along() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let first = Socket::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Socket::open(&path).unwrap();
        drop(first);
        assert!(second.is_there());
        drop(second);
        assert!(!path.exists());
    }
}
