//! A real etcd on a node of its own.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use nix::sys::signal::Signal;

use super::node::{Node, Place, command};
use super::process::{Process, lock};
use super::wait::eventually;

const DATA: &str = "/var/lib/etcd";

pub struct Store {
    pub node: Node,
    server: Mutex<Option<Process>>,
}

impl Store {
    pub const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
    pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);

    /// Not running; see [`Store::start`].
    pub fn new(node: Node) -> Self {
        Self { node, server: Mutex::default() }
    }

    pub fn url() -> String {
        format!("http://{}:2379", Self::ADDRESS_V4)
    }

    pub fn start(&self) {
        let url = Self::url();
        let mut etcd = command("etcd --name one --listen-peer-urls http://127.0.0.1:2380");
        etcd.args(["--data-dir", DATA, "--advertise-client-urls", &url]);
        etcd.args(["--listen-client-urls", "http://0.0.0.0:2379", "--logger", "zap"]);
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

    /// Puts a value; gives the moment just before the request left.
    pub fn put(&self, key: &str, value: impl Into<Vec<u8>> + Send) -> Instant {
        let value = value.into();
        self.timed(async |client| client.put(key, value, None).await.map(drop))
    }

    /// Deletes a key that is there; gives the moment just before the request left.
    pub fn delete(&self, key: &str) -> Instant {
        self.timed(async |client| {
            let answer = client.delete(key, None).await?;
            assert_eq!(answer.deleted(), 1, "{key} was there");
            Ok(())
        })
    }

    /// Keys below a prefix with their values, in the order of the keys.
    pub fn list(&self, prefix: &str) -> Vec<(String, String)> {
        self.call(async |client| {
            let answer = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok(answer.kvs().iter().map(|kv| (text(kv.key()), text(kv.value()))).collect())
        })
    }

    pub fn get(&self, key: &str) -> Option<String> {
        let found = self.list(key).into_iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value)
    }

    /// Puts a value if there is none; whether it did.
    pub fn create(&self, key: &str, value: &str) -> bool {
        self.call(async |client| {
            let absent = Compare::version(key, CompareOp::Equal, 0);
            let put = TxnOp::put(key, value, None);
            Ok(client.txn(Txn::new().when([absent]).and_then([put])).await?.succeeded())
        })
    }

    /// How often a key has been put since it was created.
    pub fn version(&self, key: &str) -> i64 {
        self.call(async |client| {
            Ok(client.get(key, None).await?.kvs().first().map_or(0, |kv| kv.version()))
        })
    }

    /// Forgets all history: a watch from before cannot go on.
    pub fn compact(&self) {
        self.call(async |client| {
            let now = client.get("x", None).await?.header().expect("a header").revision();
            client.compact(now, None).await.map(drop)
        });
    }

    fn server<T>(&self, use_it: impl FnOnce(&Process) -> T) -> T {
        use_it(lock(&self.server).as_ref().expect("etcd was started"))
    }

    fn timed(
        &self,
        request: impl AsyncFnOnce(&mut Client) -> Result<(), etcd_client::Error> + Send,
    ) -> Instant {
        self.call(async |client| {
            // A connection is made by the first request on it.
            client.get("x", None).await?;
            let start = Instant::now();
            request(client).await?;
            Ok(start)
        })
    }

    fn call<T: Send>(
        &self,
        request: impl AsyncFnOnce(&mut Client) -> Result<T, etcd_client::Error> + Send,
    ) -> T {
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let mut client = Client::connect([Self::url()], None).await?;
                request(&mut client).await
            })
        };
        let answer = self.node.with_namespace(|namespace| namespace.on_its_network(work));
        answer.unwrap_or_else(|e| panic!("etcd: {e}"))
    }
}
