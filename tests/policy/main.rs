//! What policies decide: Kubernetes' own cases as data, properties, hostile values.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and may print"
)]

mod admin_tiers;
mod network_policy;
mod reachability;
