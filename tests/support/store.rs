//! A real etcd on a node of its own.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::certificates::{Certificates, Wanted};
use super::keys::{Keys, Network};
use super::node::{Node, Place, command};
use super::process::{Process, lock};
use super::wait::eventually;

const DATA: &str = "/var/lib/etcd";

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
        let url = self.keys.url.clone();
        let mut etcd = command("etcd --name one --listen-peer-urls http://127.0.0.1:2380");
        etcd.args(["--data-dir", DATA, "--advertise-client-urls", &url]);
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        etcd.args(["--listen-client-urls", &format!("{scheme}://0.0.0.0:2379"), "--logger", "zap"]);
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
            if !self.tls.is_empty() {
                let answer = self.keys.try_call(async |client| client.get("x", None).await);
                return answer.map(drop).map_err(|error| error.to_string());
            }
            let health = self.node.run("curl -sS -m 1 http://127.0.0.1:2379/health");
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

    /// Killed, and back with its data, by https, for clients with a certificate. Gives how to connect as
    /// whom, and its URL.
    pub fn serve_tls(&mut self) -> Certificates {
        let certificates = Certificates::new();
        let says = format!(
            "subjectAltName=IP:127.0.0.1,IP:{}\nextendedKeyUsage=serverAuth,clientAuth\n",
            Self::ADDRESS_V4
        );
        certificates.sign(&Wanted { name: "server", ca: "ca", days: (-1, 30), says: &says });
        for name in ["ca.pem", "server.pem", "server.key"] {
            let text = std::fs::read_to_string(certificates.path(name)).unwrap();
            self.node.write(&format!("/etc/{name}"), &text);
        }
        self.tls = vec!["--cert-file", "/etc/server.pem", "--key-file", "/etc/server.key"];
        self.tls.extend(["--client-cert-auth", "--trusted-ca-file", "/etc/ca.pem"]);
        self.keys.url = Self::url().replace("http:", "https:");
        self.keys.options = certificates.ours();
        self.restart();
        certificates
    }

    /// Killed, and back without any of its data.
    pub fn restart_empty(&self) {
        self.kill();
        std::fs::remove_dir_all(self.node.place(DATA)).unwrap();
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
