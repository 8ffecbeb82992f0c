//! A network namespace alone, and `ip` in the calling thread's one.

use std::fs::{File, write};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};

use crate::namespace::on_thread;

/// A network namespace.
pub struct Netns(OwnedFd);

impl Netns {
    /// Without duplicate address detection, which takes a second.
    pub fn new() -> Netns {
        let made = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .expect("make a network namespace (root, or the runner of .cargo/config.toml)");
            trust_addresses();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        Netns(made.into())
    }

    /// Another handle of the same one.
    pub fn again(&self) -> Netns {
        Netns(self.0.try_clone().unwrap())
    }

    /// Runs `task` in it, on a thread of its own.
    pub fn inside<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        on_thread(|| {
            setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
            task()
        })
    }

    /// A path that `ip link … netns` takes.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Disables duplicate address detection in the calling thread's namespace.
pub fn trust_addresses() {
    for conf in ["all", "default"] {
        write(format!("/proc/sys/net/ipv6/conf/{conf}/accept_dad"), "0").unwrap();
    }
}

/// Runs lines of `ip` commands.
pub fn ip(lines: &str) {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip is missing (package iproute2)");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{lines}");
}

/// Runs a command and returns its output.
///
/// # Panics
/// If it fails, with its output.
pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    run_args(words.next().unwrap(), &words.collect::<Vec<_>>())
}

/// The same, for arguments with spaces in them.
pub fn run_args(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} is missing: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
