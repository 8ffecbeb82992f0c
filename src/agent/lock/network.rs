//! The lock of a network namespace: agents with other state directories, and those in containers, see it too.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, shutdown, socket,
};
use nix::unistd::Uid;

use crate::os::threads;

/// A reader of either lock has it for much less.
pub(super) const AGAIN: Duration = Duration::from_millis(20);
pub(super) const TRIES: usize = 5;

/// How long a queue may be full all the time, and the time between two looks: an agent takes a moment for each.
const FULL: Duration = Duration::from_secs(1);
const KNOCK: Duration = Duration::from_millis(1);

/// What agents bind: an abstract name, of which each network namespace has its own. Source: unix(7).
pub(super) const NAME: &str = "humanz-agent";

/// Held as long as this is there. The kernel frees it with the process, however it ends.
#[derive(Debug)]
pub struct NetworkLock {
    listener: UnixListener,
    drain: Option<JoinHandle<()>>,
}

/// The process that has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// 0: it is in another PID namespace.
    pid: i32,
}

#[derive(Debug)]
pub enum Taken {
    Now(NetworkLock),
    ByAgent(LockHolder),
    /// By a process that is no agent: any user may bind an abstract name.
    ByStranger,
}

/// # Errors
/// There are no sockets, or no threads.
pub fn take(name: &str) -> io::Result<Taken> {
    let address = SocketAddr::from_abstract_name(name)?;
    for _ in 0..TRIES {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => return NetworkLock::new(listener).map(Taken::Now),
            Err(error) if error.kind() == ErrorKind::AddrInUse => thread::sleep(AGAIN),
            Err(error) => return Err(error),
        }
    }
    Ok(holder(name).map_or(Taken::ByStranger, Taken::ByAgent))
}

/// The agent that has the lock.
pub fn holder(name: &str) -> Option<LockHolder> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let address = UnixAddr::new_abstract(name.as_bytes()).ok()?;
    let deadline = Instant::now() + FULL;
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => break,
            // Anybody can fill the queue. An agent empties it, so that there is room again and again.
            Err(Errno::EAGAIN) if Instant::now() < deadline => thread::sleep(KNOCK),
            // What does not listen, or leaves its queue full, is no agent.
            Err(_) => return None,
        }
    }
    // Those of the process that called listen(2).
    let peer = getsockopt(&socket, PeerCredentials).ok()?;
    let is_agent = peer.uid() == 0 || peer.uid() == Uid::effective().as_raw();
    is_agent.then_some(LockHolder { pid: peer.pid() })
}

impl NetworkLock {
    fn new(listener: UnixListener) -> io::Result<NetworkLock> {
        let queue = listener.try_clone()?;
        let drain = threads::spawn("lock", move || drain(&queue))?;
        Ok(NetworkLock { listener, drain: Some(drain) })
    }
}

impl Drop for NetworkLock {
    fn drop(&mut self) {
        let _was_closed = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        let _ended = self.drain.take().map(JoinHandle::join);
    }
}

/// Lets those go who ask for the holder, until the listener is shut down.
fn drain(queue: &UnixListener) {
    loop {
        match queue.accept() {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => return,
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "a process of the host or another container holds @{NAME}"),
            pid => write!(f, "process {pid} holds @{NAME}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn name(test: &str) -> String {
        format!("humanz-test-{test}-{}", process::id())
    }

    #[test]
    fn one_process_has_the_lock_however_many_ask_for_it_and_frees_it() {
        let name = name("one");
        assert_eq!(holder(&name), None);
        let Ok(Taken::Now(lock)) = take(&name) else { panic!("not taken") };
        let own = LockHolder { pid: process::id() as i32 };
        // More than wait in any queue.
        for _ in 0..5000 {
            assert_eq!(holder(&name), Some(own));
        }
        assert!(matches!(take(&name), Ok(Taken::ByAgent(by)) if by == own));
        drop(lock);
        assert!(matches!(take(&name), Ok(Taken::Now(_))));
    }

    /// Any user of the host may ask without end.
    #[test]
    fn a_full_queue_hides_no_agent() {
        let name = name("flood");
        let Ok(Taken::Now(lock)) = take(&name) else { panic!("not taken") };
        let own = LockHolder { pid: process::id() as i32 };
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        holder_now(&name);
                    }
                });
            }
            let found: Vec<_> = (0..200).map(|_| holder(&name)).collect();
            over.store(true, Ordering::Relaxed);
            assert_eq!(found, vec![Some(own); 200]);
        });
        drop(lock);
    }

    /// Asks once, and does not wait for room.
    fn holder_now(name: &str) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        let _may_be_full = connect(socket.as_raw_fd(), &address);
    }

    #[test]
    fn a_name_without_a_server_is_not_that_of_an_agent() {
        let name = name("deaf");
        let flags = SockFlag::SOCK_CLOEXEC;
        let deaf = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        nix::sys::socket::bind(deaf.as_raw_fd(), &address).unwrap();
        assert_eq!(holder(&name), None);
        assert!(matches!(take(&name), Ok(Taken::ByStranger)));
    }

    #[test]
    fn a_process_of_another_container_has_no_number_here() {
        let text = |pid| LockHolder { pid }.to_string();
        assert_eq!(text(7), "process 7 holds @humanz-agent");
        assert_eq!(text(0), "a process of the host or another container holds @humanz-agent");
    }
}
