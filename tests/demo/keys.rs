//! The keys of an etcd, read with etcdctl. (The tests' own client needs all of etcd-client's crates.)

use std::process::Command;

/// Runs a task where etcd can be reached.
pub type Network = Box<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// The keys of one member.
pub struct Keys {
    url: String,
    network: Network,
}

impl Keys {
    pub fn new(url: String, network: Network) -> Self {
        Self { url, network }
    }

    /// Keys below a prefix with their values, in the order of the keys.
    pub fn list(&self, prefix: &str) -> Vec<(String, String)> {
        let mut shown = String::new();
        (self.network)(&mut || {
            let mut etcdctl = Command::new("etcdctl");
            etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &self.url]);
            let output = etcdctl.args(["get", "--prefix", prefix]).output().expect("run etcdctl");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            shown = String::from_utf8(output.stdout).expect("the keys of humanz are text");
        });
        let lines: Vec<&str> = shown.lines().collect();
        lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
    }

    pub fn get(&self, key: &str) -> Option<String> {
        self.list(key).into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}
