//! Network namespaces: open, compare, run inside.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{NSFS_MAGIC, PROC_SUPER_MAGIC, fstatfs};

use crate::os::{mount, sysctl};

/// A network namespace, held open.
#[derive(Debug)]
pub struct NetNs {
    path: PathBuf,
    file: File,
}

#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    #[error("network namespace {0} does not exist")]
    Missing(PathBuf),
    /// Another file, as after an unmount, or a namespace of another kind.
    #[error("{0} is not a network namespace")]
    NotANamespace(PathBuf),
    /// It cannot be opened or entered.
    #[error("{what} network namespace {path}: {source}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl NetNs {
    /// The namespace at `path`, as in /run/netns/x or /proc/1234/ns/net. (A namespace of another
    /// kind is detected on entering it.)
    ///
    /// # Errors
    /// [`NetNsError`].
    pub fn open(path: &Path) -> Result<NetNs, NetNsError> {
        let failed = |what| move |source| NetNsError::Io { what, path: path.to_owned(), source };
        // Opening a pipe would block.
        let file = match OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Err(NetNsError::Missing(path.to_owned())),
            Err(error) => return Err(failed("open")(error)),
        };
        let kind = fstatfs(&file).map_err(|errno| failed("look at")(errno.into()))?;
        // nsfs; proc on kernels before 3.19.
        if [NSFS_MAGIC, PROC_SUPER_MAGIC].contains(&kind.filesystem_type()) {
            Ok(NetNs { path: path.to_owned(), file })
        } else {
            Err(NetNsError::NotANamespace(path.to_owned()))
        }
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetNsError`].
    pub fn current() -> Result<NetNs, NetNsError> {
        NetNs::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Both are the same namespace.
    ///
    /// # Errors
    /// [`NetNsError::Io`].
    pub fn is(&self, other: &NetNs) -> Result<bool, NetNsError> {
        Ok(self.identity()? == other.identity()?)
    }

    /// Runs `work` on a thread in the namespace, which ends with the call: the calling thread stays where
    /// it is. A socket opened there stays in the namespace and can be returned.
    ///
    /// # Errors
    /// [`NetNsError::Io`] if the namespace cannot be entered or no thread created;
    /// [`NetNsError::NotANamespace`] for another kind of namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        let inside = || {
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
                Errno::EINVAL => NetNsError::NotANamespace(self.path.clone()),
                _ => self.failed("enter", errno.into()),
            })?;
            sysctl::use_own_proc();
            Ok(work())
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, inside);
            let thread = thread.map_err(|error| self.failed("create a thread to enter", error))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The open file, for IFLA_NET_NS_FD.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn identity(&self) -> Result<(u64, u64), NetNsError> {
        let failed = |error| self.failed("look at", error);
        self.file.metadata().map(|meta| (meta.dev(), meta.ino())).map_err(failed)
    }

    fn failed(&self, what: &'static str, source: io::Error) -> NetNsError {
        NetNsError::Io { what, path: self.path.clone(), source }
    }
}

/// The namespace that was at `path` is there no more. What cannot be seen from here is not gone: a process
/// in a container may have another /run/netns than the runtime, or other processes in /proc.
pub fn is_gone(path: &Path) -> bool {
    let Some(directory) = path.parent() else { return false };
    match NetNs::open(path) {
        Err(NetNsError::Missing(_)) => {
            sees_host() || mount::is_of_same_name(directory) || holds_namespaces(directory)
        }
        // Where mounts do not come along, also one that is there looks like a file.
        Err(NetNsError::NotANamespace(_)) => sees_host() || holds_namespaces(directory),
        _ => false,
    }
}

/// This process sees the mounts and processes that the first process of the machine sees.
fn sees_host() -> bool {
    /// The first PID namespace. Source: `PROC_PID_INIT_INO` of linux/proc_ns.h.
    const FIRST: &str = "pid:[4026531836]";
    let own = |of: &str| fs::read_link(format!("/proc/{of}")).ok();
    let mounts = own("self/ns/mnt");
    own("self/ns/pid").is_some_and(|pid| pid == Path::new(FIRST))
        && mounts.is_some()
        && mounts == own("1/ns/mnt")
}

/// Some other namespace can be seen beside it.
fn holds_namespaces(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| NetNs::open(&entry.path()).is_ok())
}

/// Missing; ESRCH in /proc: the process is ending.
fn is_missing(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ESRCH))
}
