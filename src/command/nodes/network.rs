//! The network settings in etcd, written by an administrator.

use crate::etcd::{self, EtcdSettings};
use crate::lease::growth;
use crate::lease::records::{Key, Roots};
use crate::lease::transaction::Transaction;
use crate::os::identity;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// Writes those of `settings`, if etcd has none or narrower ones.
///
/// # Errors
/// etcd refused, or its network is another one.
pub fn write(settings: &Settings, server: &EtcdSettings, roots: &Roots) -> Result<(), Exit> {
    let network = settings.network(roots);
    let failed = |why: String| Exit::new(exit::FAILURE, format!("network settings: {why}"));
    let unreachable =
        |why: String| Exit::new(exit::UNAVAILABLE, format!("network settings: {why}"));
    let found = etcd::read(server, roots).map_err(unreachable)?;
    let transaction = if found.modified(roots, &Key::Config) == 0 {
        let id = identity::random_id().map_err(|error| failed(error.to_string()))?;
        let key = network.key(&Key::Config);
        let mut transaction = Transaction::default();
        transaction.unchanged(&key, 0);
        transaction.put(key, network.config(&id.replace('-', "")).to_json());
        Some(transaction)
    } else {
        growth::of(&found, &network).map_err(|why| failed(why.with_fix()))?
    };
    let Some(transaction) = transaction else { return Ok(()) };
    let done = etcd::commit(server, roots, "write the network settings", &transaction);
    done.map(drop).map_err(failed)
}
