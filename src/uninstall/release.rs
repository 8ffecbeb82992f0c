//! Gives this host's subnet back.

use crate::agent::applier::Applier;
use crate::etcd;
use crate::inspect::{Kernel, identity};
use crate::lease::claim::leave;
use crate::net::Object;
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
    let unreachable = |error| Exit::new(exit::UNAVAILABLE, format!("release the subnet: {error}"));
    let own = identity::of_host(&identity::node_name(settings)?, &kernel.machine_id)?;
    for _ in 0..TRIES {
        let found = etcd::read(server, roots).map_err(unreachable)?;
        let keys = leave::keys(&found, &own).map_err(|error| Exit::new(exit::FAILURE, error))?;
        let transaction = leave::transaction(&found, &keys, roots);
        let commit = || etcd::commit(server, roots, "release the subnet", &transaction);
        if dry || keys.is_empty() || commit().map_err(unreachable)? {
            let line = |key| Line::removed(Object::Key(roots.key(key)));
            let lines: Vec<Line> = keys.iter().map(line).collect();
            applier.apply_together(&lines, || Ok::<(), anyhow::Error>(()));
            return Ok(());
        }
    }
    Err(Exit::new(exit::TEMPORARY, "this host's keys keep changing: does an agent run?"))
}
