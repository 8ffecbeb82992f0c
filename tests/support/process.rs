//! Programs in a node: run to their end, or kept running with their output collected.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::wait::eventually;

/// Longer than any command of a test may take.
const TOO_LONG: Duration = Duration::from_secs(120);

/// What a program wrote last is read by then, unless a child of its own keeps the pipe.
const READ_BY: Duration = Duration::from_secs(2);

/// The exit status and output of a program.
#[derive(Debug)]
pub struct Ended {
    pub what: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Ended {
    /// Its stdout.
    ///
    /// # Panics
    /// If it failed, with all it said.
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self}");
        self.stdout
    }

    pub fn succeeded(&self) -> bool {
        self.status.success()
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, status, stdout, stderr, .. } = self;
        write!(f, "{what}: {status}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// Spawns by `spawn`, gives it `input`, waits for its end.
pub fn run(
    command: &mut Command,
    input: &str,
    spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
) -> Ended {
    let what = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = spawn(command).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let stdout = collect(child.stdout.take().expect("a pipe"));
    let stderr = collect(child.stderr.take().expect("a pipe"));
    // A program may end without reading it all.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let status = wait_or_kill(&mut child, &what);
    let took = start.elapsed();
    let text = |reader: std::thread::JoinHandle<String>| reader.join().unwrap();
    Ended { what, status, stdout: text(stdout), stderr: text(stderr), took }
}

/// A running program; killed and reaped when dropped.
pub struct Process {
    shared: Arc<Shared>,
}

/// State shared by the handle, the reader threads and the node.
pub struct Shared {
    what: String,
    child: Mutex<Child>,
    lines: Mutex<Vec<(Instant, String)>>,
    /// Threads that read its output.
    readers: AtomicUsize,
}

impl Process {
    pub fn start(
        command: &mut Command,
        spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
    ) -> Self {
        let what = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(command).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (child, readers) = (Mutex::new(child), AtomicUsize::new(2));
        let shared = Arc::new(Shared { what, child, lines: Mutex::default(), readers });
        follow(stdout.expect("a pipe"), Arc::clone(&shared));
        follow(stderr.expect("a pipe"), Arc::clone(&shared));
        Self { shared }
    }

    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub fn signal(&self, signal: Signal) {
        let child = lock(&self.shared.child);
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a PID"));
        kill(pid, signal).unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.shared.what));
        if signal == Signal::SIGSTOP {
            // Until one of its threads has run, the others go on: on a busy machine long enough to answer.
            let until = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            waitid(Id::Pid(pid), until).unwrap_or_else(|e| panic!("{}: {e}", self.shared.what));
        }
    }

    /// Its number on this machine.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(lock(&self.shared.child).id()).expect("a PID"))
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&self) {
        self.shared.kill();
    }

    /// `None` while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        lock(&self.shared.child).try_wait().unwrap()
    }

    /// Its end, with all it has written in the log.
    pub fn wait(&self, within: Duration) -> ExitStatus {
        let status = eventually(&format!("end of {}", self.shared.what), within, || {
            self.ended().ok_or_else(|| format!("it runs, and said:\n{}", self.log()))
        });
        let until = Instant::now() + READ_BY;
        while self.shared.readers.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        status
    }

    /// All it has written so far, stdout and stderr as they came.
    pub fn log(&self) -> String {
        self.lines().into_iter().map(|(_, line)| line + "\n").collect()
    }

    /// Each line, with the moment it was read.
    pub fn lines(&self) -> Vec<(Instant, String)> {
        lock(&self.shared.lines).clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Shared {
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The lock, also after another thread has panicked: cleanup must continue.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn follow(from: impl Read + Send + 'static, shared: Arc<Shared>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            lock(&shared.lines).push((Instant::now(), line));
        }
        shared.readers.fetch_sub(1, Ordering::Release);
    });
}

/// Waits without polling; another thread kills the child if that takes [`TOO_LONG`].
fn wait_or_kill(child: &mut Child, what: &str) -> ExitStatus {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a PID"));
    let (ended, changed) = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock(&ended);
            let waited = changed.wait_timeout_while(guard, TOO_LONG, |ended| !*ended);
            if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                eprintln!("{what}: killed after {TOO_LONG:?}");
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let status = child.wait().unwrap();
        *lock(&ended) = true;
        changed.notify_all();
        status
    })
}
