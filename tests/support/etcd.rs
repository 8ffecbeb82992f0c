//! A real etcd on the loopback of a network namespace of its own.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::ConnectOptions;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::keys::Keys;
use super::wait::eventually;

/// Runs `test` on a thread with a network of its own: only a loopback.
///
/// Threads and programs started by it are in there too. Needs root, or the runner of `.cargo/config.toml`.
pub fn isolated(test: impl FnOnce() + Send) {
    let thread = || {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("make a network namespace (root, or the runner of .cargo/config.toml)");
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.expect("run ip (package iproute2)").success(), "ip link set lo up failed");
        test();
    };
    let outcome = std::thread::scope(|scope| scope.spawn(thread).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// One member. It is killed when this is dropped, and when the thread that started it ends.
pub struct EtcdServer {
    name: String,
    address: Ipv4Addr,
    arguments: Vec<String>,
    keys: Keys,
    folder: TempDir,
    process: Option<Child>,
}

impl EtcdServer {
    /// Runs and answers, on 127.0.0.1.
    pub fn start() -> EtcdServer {
        EtcdServer::start_with(&[])
    }

    /// The same, with further arguments.
    pub fn start_with(arguments: &[&str]) -> EtcdServer {
        let mut server = EtcdServer::member("one", Ipv4Addr::LOCALHOST, arguments);
        server.restart();
        server
    }

    /// Another one, on 127.0.0.2.
    pub fn start_other() -> EtcdServer {
        let mut server = EtcdServer::member("other", Ipv4Addr::new(127, 0, 0, 2), &[]);
        server.restart();
        server
    }

    /// Runs and answers by https only. `arguments` name the certificates; `ours` is how to connect.
    pub fn start_tls(arguments: &[&str], ours: ConnectOptions) -> EtcdServer {
        let mut server = EtcdServer::member("one", Ipv4Addr::LOCALHOST, arguments);
        server.keys.url = server.keys.url.replace("http:", "https:");
        server.keys.options = ours;
        server.restart();
        server
    }

    /// The same, with a certificate that the tests do not take: it listens when this returns.
    pub fn start_tls_unseen(arguments: &[&str], ours: ConnectOptions) -> EtcdServer {
        let mut server = EtcdServer::member("one", Ipv4Addr::LOCALHOST, arguments);
        server.keys.url = server.keys.url.replace("http:", "https:");
        server.keys.options = ours;
        server.launch();
        eventually("etcd listens", Duration::from_secs(30), || {
            std::net::TcpStream::connect((server.address, 2379)).map_err(|error| error.to_string())
        });
        server
    }

    /// Other arguments from the next start on.
    pub fn change_arguments(&mut self, arguments: &[&str]) {
        let cluster = self.arguments.drain(..2).collect::<Vec<_>>();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        self.arguments = cluster.into_iter().chain(arguments).collect();
    }

    /// Three members of one cluster, running, on 127.0.0.1 to 127.0.0.3.
    pub fn start_three() -> Vec<EtcdServer> {
        let addresses = [1, 2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
        let peer = |address: &Ipv4Addr| format!("m{}=http://{address}:2380", address.octets()[3]);
        let cluster = addresses.iter().map(peer).collect::<Vec<_>>().join(",");
        let mut members: Vec<_> = addresses
            .iter()
            .map(|address| {
                let name = format!("m{}", address.octets()[3]);
                EtcdServer::member(&name, *address, &["--initial-cluster", &cluster])
            })
            .collect();
        for member in &mut members {
            member.launch();
        }
        for member in &members {
            member.wait_ready();
        }
        members
    }

    fn member(name: &str, address: Ipv4Addr, arguments: &[&str]) -> EtcdServer {
        let mut all = Vec::new();
        if !arguments.contains(&"--initial-cluster") {
            all.extend(["--initial-cluster".to_owned(), format!("{name}=http://{address}:2380")]);
        }
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        EtcdServer {
            name: name.to_owned(),
            address,
            arguments: all,
            keys: Keys::new(format!("http://{address}:2379"), Box::new(|task| task())),
            folder: tempfile::tempdir().unwrap(),
            process: None,
        }
    }

    pub fn url(&self) -> String {
        self.keys.url.clone()
    }

    /// Killed if it runs, and back with its data.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
        self.wait_ready();
    }

    /// Killed if it runs, and back without any of its data.
    pub fn restart_empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
        self.restart();
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("etcd runs").id()
    }

    /// Holds it still: it keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Copies its data to `to`, as a backup would; it must not run.
    pub fn copy_data(&self, to: &Path) {
        copy(&self.data(), to);
    }

    /// Replaces its data by a copy; it must not run.
    pub fn replace_data(&self, from: &Path) {
        std::fs::remove_dir_all(self.data()).unwrap();
        copy(from, &self.data());
    }

    /// How the tests connect from now on: with user and password.
    pub fn connect_as(&mut self, user: &str, password: &str) {
        self.keys.options = ConnectOptions::new().with_user(user, password);
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn launch(&mut self) {
        let (url, peer) = (self.url(), format!("http://{}:2380", self.address));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "etcd", "--name", &self.name]);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        // On one machine the members learn of each other within microseconds.
        command.args(["--heartbeat-interval", "30", "--election-timeout", "300"]);
        command.args(["--logger", "zap", "--log-level", "warn"]);
        command.arg("--data-dir").arg(self.data()).args(&self.arguments);
        // Beside others the tests share one disk: it was seen to take seconds for a write of one of them.
        if std::env::var_os("NO_FSYNC").is_some() {
            command.arg("--unsafe-no-fsync");
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let started = command.spawn();
        self.process =
            Some(started.expect("run setpriv and etcd (packages util-linux, etcd-server)"));
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn wait_ready(&self) {
        eventually(&format!("etcd {} answers", self.url()), Duration::from_secs(30), || {
            let answer = self.try_call(async |client| client.get("x", None).await.map(drop));
            let said = || std::fs::read_to_string(self.log()).unwrap_or_default();
            answer.map_err(|error| format!("{error}\n{}", said()))
        });
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("etcd runs");
        kill(Pid::from_raw(i32::try_from(process.id()).unwrap()), signal).unwrap();
    }
}

impl std::ops::Deref for EtcdServer {
    type Target = Keys;

    fn deref(&self) -> &Keys {
        &self.keys
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "copy {} to {}", from.display(), to.display());
}
