//! A real etcd on a node of its own.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::keys::{Keys, Network};
use super::node::{Node, Place, command};
use super::process::{Process, lock};
use super::wait::eventually;

const DATA: &str = "/var/lib/etcd";

/// The copy of [`Store::keep_copy`].
const COPY: &str = "/var/lib/etcd-copy";

pub struct Store {
    pub node: Node,
    server: Mutex<Option<Process>>,
    keys: Keys,
    /// Arguments of one that speaks https.
    tls: Vec<&'static str>,
}

impl Store {
    pub const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
    pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);

    /// Not running; see [`Store::start`].
    pub fn new(node: Node) -> Self {
        let network = node.clone();
        let network: Network = Box::new(move |task| {
            network.with_namespace(|namespace| namespace.on_its_network(task));
        });
        Self {
            node,
            server: Mutex::default(),
            keys: Keys::new(Self::url(), network),
            tls: Vec::new(),
        }
    }

    pub fn url() -> String {
        format!("http://{}:2379", Self::ADDRESS_V4)
    }

    pub fn start(&self) {
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let url = Self::url().replace("http", scheme);
        let mut etcd = command("etcd --name one --listen-peer-urls http://127.0.0.1:2380");
        etcd.args(["--data-dir", DATA, "--advertise-client-urls", &url]);
        etcd.args(["--listen-client-urls", &format!("{scheme}://[::]:2379"), "--logger", "zap"]);
        etcd.args(&self.tls);
        // Alone it elects itself: no reason to wait a second for others.
        etcd.args(["--heartbeat-interval", "20", "--election-timeout", "100"]);
        *lock(&self.server) = Some(self.node.spawn(&mut etcd));
    }

    /// Waits until it answers.
    pub fn wait_ready(&self) {
        eventually("etcd answers", Duration::from_secs(30), || {
            if let Some(status) = self.server(Process::ended) {
                return Err(format!("it ended: {status}\n{}", self.server(Process::log)));
            }
            let by = match self.tls.is_empty() {
                true => "http",
                false => "--cacert /etc/ca.pem --cert /etc/server.pem --key /etc/server.key https",
            };
            let health = self.node.run(&format!("curl -sS -m 1 {by}://127.0.0.1:2379/health"));
            if health.stdout.contains("true") { Ok(()) } else { Err(health.to_string()) }
        });
    }

    pub fn kill(&self) {
        self.server(Process::kill);
    }

    /// Holds it still: it keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.server(|server| server.signal(Signal::SIGSTOP));
    }

    pub fn thaw(&self) {
        self.server(|server| server.signal(Signal::SIGCONT));
    }

    /// Killed, and back with its data, by https, with `server.pem`, `server.key` and `ca.pem` in its
    /// `/etc`; it asks its clients for certificates.
    pub fn restart_with_tls(&mut self) {
        self.tls = vec!["--cert-file", "/etc/server.pem", "--key-file", "/etc/server.key"];
        self.tls.extend(["--client-cert-auth", "--trusted-ca-file", "/etc/ca.pem"]);
        self.restart();
    }

    /// Killed, and back without any of its data.
    pub fn restart_empty(&self) {
        self.kill();
        std::fs::remove_dir_all(self.node.place(DATA)).unwrap();
        self.restart();
    }

    /// Killed, and back with its data, of which a copy is kept.
    pub fn keep_copy(&self) {
        self.kill();
        let [data, copy] = [DATA, COPY].map(|path| self.node.place(path));
        let copied = std::process::Command::new("cp").arg("-a").arg(data).arg(copy).status();
        assert!(copied.unwrap().success());
        self.restart();
    }

    /// Killed, and back with the data of the copy.
    pub fn restart_from_copy(&self) {
        self.kill();
        let [data, copy] = [DATA, COPY].map(|path| self.node.place(path));
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(copy, data).unwrap();
        self.restart();
    }

    /// Killed if it runs, and back with its data.
    pub fn restart(&self) {
        self.kill();
        self.start();
        self.wait_ready();
    }

    fn server<T>(&self, use_it: impl FnOnce(&Process) -> T) -> T {
        use_it(lock(&self.server).as_ref().expect("etcd was started"))
    }
}

impl std::ops::Deref for Store {
    type Target = Keys;

    fn deref(&self) -> &Keys {
        &self.keys
    }
}

impl std::ops::DerefMut for Store {
    fn deref_mut(&mut self) -> &mut Keys {
        &mut self.keys
    }
}
