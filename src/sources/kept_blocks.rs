//! The blocks of hosts on disk: without etcd a host that starts again has its own, and routes to the others.

use std::collections::BTreeSet;
use std::path::Path;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::lease::blocks::FoundBlocks;
use crate::lease::records::{NodeName, Roots};
use crate::os::files::{self, FileError};
use crate::sources::kept_file;

/// In the state directory.
pub const FILE: &str = "blocks.json";

/// What etcd had last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// This host's.
    pub own: BTreeSet<IpNetwork>,
    pub found: FoundBlocks,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlocksFile {
    /// `HUMANZ_PREFIX` and the host: those of another one are not this host's.
    prefix: String,
    host: NodeName,
    own: BTreeSet<IpNetwork>,
    found: Vec<(NodeName, IpNetwork, i64)>,
}

impl KeptBlocks {
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, state_dir: &Path, roots: &Roots, host: &NodeName) -> Result<(), FileError> {
        let file = BlocksFile {
            prefix: roots.humanz.clone(),
            host: host.clone(),
            own: self.own.clone(),
            found: self.found.iter().map(|(host, block, at)| (host.clone(), block, at)).collect(),
        };
        let text = serde_json::to_vec(&file).unwrap_or_default();
        files::replace(&state_dir.join(FILE), &text, 0o600)
    }

    /// None, where there is no file, none that can be used, or one about another place.
    pub fn read(state_dir: &Path, roots: &Roots, own: &NodeName) -> KeptBlocks {
        let path = state_dir.join(FILE);
        match kept_file::read::<BlocksFile>(&path) {
            Some(file) if (&file.prefix, &file.host) == (&roots.humanz, own) => {
                let mut found = FoundBlocks::default();
                for (host, block, created) in file.found {
                    found.put(roots, roots.block(&host, block).as_bytes(), created);
                }
                KeptBlocks { own: file.own, found }
            }
            Some(BlocksFile { host, prefix, .. }) => {
                log::warn!("{} is of host {host} below {prefix}: not used", path.display());
                KeptBlocks::default()
            }
            None => KeptBlocks::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn blocks_of_another_host_or_prefix_and_garbled_ones_are_not_this_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let roots = |humanz: &str| Roots {
            hosts: "/h".to_owned(),
            counter: "/c".to_owned(),
            humanz: humanz.to_owned(),
        };
        let (here, own) = (roots("/z"), "h1".parse().unwrap());
        let mut kept = KeptBlocks::default();
        kept.own.insert("10.32.0.0/26".parse().unwrap());
        kept.found.put(&here, b"/z-blocks/h2/10.32.0.64-26", 7);
        kept.write(folder.path(), &here, &own).unwrap();
        assert_eq!(KeptBlocks::read(folder.path(), &here, &own), kept);
        let nothing = KeptBlocks::default();
        assert_eq!(KeptBlocks::read(folder.path(), &roots("/y"), &own), nothing);
        assert_eq!(KeptBlocks::read(folder.path(), &here, &"h2".parse().unwrap()), nothing);
        for hostile in ["", "[]", "\u{0}", r#"{"own":["10.32.0.0/99"]}"#] {
            fs::write(folder.path().join(FILE), hostile).unwrap();
            assert_eq!(KeptBlocks::read(folder.path(), &here, &own), nothing, "{hostile}");
        }
    }
}
