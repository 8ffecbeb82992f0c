//! The plugin, run as a runtime runs it, on hosts without an agent or etcd.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and tells what it measured"
)]

#[path = "../support/mod.rs"]
mod support;

mod add;
mod addresses;
mod bandwidth;
mod chain;
mod check;
mod del;
mod faults;
mod gc;
mod hostports;
mod hostports_owners;
mod killed;
mod log;
mod many;
mod reach;
mod second;
mod status;
mod tuning;

/// Every version of the protocol.
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
