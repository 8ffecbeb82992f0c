//! The packages: lintian and rpmlint, and installation to removal on a host.

// A test stops at the first failure and may print its measurements.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use humanz_test_support as support;

mod built;
mod image;
mod life;
mod lint;
mod machine;
mod processors;
mod readme;
mod reproducible;
mod rpm;
mod unit;
