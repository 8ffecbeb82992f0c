//! The address store of a network, as the verbs open it.

use std::time::Duration;

use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::ipam::import::Sources;
use crate::ipam::{LockedStore, Store, StoreError};
use crate::os::identity;
use crate::plugin::failure::OrInternal;

/// How long a call waits for a lock. The lock is held for a tenth of a millisecond: after this time
/// its holder hangs, and the runtime is asked to try again later.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The network's store.
///
/// # Errors
/// Code 999: /proc is missing.
pub fn open(conf: &NetConf) -> Result<Store, CniError> {
    let network = conf.name.as_str();
    let boot_id = identity::boot_id().or_internal("read the boot id")?;
    // Without ranges another plugin owns the addresses, and what older plugins left of them.
    let sources = if conf.ranges.is_empty() { Sources::default() } else { Sources::usual(network) };
    Ok(Store::open(&conf.data_dir, network, &boot_id, sources))
}

/// The store, locked; `None` if there is none and none can be made, so that nothing is reserved.
pub fn lock_if_any(store: &Store) -> Result<Option<LockedStore<'_>>, CniError> {
    if store.is_nowhere() {
        return Ok(None);
    }
    match store.lock(LOCK_WAIT) {
        Ok(locked) => Ok(Some(locked)),
        Err(StoreError::Io { .. }) if !store.dir().exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
