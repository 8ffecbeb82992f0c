//! Hosts, a network between them, etcd, agents and pods, in namespaces of this machine.
//!
//! A [`Node`] is a process tree with its own network, mounts, PIDs and host name: `/run`, `/tmp`,
//! `/etc`, `/opt`, `/var/lib` and `/var/log` are its own, the rest is this machine's, read-only.
//! Its first process ends when the test does, however that ends, and takes everything with it.
//! A [`Cluster`] is a switch, an "outside" that knows no pod, etcd, and hosts `h1`, `h2`, …
#![allow(
    clippy::new_without_default,
    clippy::unwrap_used,
    clippy::let_underscore_must_use,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops at the first failure and may print"
)]

pub mod agent;
pub mod certificates;
pub mod chroot;
pub mod cidr;
pub mod cluster;
pub mod cni;
pub mod definitions;
pub mod disk;
pub mod echo;
pub mod etcd;
pub mod facts;
pub mod guide;
pub mod kernel;
pub mod keys;
pub mod local;
pub mod namespace;
pub mod netns;
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
pub use netns::Netns;
pub use node::{Node, Place};
pub use ping::Pinger;
pub use plugin_host::PluginHost;
pub use pod::Pod;
pub use process::{Ended, Process};
pub use wait::{eventually, soon};

use std::path::PathBuf;

/// The executable under test: `HUMANZ_BIN`, else the one that cargo built beside this test
/// (`target/debug/humanz-agent` for `target/debug/deps/x` or `target/debug/examples/x`).
pub fn executable() -> PathBuf {
    let path = std::env::var_os("HUMANZ_BIN").map(PathBuf::from).unwrap_or_else(|| {
        let test = std::env::current_exe().expect("/proc");
        test.ancestors().nth(2).expect("a target directory").join("humanz-agent")
    });
    path.canonicalize().unwrap_or_else(|e| panic!("{}: {e}; run make build", path.display()))
}
