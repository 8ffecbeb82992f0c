//! The lease against a real etcd.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a test stops at the first surprise and may talk"
)]

#[path = "../support"]
#[allow(dead_code, reason = "shared with other tests")]
mod support {
    pub mod certificates;
    pub mod etcd;
    pub mod keys;
    pub mod wait;
}

mod access;
mod adoption;
mod allocation;
mod chaos;
mod growth;
mod host;
mod hostile;
mod loss;
mod outage;
mod python;
mod reports;
mod rotation;
mod scale;
mod tls;
mod watching;
