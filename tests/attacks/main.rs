//! Attacks from a pod that may send any frame (NET_RAW) and set its interface (NET_ADMIN): against
//! humanz, where none may succeed, and against the reference plugins `bridge` and `host-local`,
//! where they do, so that each test here can fail.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says what it measured"
)]

use humanz_test_support as support;

mod agent;
mod agentless;
mod attack;
mod checksums;
mod forged_hosts;
mod frames;
mod headers;
mod kernel_state;
mod link_frames;
mod metrics_address;
mod neighbours;
mod packet_socket;
mod packets;
mod programs;
mod requested_macs;
mod scene;
mod sub_interfaces;
mod tunnels;
