//! The namespace that `CNI_NETNS` names.

use std::path::Path;

use crate::cni::env::Netns;
use crate::cni::error::CniError;
use crate::os::netns::{NetNs, NetNsError};
use crate::plugin::failure;

/// The pod's namespace; the plugin's own only if the runtime allows it.
///
/// # Errors
/// Code 8: missing, not a namespace, or the plugin's own.
pub fn open(netns: &Netns) -> Result<NetNs, CniError> {
    let opened = open_any(netns)?;
    if !netns.may_be_own && NetNs::current().and_then(|own| own.is(&opened)).map_err(refused)? {
        return Err(CniError::netns(format!(
            "CNI_NETNS {} is the host's own network namespace, not a container's",
            netns.path
        )));
    }
    Ok(opened)
}

/// The pod's namespace, or the plugin's own.
///
/// # Errors
/// Code 8: missing, or not a namespace.
pub fn open_any(netns: &Netns) -> Result<NetNs, CniError> {
    NetNs::open(Path::new(&netns.path)).map_err(refused)
}

fn refused(error: NetNsError) -> CniError {
    CniError::netns(failure::chain(&error))
}
