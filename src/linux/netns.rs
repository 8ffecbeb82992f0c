//! Network namespaces: open, compare, work inside.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, fstatfs};

/// Magic numbers of file systems whose files are namespaces: nsfs and, on old kernels, proc.
/// Source: linux/magic.h.
const NSFS: i64 = 0x6e73_6673;
const PROC: i64 = 0x9fa0;

/// A network namespace, held open.
#[derive(Debug)]
pub struct NetNs {
    path: PathBuf,
    file: File,
}

/// Why there is no namespace at a path.
#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    /// Nothing is there.
    #[error("network namespace {0} does not exist")]
    Missing(PathBuf),
    /// A file is there that is no namespace: what is left when one was unmounted.
    #[error("{0} is a file, not a network namespace")]
    NotANamespace(PathBuf),
    /// It cannot be opened or entered.
    #[error("{what} network namespace {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl NetNs {
    /// The namespace at `path`, as in /run/netns/x or /proc/1234/ns/net.
    ///
    /// # Errors
    /// [`NetNsError`].
    pub fn open(path: &Path) -> Result<NetNs, NetNsError> {
        let failed = |what| move |source| NetNsError::Io { what, path: path.to_owned(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Err(NetNsError::Missing(path.to_owned())),
            Err(error) => return Err(failed("open")(error)),
        };
        let kind = fstatfs(&file).map_err(|errno| failed("look at")(errno.into()))?;
        if [FsType(NSFS), FsType(PROC)].contains(&kind.filesystem_type()) {
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

    /// Both are the same namespace, whatever their paths.
    ///
    /// # Errors
    /// [`NetNsError::Io`].
    pub fn is(&self, other: &NetNs) -> Result<bool, NetNsError> {
        Ok(self.identity()? == other.identity()?)
    }

    /// Runs `work` on a thread that lives in the namespace and ends with the call: the calling
    /// thread never moves. A socket opened there stays there and can be given back.
    ///
    /// # Errors
    /// [`NetNsError::Io`] if the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        let inside = || {
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)
                .map_err(|errno| self.failed("enter", errno))?;
            Ok(work())
        };
        thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// The open file, for IFLA_NET_NS_FD.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn identity(&self) -> Result<(u64, u64), NetNsError> {
        let failed = |source| NetNsError::Io { what: "look at", path: self.path.clone(), source };
        self.file.metadata().map(|meta| (meta.dev(), meta.ino())).map_err(failed)
    }

    fn failed(&self, what: &'static str, errno: Errno) -> NetNsError {
        NetNsError::Io { what, path: self.path.clone(), source: errno.into() }
    }
}

/// Nothing there; ESRCH is what /proc answers for a process that ends just now.
fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ESRCH))
}
