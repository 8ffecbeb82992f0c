//! Files and keys of one release under the next: an upgrade or downgrade by one version, or both
//! versions in one cluster, keep subnets and addresses.
//!
//! `0.1.0/` holds the files that release 0.1.0 wrote on a host of the tests.

// A test stops at the first failure and may print its measurements.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use humanz_test_support as support;

mod backward;
mod forward;
mod released;
