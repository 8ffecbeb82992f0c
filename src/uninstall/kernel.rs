//! What humanz made in the kernel.

use std::path::Path;

use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::sysctl_record::{self, SysctlChange};
use crate::inspect::Kernel;
use crate::net::Object;
use crate::netlink::NetlinkError;
use crate::netlink::link::{self, Link, LinkRef};
use crate::os::sysctl;
use crate::plan::guard::{GuardTable, TABLE};
use crate::plan::{Line, ownership};

/// The pods that are plugged in.
///
/// # Errors
/// The kernel's.
pub fn attached(kernel: &Kernel) -> anyhow::Result<Vec<String>> {
    let links = kernel.rtnl.links(None)?;
    Ok(ownership::attached(&links).into_iter().map(str::to_owned).collect())
}

/// Removes pods' ends, bridges and tunnels.
pub fn links(kernel: &Kernel, applier: &mut Applier) {
    match kernel.rtnl.links(None) {
        Ok(found) => {
            for link in ownership::links(&found) {
                applier.apply(&removal(link), || remove(kernel, link));
            }
        }
        Err(error) => applier.inspect_failed(Object::named("links"), error),
    }
}

/// The other end of a veth takes both away.
fn remove(kernel: &Kernel, link: &Link) -> Result<(), NetlinkError> {
    let delete = link::delete(LinkRef::Index(link.index)).tolerating(Errno::ENODEV);
    kernel.rtnl.apply(&[delete])
}

/// Removes the tables of agent, networks and host ports.
pub fn tables(kernel: &Kernel, applier: &mut Applier) {
    match kernel.nft.tables() {
        Ok(found) => {
            for name in found.into_iter().filter(|name| ownership::is_table(name)) {
                applier.apply(&Line::removed(Object::Table(name.clone())), || {
                    kernel.nft.delete(&name)
                });
            }
        }
        Err(error) => applier.inspect_failed(Object::named("nftables"), error),
    }
    match kernel.nft.frames(TABLE, &[]) {
        Ok(None) => {}
        Ok(Some(_)) => applier.apply(&GuardTable, || kernel.nft.delete_frames(TABLE)),
        Err(error) => applier.inspect_failed(Object::named("guards of pods"), error),
    }
}

/// Gives sysctls back that the agent changed and no other program since.
pub fn sysctls(state_dir: &Path, applier: &mut Applier) {
    for (key, SysctlChange { before, set }) in sysctl_record::sysctls(state_dir) {
        let ours = sysctl::read(&key).is_ok_and(|found| found == set && found != before);
        // The record may have been written by any process that may write there.
        if ours && key.starts_with("net/") && !key.contains("..") {
            let change = Line::changed(Object::Sysctl(key.clone())).with(format!(" = {before}"));
            applier.apply(&change, || sysctl::write(&key, &before));
        }
    }
}

fn removal(link: &Link) -> Line {
    let kind = link.kind.as_deref().unwrap_or("link");
    let line = Line::removed(Object::Link(kind.to_owned(), link.name.clone()));
    match link.alias.as_deref().filter(|_| kind == "veth") {
        Some(alias) => line.with(format!(" ({alias})")),
        None => line,
    }
}
