//! The network settings in etcd, written by an administrator.

use crate::etcd::{self, EtcdSettings};
use crate::lease::growth;
use crate::lease::records::{Key, Roots};
use crate::lease::transaction::Transaction;
use crate::os::identity;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};
use crate::sources::tenant_pools;

/// Writes those of `settings`, if etcd has no record of any host: for a new network.
///
/// # Errors
/// etcd refused; or there are hosts without settings, which puts an agent back.
pub fn write_first(settings: &Settings, server: &EtcdSettings, roots: &Roots) -> Result<(), Exit> {
    let found = etcd::read(server, roots).map_err(unreachable)?;
    if found.modified(roots, &Key::Config) != 0 {
        return Ok(());
    }
    if !(found.hosts.is_empty() && found.nodes.is_empty() && found.claims.is_empty()) {
        let why = "this is no new network: etcd has hosts, but not the network settings, which a running \
                   agent puts back within seconds";
        return Err(failed(why.to_owned()));
    }
    write(settings, server, roots)
}

/// Writes those of `settings`, if etcd has none or narrower ones.
///
/// # Errors
/// etcd refused, or its network is another one.
pub fn write(settings: &Settings, server: &EtcdSettings, roots: &Roots) -> Result<(), Exit> {
    let network = settings.network(roots);
    let found = etcd::read(server, roots).map_err(unreachable)?;
    let transaction = if found.modified(roots, &Key::Config) == 0 {
        let id = identity::random_id().map_err(|error| failed(error.to_string()))?;
        let key = network.key(&Key::Config);
        let mut transaction = Transaction::default();
        transaction.unchanged(&key, 0);
        transaction.put(key, network.config(&id.replace('-', "")).to_json());
        Some(transaction)
    } else {
        let network = etcd::beside_tenants(server, &found, network, tenant_pools);
        growth::of(&found, &network.map_err(unreachable)?).map_err(|why| failed(why.with_fix()))?
    };
    let Some(transaction) = transaction else { return Ok(()) };
    let done = etcd::commit(server, roots, "write the network settings", &transaction);
    done.map(drop).map_err(failed)
}

fn failed(why: String) -> Exit {
    Exit::new(exit::FAILURE, format!("network settings: {why}"))
}

fn unreachable(why: String) -> Exit {
    Exit::new(exit::UNAVAILABLE, format!("network settings: {why}"))
}
