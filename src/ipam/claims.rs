//! The owners of host ports: one folder for all networks of a data directory.
//!
//! ```text
//! <dataDir>/.hostports/lock                  held (flock) while ports change, here or in the kernel
//!                      <protocol>-<port>/<address>   the owner's entry (a hard link)
//! ```
//!
//! An unspecified address stands for all of its family. A claim is valid while its holder's
//! reservation exists; the next claim replaces what a killed process left.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::Flock;

use crate::ipam::entry::StoreEntry;
use crate::ipam::error::StoreError;
use crate::ipam::layout::{Layout, exists, failed, names, read, remove};
use crate::ipam::lock;
use crate::net::gather::Gather;
use crate::net::{HostPort, IfName, PortForward, Protocol, hash};
use crate::os::files::found;

/// No network has this name: a network's name begins with a letter or digit.
const FOLDER: &str = ".hostports";

/// A claimed host port, with everything that its nftables element needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortClaim {
    pub forward: PortForward,
    /// The bridge of the pod.
    pub bridge: IfName,
    pub network: String,
    pub container_id: String,
    pub ifname: String,
    /// `namespace/name`.
    pub pod: Option<String>,
}

/// The claims on ports of this host under one data directory.
#[derive(Clone, Debug)]
pub struct PortClaims {
    data_dir: PathBuf,
    boot_id: String,
}

/// The claims, locked until dropped; the kernel's table of ports is changed only under this lock. A
/// process that locks a network's store too locks that first.
#[derive(Debug)]
pub struct LockedClaims<'c> {
    claims: &'c PortClaims,
    reading: ClaimsView<'c>,
    _lock: Flock<File>,
}

/// The claims as read; they may change meanwhile unless locked.
#[derive(Debug)]
pub struct ClaimsView<'c> {
    claims: &'c PortClaims,
    /// The holders by the inode of their file, which has a name for each of their ports.
    read: RefCell<HashMap<u64, Option<Rc<Holder>>>>,
}

#[derive(Debug)]
struct Holder {
    entry: StoreEntry,
    forwards: BTreeMap<HostPort, PortForward>,
    /// Its reservation exists.
    is_reserved: bool,
}

impl PortClaims {
    /// The claims under `data_dir`. Reads and creates nothing.
    pub fn open(data_dir: &Path, boot_id: &str) -> PortClaims {
        PortClaims { data_dir: data_dir.to_owned(), boot_id: boot_id.to_owned() }
    }

    /// Ports have been claimed here.
    pub fn exist(&self) -> bool {
        exists(&self.folder()).unwrap_or(true)
    }

    /// Nothing has ever been claimed here: there is no lock file.
    pub(super) fn are_untouched(&self) -> bool {
        !exists(&self.folder().join("lock")).unwrap_or(true)
    }

    /// Identifies the data directory.
    pub fn fingerprint(&self) -> u64 {
        // Independent of how the path is written.
        let parts: Vec<_> = self.data_dir.iter().map(|part| part.to_string_lossy()).collect();
        hash::stable(&parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>())
    }

    /// The store has a reservation of this attachment, with ports or without.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn know(
        &self,
        network: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<bool, StoreError> {
        exists(&self.layout(network).owner(container_id, ifname))
    }

    /// Takes the lock, waiting at most `wait`; creates a missing folder.
    ///
    /// # Errors
    /// [`StoreError::LockTimeout`], [`StoreError::Io`].
    pub fn lock(&self, wait: Duration) -> Result<LockedClaims<'_>, StoreError> {
        let path = self.folder().join("lock");
        let lock = match lock::acquire(&path, &self.boot_id, wait) {
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                make(&self.folder())?;
                lock::acquire(&path, &self.boot_id, wait)?
            }
            other => other?,
        };
        Ok(LockedClaims { claims: self, reading: self.read(), _lock: lock })
    }

    /// The claims without the lock: they may be changing.
    pub fn read(&self) -> ClaimsView<'_> {
        ClaimsView { claims: self, read: RefCell::default() }
    }

    fn folder(&self) -> PathBuf {
        self.data_dir.join(FOLDER)
    }

    fn layout(&self, network: &str) -> Layout {
        Layout::new(self.data_dir.join(network))
    }

    fn port_folder(&self, port: &HostPort) -> PathBuf {
        self.folder().join(format!("{}-{}", port.protocol, port.port))
    }

    fn path(&self, port: &HostPort) -> PathBuf {
        self.port_folder(port).join(port.address.to_string())
    }

    /// The reservation that `entry` was linked from still exists.
    fn is_reserved(&self, entry: &StoreEntry) -> Result<bool, StoreError> {
        let Some(ports) = entry.ports.as_ref().filter(|_| entry.boot_id == self.boot_id) else {
            return Ok(false);
        };
        let layout = self.layout(&ports.network);
        let owner = layout.owner(&entry.container_id, &entry.ifname);
        // An administrator may have deleted the owner's file.
        let address = entry.addresses.first().map(|address| layout.address(*address));
        for path in [owner].into_iter().chain(address) {
            if entry_at(&path)?.is_some_and(|found| found.is_same(entry)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl LockedClaims<'_> {
    /// Claims every port of `entry`, or none; those of another interface of the same container stay
    /// there (runtimes request a container's ports in each of its networks). A holder for which
    /// `is_gone` is true loses its port.
    ///
    /// # Errors
    /// [`StoreError::PortTaken`], [`StoreError::Io`].
    pub fn claim(
        &self,
        entry: &StoreEntry,
        is_gone: impl Fn(&StoreEntry) -> bool,
    ) -> Result<(), StoreError> {
        let Some(ports) = &entry.ports else { return Ok(()) };
        let layout = self.claims.layout(&ports.network);
        let file = layout.owner(&entry.container_id, &entry.ifname);
        for forward in entry.forwards() {
            let claimed = self
                .free(&forward.from, entry, &is_gone)
                .and_then(|free| if free { self.link(&file, &forward.from) } else { Ok(()) });
            if let Err(error) = claimed {
                self.release(entry)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Releases those ports of `entry` that are still its own.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn release(&self, entry: &StoreEntry) -> Result<(), StoreError> {
        for claim in self.own(entry)? {
            self.remove(&claim.forward.from)?;
        }
        Ok(())
    }

    /// The claims of `entry` that are still its own: not all, if its ADD was killed, or if it lost
    /// ports after its death.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn own(&self, entry: &StoreEntry) -> Result<Vec<PortClaim>, StoreError> {
        self.reading.own(entry)
    }

    /// [`ClaimsView::held`].
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn held(&self) -> Result<Vec<PortClaim>, StoreError> {
        self.reading.held()
    }

    /// Whether some claim whose holder's reservation exists is like that. Reads no further than the first one.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn holds(&self, like: impl Fn(&PortClaim) -> bool) -> Result<bool, StoreError> {
        for name in names(&self.claims.folder())? {
            for port in self.reading.ports_in(&name)? {
                let holder = self.reading.living(&port)?;
                let held = holder.and_then(|holder| claim(&holder.entry, holder.forwards[&port]));
                if held.is_some_and(|held| like(&held)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Removes claims whose holder's reservation is gone; gives how many.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn sweep(&self) -> Result<usize, StoreError> {
        let mut swept = 0;
        for port in self.reading.ports()? {
            if self.reading.living(&port)?.is_none() {
                self.remove(&port)?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Removes the stale claims that overlap `port`; `false` if another interface of the same
    /// container has it.
    fn free(
        &self,
        port: &HostPort,
        entry: &StoreEntry,
        is_gone: impl Fn(&StoreEntry) -> bool,
    ) -> Result<bool, StoreError> {
        let mut free = true;
        let folder = self.claims.port_folder(port);
        for name in names(&folder)? {
            let Ok(address) = name.parse() else { continue };
            let other = HostPort { address, ..*port };
            if !other.overlaps(port) {
                continue;
            }
            match self.reading.living(&other)? {
                Some(holder) if holder.entry.is_same(entry) => continue,
                Some(holder) if holder.entry.container_id == entry.container_id => {
                    free = false;
                    continue;
                }
                Some(holder) if !is_gone(&holder.entry) => {
                    let owner = holder.entry.owner_text();
                    return Err(StoreError::PortTaken { port: other, owner });
                }
                Some(holder) => {
                    log::warn!("{other}: taken from {}, which is gone", holder.entry.owner_text());
                }
                None => {}
            }
            self.remove(&other)?;
        }
        Ok(free)
    }

    fn link(&self, file: &Path, port: &HostPort) -> Result<(), StoreError> {
        let path = self.claims.path(port);
        match fs::hard_link(file, &path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make(&self.claims.port_folder(port))?;
                fs::hard_link(file, &path).map_err(failed("link", &path))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome.map_err(failed("link", &path)),
        }
    }

    fn remove(&self, port: &HostPort) -> Result<(), StoreError> {
        remove(&self.claims.path(port))?;
        let folder = self.claims.port_folder(port);
        match found(fs::remove_dir(&folder)) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOTEMPTY as i32) => Ok(()),
            outcome => outcome.map(drop).map_err(failed("remove", &folder)),
        }
    }
}

impl ClaimsView<'_> {
    /// The forwards of `entry` but those whose ports another interface of its container has.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn expected(&self, entry: &StoreEntry) -> Result<Vec<PortForward>, StoreError> {
        let mut expected = Vec::new();
        for forward in entry.forwards() {
            let elsewhere = self.living(&forward.from)?.is_some_and(|holder| {
                holder.entry.container_id == entry.container_id && !holder.entry.is_same(entry)
            });
            if !elsewhere {
                expected.push(forward);
            }
        }
        Ok(expected)
    }

    /// Claims of `entry` are still its own.
    pub(super) fn has_own(&self, entry: &StoreEntry) -> Result<bool, StoreError> {
        self.own(entry).map(|own| !own.is_empty())
    }

    fn own(&self, entry: &StoreEntry) -> Result<Vec<PortClaim>, StoreError> {
        let mut own = Vec::new();
        for forward in entry.forwards() {
            let holder = self.holder(&forward.from)?;
            if holder.is_some_and(|holder| holder.entry.is_same(entry)) {
                own.extend(claim(entry, forward));
            }
        }
        Ok(own)
    }

    /// Every claim whose holder's reservation exists, in no particular order.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn held(&self) -> Result<Vec<PortClaim>, StoreError> {
        let mut held = Vec::new();
        for port in self.ports()? {
            let holder = self.living(&port)?;
            held.extend(holder.and_then(|holder| claim(&holder.entry, holder.forwards[&port])));
        }
        Ok(held)
    }

    /// The holder of `port`, if its reservation exists.
    fn living(&self, port: &HostPort) -> Result<Option<Rc<Holder>>, StoreError> {
        let holder = self.holder(port)?;
        Ok(holder.filter(|holder| holder.is_reserved && holder.forwards.contains_key(port)))
    }

    /// The last holder of `port`; `None` also for a file that is not an entry.
    fn holder(&self, port: &HostPort) -> Result<Option<Rc<Holder>>, StoreError> {
        let path = self.claims.path(port);
        let found = found(fs::symlink_metadata(&path)).map_err(failed("look at", &path))?;
        let Some(inode) = found.map(|metadata| metadata.ino()) else { return Ok(None) };
        if let Some(holder) = self.read.borrow().get(&inode) {
            return Ok(holder.clone());
        }
        let holder = match entry_at(&path)? {
            None => None,
            Some(entry) => Some(Rc::new(Holder {
                is_reserved: self.claims.is_reserved(&entry)?,
                forwards: entry.forwards().into_iter().map(|one| (one.from, one)).gather(),
                entry,
            })),
        };
        self.read.borrow_mut().insert(inode, holder.clone());
        Ok(holder)
    }

    /// Every port that has a file.
    fn ports(&self) -> Result<Vec<HostPort>, StoreError> {
        let names = names(&self.claims.folder())?;
        let ports = names.iter().map(|name| self.ports_in(name));
        Ok(ports.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Those in the folder of one protocol and port.
    fn ports_in(&self, name: &str) -> Result<Vec<HostPort>, StoreError> {
        let port = name.split_once('-').and_then(|(protocol, port)| {
            Some((protocol.parse::<Protocol>().ok()?, port.parse().ok()?))
        });
        let Some((protocol, port)) = port else { return Ok(Vec::new()) };
        let addresses = names(&self.claims.folder().join(name))?;
        let addresses = addresses.iter().filter_map(|address| address.parse().ok());
        Ok(addresses.map(|address| HostPort { protocol, port, address }).collect())
    }
}

fn claim(entry: &StoreEntry, forward: PortForward) -> Option<PortClaim> {
    let ports = entry.ports.as_ref()?;
    Some(PortClaim {
        forward,
        bridge: ports.bridge.clone(),
        network: ports.network.clone(),
        container_id: entry.container_id.clone(),
        ifname: entry.ifname.clone(),
        pod: entry.pod.clone(),
    })
}

/// Makes a folder that only root reads; its parents are readable by all.
fn make(folder: &Path) -> Result<(), StoreError> {
    if let Some(parent) = folder.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
        made.map_err(failed("create", parent))?;
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(failed("create", folder))
}

/// The entry in the file at `path`; `None` also for a file that is not an entry.
fn entry_at(path: &Path) -> Result<Option<StoreEntry>, StoreError> {
    Ok(read(path)?.and_then(|bytes| StoreEntry::parse(&bytes).ok()))
}
