//! The namespace that a runtime names.

use std::path::Path;

use crate::cni::env::Netns;
use crate::cni::error::CniError;
use crate::os::netns::{NetNs, NetNsError};
use crate::plugin::failure;

/// The pod's namespace: not the plugin's own, unless the runtime says that it may be.
///
/// # Errors
/// Code 8: nothing is there, it is no namespace, or it is the plugin's own.
pub fn open(netns: &Netns) -> Result<NetNs, CniError> {
    let refused = |error: NetNsError| CniError::netns(failure::chain(&error));
    let opened = NetNs::open(Path::new(&netns.path)).map_err(refused)?;
    if !netns.may_be_own && NetNs::current().and_then(|own| own.is(&opened)).map_err(refused)? {
        return Err(CniError::netns(format!(
            "CNI_NETNS {} is the host's own network namespace, not a container's",
            netns.path
        )));
    }
    Ok(opened)
}
