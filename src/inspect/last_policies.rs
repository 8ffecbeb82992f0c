//! The last snapshots on disk: a host that starts without its sources has the policies it had.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::inspect::policy_file;
use crate::lease::TenantPools;
use crate::net::node_name::NodeName;
use crate::os::files::{self, FileError};
use crate::policy::held::{Published, Sharing};
use crate::policy::knowledge::HostKnowledge;
use crate::policy::sources::Policies;
use crate::policy::{PolicySnapshot, Provider};
use crate::settings::{Settings, Source};
use crate::sources::kept_file;
use crate::sources::published::{self, PublishedAt};

/// In the state directory.
pub const FILE: &str = "policy.json";

const SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
struct SavedPolicies<T> {
    schema: u32,
    snapshots: T,
}

/// The file while newer policies than its own are in force.
pub const OUTDATED: &str = "policy.json.outdated";

/// The file that replaces it.
pub const NEXT: &str = "policy.json.next";

/// What [`keep`] writes.
pub fn text(snapshots: &BTreeMap<Provider, &PolicySnapshot>) -> Vec<u8> {
    serde_json::to_vec(&SavedPolicies { schema: SCHEMA, snapshots }).unwrap_or_default()
}

/// Writes the file.
///
/// # Errors
/// It cannot be written.
pub fn keep(state_dir: &Path, text: &[u8]) -> Result<(), FileError> {
    files::replace(&state_dir.join(FILE), text, 0o600)?;
    files::remove(&state_dir.join(OUTDATED))
}

/// The first half of [`keep`], which may take as long as a disk takes.
///
/// # Errors
/// As of [`keep`].
pub fn write_next(state_dir: &Path, text: &[u8]) -> Result<(), FileError> {
    files::replace(&state_dir.join(NEXT), text, 0o600)
}

/// The second half, which waits for no disk. `is_current`: what was written is in force, and not older than that.
///
/// # Errors
/// It cannot be renamed.
pub fn take_next(state_dir: &Path, is_current: bool) -> anyhow::Result<()> {
    let (next, name) = (state_dir.join(NEXT), if is_current { FILE } else { OUTDATED });
    let renamed = fs::rename(&next, state_dir.join(name));
    renamed.with_context(|| format!("rename {} to {name}", next.display()))?;
    if is_current { Ok(files::remove(&state_dir.join(OUTDATED))?) } else { Ok(()) }
}

/// Marks the file: what is in force is newer from now on.
///
/// # Errors
/// It cannot be renamed.
pub fn outdate(state_dir: &Path) -> io::Result<()> {
    files::found(fs::rename(state_dir.join(FILE), state_dir.join(OUTDATED))).map(drop)
}

/// What was kept; nothing if it cannot be used. `or_outdated`: also what is older than what was in force
/// last.
pub fn kept(state_dir: &Path, or_outdated: bool) -> BTreeMap<Provider, PolicySnapshot> {
    let kept = read(&state_dir.join(FILE));
    if kept.is_empty() && or_outdated { read(&state_dir.join(OUTDATED)) } else { kept }
}

/// The networks of tenants in what was kept.
pub fn tenant_pools(state_dir: &Path) -> TenantPools {
    let kept = kept(state_dir, true);
    let pools = kept.values().flat_map(|said| said.networks.named_pools()).collect();
    TenantPools { pools, ..TenantPools::default() }
}

/// When they were kept.
pub fn written(state_dir: &Path) -> Option<SystemTime> {
    let time = |name| fs::metadata(state_dir.join(name)).and_then(|file| file.modified()).ok();
    time(FILE).or_else(|| time(OUTDATED))
}

/// What an agent with these settings would know at its start; `None` without policies, or if this user may
/// not read them.
pub fn at_start(settings: &Settings, host: &NodeName) -> Option<HostKnowledge> {
    let policy = settings.policy.as_ref()?;
    if [FILE, OUTDATED].iter().any(|name| files::is_denied(&settings.state_dir.join(name))) {
        return None;
    }
    let kept = kept(&settings.state_dir, true);
    let providers = policy.providers(&settings.source);
    let mut policies = Policies::kept(kept, &providers, settings.pod_defaults());
    if let Some(file) = &policy.file {
        let last_resort = !policies.has(Provider::File);
        let own = policy_file::this_host(settings, host);
        let update = policy_file::read(file, &own, policy.group.as_ref(), last_resort);
        policies.take(update, SystemTime::now());
    }
    let sharing = match policy.providers(&settings.source).contains(&Provider::Members) {
        true => Sharing::On(Arc::new(published(settings, host))),
        false => Sharing::Off,
    };
    let known = policies.snapshot().cloned();
    Some(HostKnowledge { host: host.clone(), known, sharing, mark: policy.mark })
}

/// What holds of networks of tenants at a start: with policies turned off running pods keep theirs.
pub fn of_networks(settings: &Settings, host: &NodeName) -> Option<Arc<PolicySnapshot>> {
    match (&settings.policy, &settings.source) {
        (Some(_), _) => at_start(settings, host)?.known,
        (None, Source::Etcd { .. }) => {
            let kept = kept(&settings.state_dir, true);
            let policies = Policies::kept(kept, &[Provider::Etcd], settings.pod_defaults());
            policies.snapshot().cloned()
        }
        (None, _) => None,
    }
}

/// What `host` has published with these settings.
pub fn published(settings: &Settings, host: &NodeName) -> Published {
    match &settings.source {
        Source::Etcd { server, roots } => {
            published::read(&settings.state_dir, &PublishedAt::of(server, roots, host)).0
        }
        _ => Published::default(),
    }
}

fn read(path: &Path) -> BTreeMap<Provider, PolicySnapshot> {
    match kept_file::read::<SavedPolicies<_>>(path) {
        Some(kept) if kept.schema == SCHEMA => kept.snapshots,
        Some(kept) => {
            log::error!("{}: schema {} is not {SCHEMA}", path.display(), kept.schema);
            Default::default()
        }
        None => Default::default(),
    }
}
