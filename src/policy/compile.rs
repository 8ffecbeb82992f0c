//! Pure. Rules as the nftables table that enforces them on one host.
//!
//! A connection is judged by its tuple as connection tracking knows it (where it came from, where it
//! went behind all translation), so that services, hairpins and replies need no rules of their own.
//! A pod's address leads by a verdict map to a program for each direction, which pods of the same rules
//! share; an address that no map holds is dropped: that is a pod's quarantine until its rules are
//! known. What is accepted bears the epoch of the rules in its mark and is not judged again before
//! the next epoch.
//!
//! No set of ranges decides alone whether a packet is judged: the kernel does not find anything in
//! one while it commits it (see [`crate::nft::Nft::replace`]).

pub mod address;
mod basis;
mod capacity;
mod compiler;
mod conditions;
mod counts;
mod forms;
mod hooks;
mod mark;
mod name;
mod peers;
mod pod_maps;
mod program;
pub mod program_keys;
mod programs;
mod services;
mod sets;
mod table;

pub use crate::policy::compile::compiler::{Compiler, compile};
pub use crate::policy::compile::forms::{
    foreign_error_prefix, log_prefix, no_connection_prefix, quarantine_prefix,
};
pub use crate::policy::compile::mark::MarkBits;
pub use crate::policy::compile::name::{
    EPOCH_CHAINS, EPOCH_SET, FORWARD_CHAIN, INPUT_CHAIN, POLICY_TABLE, counter,
};
pub use crate::policy::compile::table::{HostPolicy, PolicyTable};
