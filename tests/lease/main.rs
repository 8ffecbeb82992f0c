//! The lease against a real etcd.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and may print"
)]

use humanz_test_support as support;

mod access;
mod adoption;
mod allocation;
mod chaos;
mod copies;
mod disputed;
mod first_start;
mod growth;
mod host;
mod hostile;
mod keys;
mod keys_changed;
mod loss;
mod many_blocks;
mod other_groups;
mod outage;
mod python;
mod reports;
mod rests;
mod rolled_back;
mod rotation;
mod scale;
mod tls;
mod watching;
mod withheld;
