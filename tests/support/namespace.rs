//! Fresh namespaces, held by a process that ends with this one.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Its first process copies its standard input, a pipe whose other end is ours alone: when we are
/// gone, even by SIGKILL, it ends, and the kernel ends everything else in the PID namespace.
/// (`wait` also reaps what is orphaned in there.)
const FIRST_PROCESS: &str = "exec 3<&0; echo ready; cat <&3 >/dev/null & wait $!";

/// Network, mount, UTS and PID namespaces.
pub struct Namespace {
    holder: Child,
    /// Closing it ends the namespace.
    _alive: ChildStdin,
    first: Pid,
    net: OwnedFd,
    mnt: OwnedFd,
    uts: OwnedFd,
    pid: OwnedFd,
}

impl Namespace {
    pub fn new() -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child=KILL"]).args([
            "--propagation",
            "private",
            "--mount-proc",
            "sh",
            "-c",
            FIRST_PROCESS,
        ]);
        Self::start(&mut unshare)
    }

    /// Those that `unshare` makes; its one child says `ready` when it is.
    pub fn start(unshare: &mut Command) -> Self {
        let mut holder = unshare
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run unshare (package util-linux)");
        let alive = holder.stdin.take().expect("a pipe");
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut ready).unwrap();
        if ready != "ready\n" {
            let mut said = String::new();
            let _ = holder.stderr.take().expect("a pipe").read_to_string(&mut said);
            panic!("no namespaces (root, or the runner of .cargo/config.toml): {said}");
        }
        let children = format!("/proc/{0}/task/{0}/children", holder.id());
        let children = std::fs::read_to_string(children).unwrap();
        let first: i32 = children.trim().parse().expect("unshare has one child");
        let open = |kind: &str| File::open(format!("/proc/{first}/ns/{kind}")).unwrap().into();
        Self {
            holder,
            _alive: alive,
            first: Pid::from_raw(first),
            net: open("net"),
            mnt: open("mnt"),
            uts: open("uts"),
            pid: open("pid"),
        }
    }

    /// The first process, as this machine counts.
    pub fn first_process(&self) -> Pid {
        self.first
    }

    /// Runs `task` on a thread of its own in all four namespaces; what it spawns is born there.
    /// It cannot start threads (the kernel wants a thread in its process's PID namespace).
    pub fn inside<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        on_thread(|| {
            unshare(CloneFlags::CLONE_FS).expect("own working directory");
            setns(&self.pid, CloneFlags::CLONE_NEWPID).expect("enter PID namespace");
            setns(&self.uts, CloneFlags::CLONE_NEWUTS).expect("enter UTS namespace");
            setns(&self.net, CloneFlags::CLONE_NEWNET).expect("enter network namespace");
            setns(&self.mnt, CloneFlags::CLONE_NEWNS).expect("enter mount namespace");
            task()
        })
    }

    /// Runs `task` on a thread that sees this machine, but the namespace's network.
    pub fn on_its_network<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        on_thread(|| {
            setns(&self.net, CloneFlags::CLONE_NEWNET).expect("enter network namespace");
            task()
        })
    }
}

/// Enters a network namespace by its file, on the calling thread for good.
pub fn enter_network(path: &str) {
    let file = File::open(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    setns(file.as_fd(), CloneFlags::CLONE_NEWNET).unwrap_or_else(|e| panic!("enter {path}: {e}"));
}

/// Runs `task` on a thread that ends with it.
pub fn on_thread<T: Send>(task: impl FnOnce() -> T + Send) -> T {
    let outcome = std::thread::scope(|scope| scope.spawn(task).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Drop for Namespace {
    /// Children of ours in there must be reaped before: the kernel keeps the first process until.
    fn drop(&mut self) {
        let _ = kill(self.first, Signal::SIGKILL);
        let _ = self.holder.wait();
    }
}
