//! The paths of the stores of older plugins.

use std::path::{Path, PathBuf};

/// Possible stores of older plugins.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A file.
    pub go_seed: Option<PathBuf>,
    /// The folder of the same network.
    pub host_local: Option<PathBuf>,
}

impl Sources {
    pub(super) fn is_empty(&self) -> bool {
        self.go_seed.is_none() && self.host_local.is_none()
    }

    /// One of them is there.
    pub fn exist(&self) -> bool {
        self.go_seed.iter().chain(&self.host_local).any(|path| path.exists())
    }

    /// The default paths of the store of `network`.
    pub fn usual(network: &str) -> Sources {
        Sources {
            go_seed: Some(PathBuf::from("/run/humanz-cni.json")),
            host_local: Some(Path::new("/var/lib/cni/networks").join(network)),
        }
    }
}
