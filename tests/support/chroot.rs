//! A root directory with nothing but the executable.

use super::disk::EXECUTABLE;
use super::node::{Node, Place, command};

/// A folder of a node that programs run in as their root.
pub struct Chroot {
    pub host: Node,
    pub folder: String,
}

impl Chroot {
    /// An empty one, with the executable under `name` and the kernel's `/proc`.
    pub fn new(host: &Node, name: &str) -> Self {
        let folder = format!("/tmp/root-{name}");
        host.run(&format!("mkdir -p {folder}/proc {folder}/etc")).ok();
        host.run(&format!("cp {EXECUTABLE} {folder}/{name}")).ok();
        host.run(&format!("mount --bind /proc {folder}/proc")).ok();
        Self { host: host.clone(), folder }
    }

    /// The command `line` with this root.
    pub fn command(&self, line: &str) -> std::process::Command {
        let mut command = command(&format!("chroot {} {line}", self.folder));
        // What `chroot` itself needs is found before; inside there is nothing to be found.
        command.env_remove("HOME");
        command
    }

    /// Writes a file in there.
    pub fn write(&self, path: &str, text: &str) {
        self.host.write(&format!("{}{path}", self.folder), text);
    }

    /// Reads a file in there.
    pub fn read(&self, path: &str) -> Option<String> {
        self.host.read(&format!("{}{path}", self.folder))
    }

    /// Shows a file of the host in there, at the same path.
    pub fn show(&self, path: &str) {
        let target = format!("{}{path}", self.folder);
        self.host.shell(&format!("mkdir -p $(dirname {target}); touch {target}")).ok();
        self.host.run(&format!("mount --bind {path} {target}")).ok();
    }
}
