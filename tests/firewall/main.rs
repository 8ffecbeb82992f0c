//! The firewall on the real kernel: what packets do, and what an operator's tools show.
//!
//! Needs root (or `unshare -rnm`) and the programs `ip`, `nft`, `iptables` (both kinds) and
//! `conntrack`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and may print"
)]

mod conntrack;
mod fixtures;
mod forward;
mod input;
mod masquerade;
mod network;
mod others;
mod repair;
mod sets;
mod size;
