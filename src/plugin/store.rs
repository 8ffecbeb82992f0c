//! The address store of a network, as the verbs open it.

use std::time::Duration;

use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::ipam::import::Sources;
use crate::ipam::{LockedStore, Store, StoreError};
use crate::os::identity;
use crate::plugin::call_time::{self, Wait};
use crate::plugin::failure::OrInternal;

/// How long a call waits for locks, for all of them together: DEL takes four for each interface. A lock is held for a
/// tenth of a millisecond: after this time its holder hangs, and the runtime is asked to try again later.
const LOCK_WAIT: Duration = Duration::from_secs(5);

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

/// What `take` gives within the time that it gets: what is left of that for locks, and of that of this call.
///
/// # Errors
/// Those of `take`.
pub fn locked<T>(take: impl FnOnce(Duration) -> Result<T, StoreError>) -> Result<T, StoreError> {
    let locks = if call_time::is_undoing() { Wait::UndoLocks } else { Wait::Locks };
    let wait = call_time::left(LOCK_WAIT.saturating_sub(call_time::waited(locks)));
    let taken = call_time::noted(locks, || take(wait));
    taken.map_err(|error| match error {
        StoreError::LockTimeout { path, .. } => {
            StoreError::LockTimeout { path, waited: call_time::waited(locks) }
        }
        other => other,
    })
}

/// The store, locked; `None` if there is none and none can be made, so that nothing is reserved.
pub fn lock_if_any(store: &Store) -> Result<Option<LockedStore<'_>>, CniError> {
    if store.is_nowhere() {
        return Ok(None);
    }
    match locked(|wait| store.lock(wait)) {
        Ok(locked) => Ok(Some(locked)),
        Err(StoreError::Io { .. }) if !store.dir().exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
