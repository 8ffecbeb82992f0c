//! The folders that the agent writes to: one that became read-only lies outside of its view by now.
//!
//! A service manager shows the agent a file system in which only certain folders are writable. If somebody
//! removes one of them and makes it again, the new one is not among them until the agent is started again.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::agent::notify;
use crate::agent::serve::agent::Agent;
use crate::agent::trigger::Scope;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

impl Agent {
    /// Why a service manager should start the agent again: a folder that could be written to is read-only.
    pub(super) fn lost_folder(&mut self) -> Option<Exit> {
        // Policies and pods are written elsewhere, and come often.
        let writes_elsewhere = matches!(self.state.scope, Scope::POLICY | Scope::PODS);
        if writes_elsewhere || !notify::is_supervised() {
            return None;
        }
        let (read_only, writable): (Vec<_>, Vec<_>) =
            folders(&self.settings).into_iter().partition(|folder| is_read_only(folder));
        let lost = read_only.into_iter().find(|folder| self.state.writable.contains(folder));
        self.state.writable.extend(writable);
        let why = |folder: PathBuf| {
            let why = format!(
                "{} is read-only and was not before: it was replaced while the agent ran; the service \
                 manager starts the agent again, with the present one",
                folder.display()
            );
            Exit::new(exit::FAILURE, why)
        };
        lost.map(why)
    }
}

/// Of the files that the agent writes.
fn folders(settings: &Settings) -> Vec<PathBuf> {
    let files = [&settings.cni.config, &settings.cni.plugin];
    let files = files.into_iter().chain(settings.socket.as_ref());
    files.filter_map(|file| file.parent()).map(Path::to_owned).collect()
}

/// On a file system that is mounted read-only; for one that is missing, where it would be made.
fn is_read_only(folder: &Path) -> bool {
    let found = folder.ancestors().find_map(|folder| statvfs(folder).ok());
    found.is_some_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}
