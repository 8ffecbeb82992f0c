//! Shared by all parts: a directory, the baseline program, and hosts that stay until the end.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::node::Node;

pub struct Workspace {
    folder: tempfile::TempDir,
    /// Taking hundreds of namespaces down would disturb what is measured meanwhile.
    hosts: Vec<Node>,
}

impl Workspace {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        compile_floor(&folder.path().join("floor"));
        Self { folder, hosts: Vec::new() }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The baseline program: the required kernel calls and nothing else.
    pub fn floor(&self) -> PathBuf {
        self.folder().join("floor")
    }

    pub fn keep(&mut self, host: &Node) {
        self.hosts.push(host.clone());
    }

    /// How many hosts there are.
    pub fn count(&self) -> usize {
        self.hosts.len()
    }
}

fn compile_floor(program: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/floor.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-static", "-Wall", "-o"]).arg(program).arg(source);
    let status = gcc.status().expect("run gcc (packages gcc and libc6-dev)");
    assert!(status.success(), "{gcc:?}: {status}");
}
