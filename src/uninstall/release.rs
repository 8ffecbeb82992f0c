//! Gives this host's subnet back.

use crate::agent::applier::Applier;
use crate::etcd;
use crate::inspect::{Kernel, identity};
use crate::lease::claim::leave;
use crate::net::Object;
use crate::net::node_name::NodeName;
use crate::plan::Line;
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source};

/// How often the keys may change while they are removed.
const TRIES: u32 = 5;

/// Removes this host's keys from etcd, all at once.
///
/// # Errors
/// There is no etcd, it cannot be reached, or the keys are another machine's.
pub fn run(
    settings: &Settings,
    kernel: &Kernel,
    dry: bool,
    applier: &mut Applier,
) -> Result<(), Exit> {
    let Source::Etcd { server, roots } = &settings.source else {
        let why = "--release: this host's subnet is not leased (SUBNET_SOURCE is not etcd)";
        return Err(Exit::new(exit::SETTINGS, why));
    };
    let own = identity::of_host(&identity::node_name(settings)?, &kernel.machine_id)?;
    let unreachable = |error: String| unreachable(&own.name, &error);
    for _ in 0..TRIES {
        let found = etcd::read(server, roots).map_err(unreachable)?;
        let keys = leave::keys(&found, &own).map_err(|error| Exit::new(exit::FAILURE, error))?;
        // A role made for earlier versions may not read them, and no host writes them then.
        let members = etcd::members_of(server, roots, &own.name);
        let members = members.inspect_err(|error| log::warn!("{error}")).unwrap_or_default();
        let transactions = leave::transactions(&found, &own.name, &keys, &members, roots);
        let mut done = true;
        for transaction in transactions.iter().filter(|transaction| !dry && transaction.deletes()) {
            let commit = || etcd::commit(server, roots, "release the subnet", transaction);
            done = done && commit().map_err(unreachable)?;
        }
        if done {
            let of_members = members.into_iter().map(|(key, _)| key);
            let keys = keys.iter().map(|key| roots.key(key)).chain(of_members);
            let lines: Vec<Line> = keys.map(|key| Line::removed(Object::Key(key))).collect();
            applier.apply_together(&lines, || Ok::<(), anyhow::Error>(()));
            return Ok(());
        }
    }
    Err(Exit::new(exit::TEMPORARY, "this host's keys keep changing: does an agent run?"))
}

/// What is left to do, and where, when etcd does not take this host's keys out.
fn unreachable(host: &NodeName, error: &str) -> Exit {
    let why = format!(
        "release the subnet: {error}; humanz-agent uninstall # with the same options again when etcd answers: all else goes \
         without it; or on another host: humanz-agent nodes rm {host}"
    );
    Exit::new(exit::UNAVAILABLE, why)
}
