//! Networks of tenants, as this host knew them last.

use std::fs;

use anyhow::Context;

use crate::etcd;
use crate::inspect::identity;
use crate::lease::blocks::OwnedBlocks;
use crate::net::node_name::NodeName;
use crate::os::files;
use crate::policy::Networks;
use crate::policy::network_plan::{self, NetworkPlans};
use crate::policy::served::ServedNetworks;
use crate::settings::{Settings, Source};
use crate::sources::KeptBlocks;

/// The blocks of all hosts, from the state directory; none where there are no networks of tenants. With policies
/// turned off, too: pods run in them.
pub fn kept_blocks(settings: &Settings, host: &NodeName) -> KeptBlocks {
    match &settings.source {
        Source::Etcd { roots, .. } => KeptBlocks::read(&settings.state_dir, roots, host),
        _ => KeptBlocks::default(),
    }
}

/// What plugins go by, as an agent wrote it; `None` without networks of tenants.
///
/// # Errors
/// The file cannot be read, or not be understood.
pub fn plans(settings: &Settings) -> anyhow::Result<Option<NetworkPlans>> {
    let path = network_plan::file(&settings.cni.ipam_dir);
    let bytes =
        files::found(fs::read(&path)).with_context(|| format!("read {}", path.display()))?;
    let Some(bytes) = bytes else { return Ok(None) };
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// What an agent with these settings would serve at its start, and which host has which block: as etcd has it now if
/// it `answers`, else as this host knew it last.
pub fn at_start(
    settings: &Settings,
    networks: Option<&Networks>,
    answers: bool,
) -> (ServedNetworks, OwnedBlocks) {
    let (Some(networks), Ok(host)) = (networks, identity::node_name(settings)) else {
        return (ServedNetworks::none(), OwnedBlocks::default());
    };
    let mut kept = kept_blocks(settings, &host);
    if let Source::Etcd { server, roots } = &settings.source
        && answers
        && !networks.named_pools().is_empty()
        && let Ok((found, _)) = etcd::blocks(server, roots)
    {
        kept.found = found;
    }
    let served = ServedNetworks::of(networks, &kept.own, false);
    let owned = kept.found.owned(&served.pools);
    (served, owned)
}
