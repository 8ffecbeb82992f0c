//! Real container runtimes with humanz as their network. `SKIP_RUNTIMES=1` leaves them out.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and prints what it skipped"
)]

mod client;
mod containerd;
mod cri;
mod podman;
mod podman5;
mod scene;
use humanz_test_support as support;

fn skipped() -> bool {
    let skip = std::env::var("SKIP_RUNTIMES").is_ok_and(|value| value == "1");
    if skip {
        println!("left out: SKIP_RUNTIMES=1");
    }
    skip
}
