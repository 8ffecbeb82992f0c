//! The parts of the tests' hosts, network, etcd, agents and pods that the demo uses: see
//! `tests/support/mod.rs`.
#![allow(dead_code, clippy::let_underscore_must_use, reason = "the demo uses a part")]

#[path = "../support/agent.rs"]
pub mod agent;
#[path = "../support/cluster.rs"]
pub mod cluster;
#[path = "../support/cni.rs"]
pub mod cni;
#[path = "../support/disk.rs"]
pub mod disk;
#[path = "../support/facts.rs"]
pub mod facts;
#[path = "keys.rs"]
pub mod keys;
#[path = "../support/local.rs"]
pub mod local;
#[path = "../support/namespace.rs"]
pub mod namespace;
#[path = "../support/node.rs"]
pub mod node;
#[path = "../support/ping.rs"]
pub mod ping;
#[path = "../support/pod.rs"]
pub mod pod;
#[path = "../support/process.rs"]
pub mod process;
#[path = "../support/store.rs"]
pub mod store;
#[path = "../support/wait.rs"]
pub mod wait;
#[path = "../support/watch.rs"]
pub mod watch;
#[path = "../support/web.rs"]
pub mod web;

pub use agent::Agent;
pub use cluster::Cluster;
pub use node::{Node, Place};
pub use ping::Pinger;
pub use pod::Pod;

/// The executable that the hosts run: `HUMANZ_BIN`.
pub fn executable() -> std::path::PathBuf {
    let path = std::env::var("HUMANZ_BIN").expect("HUMANZ_BIN is not set: run it by make");
    std::fs::canonicalize(&path).unwrap_or_else(|e| panic!("{path}: {e}; run make build"))
}
