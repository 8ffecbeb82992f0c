//! A real etcd on the loopback of a network namespace of its own.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, KeyValue, Txn, TxnOp,
};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::wait::eventually;

/// Runs `test` on a thread with a network of its own: only a loopback.
///
/// Threads and programs started by it are in there too. Needs root, or `unshare -rn`.
pub fn isolated(test: impl FnOnce() + Send) {
    let thread = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("no network namespace to be had: run as root");
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
    client_options: Option<ConnectOptions>,
    scheme: &'static str,
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

    /// Runs and answers by https only. `arguments` name the certificates; `ours` is how to connect.
    pub fn start_tls(arguments: &[&str], ours: ConnectOptions) -> EtcdServer {
        let mut server = EtcdServer::member("one", Ipv4Addr::LOCALHOST, arguments);
        server.scheme = "https";
        server.client_options = Some(ours);
        server.restart();
        server
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
            client_options: None,
            scheme: "http",
            folder: tempfile::tempdir().unwrap(),
            process: None,
        }
    }

    pub fn url(&self) -> String {
        format!("{}://{}:2379", self.scheme, self.address)
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
        self.client_options = Some(ConnectOptions::new().with_user(user, password));
    }

    /// Does something with a connection of the test's own.
    pub fn call<T>(&self, request: impl AsyncFnOnce(&mut Client) -> Result<T, Error>) -> T {
        self.try_call(request).unwrap_or_else(|error| panic!("etcd: {error}"))
    }

    pub fn put(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.call(async |client| client.put(key, value, None).await.map(drop));
    }

    /// Puts a value, if there is a leader.
    pub fn try_put(&self, key: &str, value: &str) -> Result<(), Error> {
        self.try_call(async |client| client.put(key, value, None).await.map(drop))
    }

    /// Puts a value if there is none; says whether it did.
    pub fn create(&self, key: &str, value: &str) -> bool {
        self.call(async |client| {
            let absent = Compare::version(key, CompareOp::Equal, 0);
            let put = TxnOp::put(key, value, None);
            Ok(client.txn(Txn::new().when([absent]).and_then([put])).await?.succeeded())
        })
    }

    /// Deletes every key that begins with `prefix`; says how many.
    pub fn delete_all(&self, prefix: &str) -> i64 {
        let options = etcd_client::DeleteOptions::new().with_prefix();
        self.call(async |client| Ok(client.delete(prefix, Some(options)).await?.deleted()))
    }

    pub fn delete(&self, key: &str) {
        let deleted = self.call(async |client| Ok(client.delete(key, None).await?.deleted()));
        assert_eq!(deleted, 1, "{key} was there");
    }

    /// Keys below a prefix with their values, in the order of the keys.
    pub fn list(&self, prefix: &str) -> Vec<(String, String)> {
        let pairs = self.pairs(prefix);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs.iter().map(|pair| (text(pair.key()), text(pair.value()))).collect()
    }

    pub fn pairs(&self, prefix: &str) -> Vec<KeyValue> {
        let options = GetOptions::new().with_prefix();
        self.call(async |client| Ok(client.get(prefix, Some(options)).await?.take_kvs()))
    }

    pub fn get(&self, key: &str) -> Option<String> {
        self.list(key).into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Forgets all history: a watch from before cannot go on.
    pub fn compact(&self) {
        self.call(async |client| {
            let now = client.get("x", None).await?.header().expect("a header").revision();
            client.compact(now, None).await.map(drop)
        });
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
        // On one machine the members hear of each other within microseconds.
        command.args(["--heartbeat-interval", "30", "--election-timeout", "300"]);
        command.args(["--logger", "zap", "--log-level", "warn"]);
        command.arg("--data-dir").arg(self.data()).args(&self.arguments);
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

    fn try_call<T>(
        &self,
        request: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = self.client_options.clone().unwrap_or_default();
        let options = options.with_timeout(Duration::from_secs(10));
        runtime.block_on(async {
            let mut client = Client::connect([self.url()], Some(options)).await?;
            request(&mut client).await
        })
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("etcd runs");
        kill(Pid::from_raw(i32::try_from(process.id()).unwrap()), signal).unwrap();
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
