//! The packages: what the distributions' own judges say of them, and a life of one on a host.

// A test stops at the first surprise and may say what it measured.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use humanz_test_support as support;

mod built;
mod image;
mod life;
mod lint;
mod machine;
mod rpm;
mod unit;
