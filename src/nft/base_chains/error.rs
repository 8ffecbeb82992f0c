//! Why a chain could not be read or changed.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::netlink::NetlinkError;

#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The list of older tables.
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// No program to read older tables with.
    #[error("the program {name} is not installed (package iptables)")]
    NoProgram { name: &'static str },
    #[error("run {command}")]
    Run { command: String, source: io::Error },
    #[error("{command}: {status}: {said}")]
    Program {
        command: String,
        status: ExitStatus,
        /// What it wrote to stderr.
        said: String,
    },
}
