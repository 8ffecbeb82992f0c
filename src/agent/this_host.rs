//! Who this host is: its name, its machine, its addresses for the other hosts.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::agent::reconcile::Kernel;
use crate::inspect::host::Own;
use crate::lease::records::NodeName;
use crate::lease::{Attributes, Identity, Network, Roots};
use crate::os::{files, identity};
use crate::plan::peer_routes::Backend;
use crate::settings::exit::Exit;
use crate::settings::{Settings, Source};

/// Opens the kernel of this host.
pub fn open_kernel(settings: &Settings) -> Result<Kernel, Exit> {
    let machine_id = machine_id(&settings.state_dir)?;
    Ok(Kernel::open(machine_id).context(
        "speak to the kernel's rtnetlink and nftables (without nftables pods are neither masqueraded \
         nor let through firewalls; try: modprobe nf_tables)",
    )?)
}

/// The name of this host in etcd, or of its node in Kubernetes.
pub fn node_name(settings: &Settings) -> Result<NodeName, Exit> {
    if let Some(name) = &settings.node_name {
        return Ok(name.clone());
    }
    let mut name = identity::host_name().context("NODE_NAME is not set")?;
    if matches!(settings.source, Source::Kubernetes(_)) {
        // As the kubelet does.
        name.make_ascii_lowercase();
    }
    let parsed = name.parse();
    Ok(parsed
        .with_context(|| format!("the host name {name:?} is no name for etcd: set NODE_NAME"))?)
}

/// /etc/machine-id; on a host without one, an identifier of our own, fresh if there is none yet.
fn machine_id(state_dir: &Path) -> anyhow::Result<String> {
    if let Some(id) = identity::machine_id() {
        return Ok(id);
    }
    match fs::read_to_string(own_machine_id(state_dir)) {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(_) => Ok(identity::random_id()?.replace('-', "")),
    }
}

/// Makes the state directory, and keeps the identifier of a machine that has none but ours.
pub fn make_state_dir(path: &Path, machine_id: &str) -> Result<(), Exit> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("create {} (STATE_DIR)", path.display()))?;
    if identity::machine_id().is_none() {
        let text = format!("{machine_id}\n");
        files::replace(&own_machine_id(path), text.as_bytes(), 0o600)
            .map_err(anyhow::Error::from)?;
    }
    Ok(())
}

fn own_machine_id(state_dir: &Path) -> PathBuf {
    state_dir.join("machine-id")
}

/// How hosts are reached, as far as the settings say.
pub fn configured_attributes(settings: &Settings) -> Attributes {
    attributes(settings, Own::default())
}

/// Who this host is.
pub fn identity(name: &NodeName, kernel: &Kernel) -> Result<Identity, Exit> {
    Ok(Identity {
        name: name.clone(),
        machine_id: kernel.machine_id.clone(),
        boot_id: identity::boot_id().context("identify this boot")?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// The network that the settings describe.
pub fn network(settings: &Settings, roots: &Roots) -> Network {
    Network { roots: roots.clone(), pools: settings.pools, backend: Default::default() }
}

/// How the other hosts reach this one.
pub fn attributes(settings: &Settings, own: Own) -> Attributes {
    let tunnel = (settings.backend != Backend::Direct).then_some(settings.vxlan);
    let backend = settings.backend.into();
    Attributes { addresses: own.addresses, backend, tunnel, mtu: own.mtu_bytes }
}
