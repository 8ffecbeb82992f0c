//! The identity of this host in etcd or Kubernetes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::inspect::state_file;
use crate::lease::Identity;
use crate::lease::records::NodeName;
use crate::netlink::rtnl::Rtnl;
use crate::os::identity;
use crate::plan::ownership::is_of_pod;
use crate::settings::exit::Exit;
use crate::settings::{Settings, Source};

/// What helps where root alone may read.
pub fn as_root() -> &'static str {
    denied_fix(nix::unistd::geteuid().is_root())
}

fn denied_fix(is_root: bool) -> &'static str {
    match is_root {
        false => "run this as root",
        true => {
            "cat /proc/self/status # root lacks cap_dac_override here (CapEff): run this with it"
        }
    }
}

/// The name of this host in etcd, or of its node in Kubernetes: `NODE_NAME`, else the name that its running pods
/// came with, else the host name.
///
/// # Errors
/// The host name is not a valid node name.
pub fn node_name(settings: &Settings) -> Result<NodeName, Exit> {
    if let Some(name) = &settings.node_name {
        return Ok(name.clone());
    }
    let mut name = identity::host_name().context("NODE_NAME is not set")?;
    if matches!(settings.source, Source::Etcd { .. })
        && let Some(served) = served_name(settings)
        && served.as_str() != name
    {
        log::warn!(
            "the host name is {name} now: this host goes on as {served}, under whose subnet its pods run; set \
             NODE_NAME={served} # or end them: the next start then takes the new name and another subnet"
        );
        return Ok(served);
    }
    if matches!(settings.source, Source::Kubernetes(_)) {
        // As the kubelet does.
        name.make_ascii_lowercase();
    }
    let parsed = name.parse();
    Ok(parsed.with_context(|| {
        format!("the host name {name:?} is not a valid node name: set NODE_NAME")
    })?)
}

/// The name under which this machine serves pods that still run. Another one, as DHCP or cloud-init may give a
/// host, would lease another subnet and cut them off.
fn served_name(settings: &Settings) -> Option<NodeName> {
    let links = Rtnl::open().and_then(|rtnl| rtnl.links(None)).ok()?;
    let has_pods = links.iter().any(is_of_pod);
    let saved =
        if has_pods { state_file::read(&settings.state_file()).ok()?? } else { return None };
    let is_own = saved.machine_id == machine_id(&settings.state_dir).ok()?;
    is_own.then_some(saved.host)
}

/// /etc/machine-id; on a host without one the identifier in `state_dir`, or a fresh one if there is
/// none yet.
///
/// # Errors
/// No random numbers.
pub fn machine_id(state_dir: &Path) -> anyhow::Result<String> {
    if let Some(id) = identity::machine_id() {
        return Ok(id);
    }
    match fs::read_to_string(own_machine_id(state_dir)) {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(_) => Ok(identity::random_id()?.replace('-', "")),
    }
}

/// The file with the identifier of a machine without /etc/machine-id.
pub fn own_machine_id(state_dir: &Path) -> PathBuf {
    state_dir.join("machine-id")
}

/// The identity of this boot of this host.
///
/// # Errors
/// The kernel's boot id cannot be read.
pub fn of_host(name: &NodeName, machine_id: &str) -> Result<Identity, Exit> {
    Ok(Identity {
        name: name.clone(),
        machine_id: machine_id.to_owned(),
        boot_id: identity::boot_id().context("identify this boot")?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_asked_for_the_right_that_is_missing_and_others_to_be_root() {
        assert!(
            denied_fix(true).contains("cap_dac_override") && !denied_fix(true).contains("as root")
        );
        assert_eq!(denied_fix(false), "run this as root");
    }
}
