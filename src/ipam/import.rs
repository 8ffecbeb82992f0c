//! Import of the stores of older plugins, once per boot: their pods still run.
//!
//! | what | where | owner known |
//! |---|---|---|
//! | the Go seed's store | one JSON file, `[{"IP":"100.100.0.2/24","Used":true}, …]` | no |
//! | host-local's store | a folder, one file per address: `<container id>\r\n<ifname>` | yes |
//!
//! A reservation of host-local outlives a reboot, its pod does not: what was imported in one boot is
//! recorded beside it, and not imported in a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use crate::ipam::entry::{Owner, StoreEntry};
use crate::ipam::error::StoreError;
use crate::ipam::layout::{names, read};
pub use crate::ipam::sources::Sources;
use crate::ipam::store::LockedStore;
use crate::net::IfName;
use crate::net::gather::Gather;

/// The file in host-local's folder with what was imported: a boot id, then addresses, one per line.
pub const TAKEN_OVER: &str = "taken-over-by-humanz";

/// Imports everything in `sources`. What is invalid or has another owner already is logged and left
/// out. `recorded`: beside host-local's reservations, too.
///
/// # Errors
/// [`StoreError::Io`] if the store itself cannot be written.
pub(super) fn run(
    store: &LockedStore<'_>,
    sources: &Sources,
    recorded: bool,
) -> Result<(), StoreError> {
    if let Some(path) = &sources.go_seed {
        go_seed(store, path, !recorded)?;
    }
    let own = store.store.dir();
    host_local(store, own, recorded)?;
    match &sources.host_local {
        Some(dir) if dir != own => host_local(store, dir, recorded),
        _ => Ok(()),
    }
}

/// Gives what is to be removed before `sources` are imported again: what an early import has of them. One
/// that is missing or cannot be read says nothing of what was freed.
pub(super) fn superseded(sources: &Sources) -> impl Fn(&StoreEntry) -> bool {
    let seed = sources.go_seed.as_deref().and_then(|path| read(path).ok().flatten());
    let reads_seed = seed.is_some_and(|bytes| used_addresses(&bytes).is_ok());
    let host_local = sources.host_local.as_deref().filter(|dir| dir.is_dir());
    let reads_host_local = host_local.is_some_and(|dir| reservations(dir).is_ok());
    move |entry| entry.early && if entry.is_unowned() { reads_seed } else { reads_host_local }
}

impl LockedStore<'_> {
    /// Imports `sources` on request; gives the number of their addresses, including those that were
    /// in the store or have another owner.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the store cannot be written, or a folder not be read.
    pub fn import(&self, sources: &Sources) -> Result<usize, StoreError> {
        run(self, sources, true)?;
        let bytes = sources.go_seed.as_deref().map(read).transpose()?.flatten();
        let used = bytes.and_then(|bytes| used_addresses(&bytes).ok()).map_or(0, |used| used.len());
        let dir = sources.host_local.as_deref().map(reservations).transpose()?;
        Ok(used + dir.map_or(0, |found| found.len()))
    }
}

/// Imports the Go seed's file at `path`.
fn go_seed(store: &LockedStore<'_>, path: &Path, early: bool) -> Result<(), StoreError> {
    let found = match read(path) {
        Ok(None) => return Ok(()),
        Ok(Some(bytes)) => used_addresses(&bytes),
        Err(error) => Err(error.to_string()),
    };
    match found {
        Ok(addresses) => {
            let mut each = addresses.iter();
            each.try_for_each(|address| adopt(store, &Owner::default(), &[*address], path, early))
        }
        Err(reason) => {
            log::warn!("{} was not imported: {reason}", path.display());
            Ok(())
        }
    }
}

/// The addresses in use in a store of the Go seed, without the first: that is the gateway.
///
/// # Errors
/// Why it is invalid.
pub fn used_addresses(bytes: &[u8]) -> Result<Vec<IpAddr>, String> {
    #[derive(Deserialize)]
    struct Slot {
        #[serde(rename = "IP")]
        address: IpNetwork,
        #[serde(rename = "Used")]
        used: bool,
    }
    let slots: Vec<Slot> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(slots.iter().skip(1).filter(|slot| slot.used).map(|slot| slot.address.ip()).collect())
}

/// Imports host-local's reservations in `dir`, which may be our own folder.
fn host_local(store: &LockedStore<'_>, dir: &Path, recorded: bool) -> Result<(), StoreError> {
    let boot_id = store.store.boot_id.as_str();
    let found = reservations(dir).and_then(|found| Ok((found, imported_before(dir, boot_id)?)));
    let (found, stale) = match found {
        Ok(found) => found,
        Err(error) => {
            log::warn!("{} was not imported: {error}", dir.display());
            return Ok(());
        }
    };
    let is_own = dir == store.store.dir();
    let mut of_owner: BTreeMap<&(String, String), Vec<IpAddr>> = BTreeMap::new();
    for (address, owner) in found.iter().filter(|(address, _)| !stale.contains(*address)) {
        of_owner.entry(owner).or_default().push(*address);
    }
    for ((container_id, ifname), addresses) in of_owner {
        let (container_id, ifname) = (container_id.clone(), ifname.clone());
        let owner = Owner { container_id, ifname, ..Owner::default() };
        // In our own folder the import replaces what it has read.
        adopt(store, &owner, &addresses, dir, !recorded && !is_own)?;
    }
    if recorded && !is_own && !found.is_empty() {
        record(dir, boot_id, found.keys());
    }
    Ok(())
}

/// The reservations in a folder of host-local: address → (container id, interface name; empty in
/// the oldest format). Files of other kinds are no reservations.
fn reservations(dir: &Path) -> Result<BTreeMap<IpAddr, (String, String)>, StoreError> {
    let mut found = BTreeMap::new();
    for name in names(dir)? {
        let Ok(address) = name.parse::<IpAddr>() else { continue };
        let Some(bytes) = read(&dir.join(&name))? else { continue };
        found.extend(reservation(&bytes).map(|owner| (address, owner)));
    }
    Ok(found)
}

/// Container id and interface name in a file of host-local.
pub fn reservation(bytes: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (container_id, ifname) = text.split_once("\r\n").unwrap_or((text, ""));
    let (container_id, ifname) = (container_id.trim(), ifname.trim());
    let of_id = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let plausible = !container_id.is_empty()
        && container_id.chars().all(of_id)
        && (ifname.is_empty() || IfName::found(ifname).is_ok());
    plausible.then(|| (container_id.to_owned(), ifname.to_owned()))
}

/// What was imported from `dir` in an earlier boot: its pods are gone.
fn imported_before(dir: &Path, boot_id: &str) -> Result<BTreeSet<IpAddr>, StoreError> {
    let bytes = read(&dir.join(TAKEN_OVER))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    match text.split_once('\n') {
        Some((boot, addresses)) if boot != boot_id => {
            Ok(addresses.lines().filter_map(|line| line.parse().ok()).gather())
        }
        _ => Ok(BTreeSet::new()),
    }
}

/// Records in host-local's folder that its reservations were imported.
fn record<'a>(dir: &Path, boot_id: &str, addresses: impl Iterator<Item = &'a IpAddr>) {
    let mut text = format!("{boot_id}\n");
    for address in addresses {
        text.push_str(&format!("{address}\n"));
    }
    let (path, new) = (dir.join(TAKEN_OVER), dir.join(format!("{TAKEN_OVER}.new")));
    if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, &path)) {
        log::warn!(
            "{}: {error}; its reservations will be imported again after a reboot",
            path.display()
        );
    }
}

/// Writes `addresses` of `from` as those of `owner`, without those that have another owner.
///
/// The store is locked until the import has ended, so files are replaced: in our own folder the old
/// reservation must not disappear before the new one exists.
fn adopt(
    store: &LockedStore<'_>,
    owner: &Owner,
    addresses: &[IpAddr],
    from: &Path,
    early: bool,
) -> Result<(), StoreError> {
    let layout = &store.store.layout;
    let mut fresh = Vec::new();
    for address in addresses {
        let found =
            read(&layout.address(*address))?.and_then(|bytes| StoreEntry::parse(&bytes).ok());
        match found {
            Some(entry) if !entry.is_of(&owner.container_id, &owner.ifname) => {
                let other = entry.owner_text();
                log::warn!(
                    "{address} of {} was not imported: it belongs to {other}",
                    from.display()
                );
            }
            _ => fresh.push(*address),
        }
    }
    let mut all = fresh.clone();
    if !owner.container_id.is_empty() {
        let before = store.entry(&owner.container_id, &owner.ifname)?;
        let before = before.map_or(Vec::new(), |entry| entry.addresses);
        all.extend(before.into_iter().filter(|address| !fresh.contains(address)));
    }
    let entry = StoreEntry { early, ..StoreEntry::new(owner, all, &store.store.boot_id) };
    if !entry.is_unowned() {
        let path = layout.owner(&owner.container_id, &owner.ifname);
        layout.replace(&path, &entry.to_bytes())?;
    }
    for address in &fresh {
        layout.replace(&layout.address(*address), &entry.to_bytes())?;
        log::info!("imported {address} from {} for {}", from.display(), entry.owner_text());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_go_seeds_used_addresses_without_its_gateway() {
        let text = r#"[
 {"IP":"100.100.0.1/24","Used":true},
 {"IP":"100.100.0.2/24","Used":true},
 {"IP":"100.100.0.3/24","Used":false},
 {"IP":"100.100.0.4/24","Used":true}
]"#;
        let used: Vec<String> =
            used_addresses(text.as_bytes()).unwrap().iter().map(IpAddr::to_string).collect();
        assert_eq!(used, ["100.100.0.2", "100.100.0.4"]);
        for broken in ["", "[{", "{}", r#"[{"IP":"x","Used":true}]"#] {
            assert!(used_addresses(broken.as_bytes()).is_err(), "{broken:?} was taken");
        }
    }

    #[test]
    fn a_file_of_host_local_has_container_and_interface() {
        for (text, wanted) in [
            ("dummy\r\neth0", Some(("dummy", "eth0"))),
            ("  dummy \r\n eth0\n", Some(("dummy", "eth0"))),
            ("dummy", Some(("dummy", ""))),
            ("", None),
            ("\r\neth0", None),
            ("../x\r\neth0", None),
            ("dummy\r\ne\0th0", None),
            ("dummy\r\na/b", None),
            ("{\"schema\":1}", None),
        ] {
            let wanted = wanted.map(|(id, ifname)| (id.to_owned(), ifname.to_owned()));
            assert_eq!(reservation(text.as_bytes()), wanted, "{text:?}");
        }
    }
}
