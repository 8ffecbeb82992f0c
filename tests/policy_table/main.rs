//! Policies as a table: the table as an interpreter understands it, as the kernel reads it back, and
//! as packets meet it, against `evaluate`.
//!
//! Needs root (or `unshare -rnm`) and the programs `ip` and `nft`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and may print"
)]

mod agreement;
mod costs;
mod errors;
mod index;
mod interpreter;
mod kernel;
mod lacking;
mod large;
mod network;
mod outgrown;
mod partial;
mod parts;
mod quarantine;
mod random;
mod revocation;
mod steps;
mod world;
