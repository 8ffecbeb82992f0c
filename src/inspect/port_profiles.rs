//! The profiles of this host's ports, as the agent left them for the plugin and for its next life.

use std::fs;
use std::path::{Path, PathBuf};

use crate::net::IfName;
use crate::plan::profiles::{PortProfile, PortProfiles};

/// The file, in the folder of the store of addresses (`dataDir`), which agent and plugin know; none while no pod
/// has a profile.
pub fn path(ipam_dir: &Path) -> PathBuf {
    ipam_dir.join(".profiles")
}

/// None if there is no file, or one that is not understood: the agent writes it anew.
pub fn read(ipam_dir: &Path) -> PortProfiles {
    // To say where no bytes are wrong takes serde_json 30 us in a virtual machine: it asks what the processor can do.
    let Ok(bytes) = fs::read(path(ipam_dir)) else { return PortProfiles::default() };
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// That of this port.
pub fn of_port(ipam_dir: &Path, port: &IfName) -> Option<PortProfile> {
    read(ipam_dir).remove(port)
}
