//! Files and keys of one release under the next: whoever goes one version back or forth, or has both
//! in one cluster, keeps subnets and addresses.
//!
//! `0.1.0/` holds what the release 0.1.0 wrote on a host of the tests.

// A test stops at the first surprise and may say what it measured.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use humanz_test_support as support;

mod backward;
mod forward;
mod released;
