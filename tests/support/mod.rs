//! Hosts, a network between them, etcd, agents and pods, in namespaces of this machine.
//!
//! A [`Node`] is a process tree with its own network, mounts, PIDs and host name: `/run`, `/tmp`,
//! `/etc`, `/opt`, `/var/lib` and `/var/log` are its own, the rest is this machine's, read-only.
//! Its first process ends when the test does, however that ends, and takes everything with it.
//! A [`Cluster`] is a switch, an "outside" that knows no pod, etcd, and hosts `h1`, `h2`, …
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::let_underscore_must_use,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "each test file uses a part; a test stops at the first surprise and may talk"
)]

pub mod agent;
pub mod certificates;
pub mod chroot;
pub mod cluster;
pub mod cni;
pub mod disk;
pub mod echo;
pub mod facts;
pub mod keys;
pub mod local;
pub mod namespace;
pub mod node;
pub mod ping;
pub mod plugin_host;
pub mod pod;
pub mod process;
pub mod store;
pub mod wait;
pub mod watch;
pub mod web;

pub use agent::Agent;
pub use cluster::{Alone, Cluster};
pub use node::{Node, Place};
pub use ping::Pinger;
pub use plugin_host::PluginHost;
pub use pod::Pod;
pub use process::{Ended, Process};
pub use wait::{eventually, soon};

use std::path::PathBuf;

/// The executable under test: `HUMANZ_BIN`, else the one cargo built for this test.
pub fn executable() -> PathBuf {
    let path = std::env::var("HUMANZ_BIN")
        .ok()
        .or_else(|| option_env!("CARGO_BIN_EXE_humanz-agent").map(String::from))
        .expect("HUMANZ_BIN is not set: run it by make");
    std::fs::canonicalize(&path).unwrap_or_else(|e| panic!("{path}: {e}; run make build"))
}
