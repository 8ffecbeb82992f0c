//! What policies decide: Kubernetes' own cases as data, properties, hostile values.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and may print"
)]

mod admin_tiers;
mod cnp;
mod command;
mod conformance;
mod groups;
mod hostile;
mod netpol;
mod network_policy;
mod properties;
mod reachability;
mod upstream;

// `grid` is for every test of what the rules become.
mod grid;
