//! The host agent as a service manager runs it.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::disk::EXECUTABLE;
use super::node::{Node, Place, command};
use super::process::{Ended, Process, lock};
use super::store::Store;
use super::wait::{SOON, eventually};

const NOTIFY_SOCKET: &str = "/run/notify";

pub struct Agent {
    pub host: Node,
    pub process: Process,
    pub started: Instant,
    manager: Arc<Manager>,
}

/// The service manager's side of sd_notify(3): it reads the messages, or the agent would block.
#[derive(Default)]
struct Manager {
    ready: Mutex<Option<Instant>>,
    said: Mutex<Vec<String>>,
    gone: AtomicBool,
}

impl Manager {
    fn listen(host: &Node) -> Arc<Self> {
        let socket = host.inside(|| {
            let _ = std::fs::remove_file(NOTIFY_SOCKET);
            UnixDatagram::bind(NOTIFY_SOCKET).unwrap()
        });
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let manager = Arc::new(Self::default());
        let shared = Arc::clone(&manager);
        std::thread::spawn(move || {
            let mut message = [0; 4096];
            while !shared.gone.load(Ordering::Relaxed) {
                let Ok(length) = socket.recv(&mut message) else { continue };
                let text = String::from_utf8_lossy(&message[..length]);
                lock(&shared.said).push(text.clone().into_owned());
                // The agent says it after some seconds in any case, so that a boot goes on.
                let is_ready = !text.contains("STATUS=not ready");
                if is_ready && text.lines().any(|line| line == "READY=1") {
                    lock(&shared.ready).get_or_insert_with(Instant::now);
                }
            }
        });
        manager
    }
}

impl Agent {
    /// With the cluster's etcd unless `variables` say otherwise; see [`Agent::wait_ready`].
    pub fn start(host: &Node, variables: &[(&str, &str)]) -> Self {
        Self::start_with(host, "", variables)
    }

    pub fn start_with(host: &Node, arguments: &str, variables: &[(&str, &str)]) -> Self {
        Self::launch(host, prepare(arguments, variables))
    }

    /// The agent of another release, which lies at `path` in the host.
    pub fn start_release(host: &Node, path: &str, variables: &[(&str, &str)]) -> Self {
        Self::launch(host, prepare_program(path, "", variables))
    }

    fn launch(host: &Node, mut command: std::process::Command) -> Self {
        let manager = Manager::listen(host);
        let started = Instant::now();
        let process = host.spawn(command.env("NOTIFY_SOCKET", NOTIFY_SOCKET));
        Self { host: host.clone(), process, started, manager }
    }

    /// Runs the agent's executable to its end: `check-config`, `--once`, `--version` …
    pub fn run(host: &Node, arguments: &str, variables: &[(&str, &str)]) -> Ended {
        host.run_command(&mut prepare(arguments, variables), "")
    }

    /// Waits for the `READY=1` of a host that is served; gives the time since the start.
    pub fn wait_ready(&self) -> Duration {
        eventually(&format!("{}: agent says READY=1", self.host.name()), SOON, || {
            if let Some(ready) = *lock(&self.manager.ready) {
                return Ok(ready - self.started);
            }
            match self.process.ended() {
                Some(status) => panic!("{}: agent: {status}\n{}", self.host.name(), self.log()),
                None => Err("it has not".into()),
            }
        })
    }

    /// Sends SIGHUP and waits until the service manager knows that the reload is done; gives what it
    /// was reported since.
    pub fn reload(&self) -> Vec<String> {
        let before = lock(&self.manager.said).len();
        self.process.signal(Signal::SIGHUP);
        eventually(&format!("{}: end of the reload", self.host.name()), SOON, || {
            let said = lock(&self.manager.said)[before..].to_vec();
            let done = said.iter().any(|text| text.starts_with("READY=1"));
            if done { Ok(said) } else { Err(format!("{said:?}\n{}", self.log())) }
        })
    }

    /// Waits until a line of its log contains all of `words`.
    pub fn wait_log(&self, words: &[&str]) -> String {
        eventually(&format!("{}: log line with {words:?}", self.host.name()), SOON, || {
            let log = self.log();
            let found = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
            found.map(String::from).ok_or_else(|| "no such line".into())
        })
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    /// SIGTERM, and its end waited for.
    pub fn stop(&self) {
        self.process.signal(Signal::SIGTERM);
        let status = self.process.wait(SOON);
        assert!(status.success(), "{}: {status}\n{}", self.host.name(), self.log());
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.process.kill();
    }
}

impl Drop for Agent {
    /// The log of an agent belongs to the report of a failed test.
    fn drop(&mut self) {
        self.manager.gone.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("--- agent on {}:\n{tail}", self.host.name());
        }
    }
}

fn prepare(arguments: &str, variables: &[(&str, &str)]) -> std::process::Command {
    prepare_program(EXECUTABLE, arguments, variables)
}

fn prepare_program(
    program: &str,
    arguments: &str,
    variables: &[(&str, &str)],
) -> std::process::Command {
    let mut command = command(&format!("{program} {arguments}"));
    command.env("ETCD_HOST", Store::ADDRESS_V4.to_string());
    for (name, value) in variables {
        if value.is_empty() {
            command.env_remove(name);
        } else {
            command.env(name, value);
        }
    }
    command
}
