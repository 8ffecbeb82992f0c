//! Which pod has which port of the host: one folder for all networks of a data directory.
//!
//! ```text
//! <dataDir>/.hostports/lock                  held (flock) while ports change, here or in the kernel
//!                      <protocol>-<port>/<address>   the holder's entry (a hard link)
//! ```
//!
//! An unspecified address stands for all of its family. A claim means something as long as its
//! holder's reservation exists; what a killed process left behind is in nobody's way.

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
use crate::ipam::layout::{Layout, exists, failed, found, names, read, remove};
use crate::ipam::lock;
use crate::net::{HostPort, PortForward, Protocol, hash};
use crate::plan::host_ports::Claim;

/// The folder's name: no network can have it, for a network's name begins with a letter or digit.
const FOLDER: &str = ".hostports";

/// The claims on ports of this host that are kept under one data directory.
#[derive(Clone, Debug)]
pub struct PortClaims {
    data_dir: PathBuf,
    boot_id: String,
}

/// The claims, held by this process alone until dropped, and with them the right to change what the
/// kernel knows of ports. Whoever holds a network's store too has taken that before.
#[derive(Debug)]
pub struct LockedClaims<'c> {
    claims: &'c PortClaims,
    reading: ClaimsView<'c>,
    _lock: Flock<File>,
}

/// A look at the claims, which may change meanwhile unless they are locked.
#[derive(Debug)]
pub struct ClaimsView<'c> {
    claims: &'c PortClaims,
    /// What was read of each file, by its inode: one file has a name for each of its ports.
    read: RefCell<HashMap<u64, Option<Rc<Holder>>>>,
}

/// Who has ports.
#[derive(Debug)]
struct Holder {
    entry: StoreEntry,
    forwards: BTreeMap<HostPort, PortForward>,
    /// Its reservation exists.
    is_reserved: bool,
}

impl PortClaims {
    /// The claims under `data_dir`. Nothing is read or made yet.
    pub fn open(data_dir: &Path, boot_id: &str) -> PortClaims {
        PortClaims { data_dir: data_dir.to_owned(), boot_id: boot_id.to_owned() }
    }

    /// Ports were claimed here at some time.
    pub fn exist(&self) -> bool {
        exists(&self.folder()).unwrap_or(true)
    }

    /// Nobody has ever held the lock here, so nothing was claimed.
    pub(super) fn are_untouched(&self) -> bool {
        !exists(&self.folder().join("lock")).unwrap_or(true)
    }

    /// Tells the claims of one data directory from those of another.
    pub fn fingerprint(&self) -> u64 {
        // The same directory, however it is written.
        let parts: Vec<_> = self.data_dir.iter().map(|part| part.to_string_lossy()).collect();
        hash::stable(&parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>())
    }

    /// Takes the lock, waiting at most `wait`; makes the folder if it is missing.
    ///
    /// # Errors
    /// [`StoreError::LockTimeout`], [`StoreError::Io`].
    pub fn lock(&self, wait: Duration) -> Result<LockedClaims<'_>, StoreError> {
        let path = self.folder().join("lock");
        let lock = match lock::acquire(&path, wait) {
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                make(&self.folder())?;
                lock::acquire(&path, wait)?
            }
            other => other?,
        };
        Ok(LockedClaims { claims: self, reading: self.read(), _lock: lock })
    }

    /// A look without the lock: what it finds wrong may be somebody's work of this moment.
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

    /// The reservation that `entry` was linked from is still there.
    fn is_reserved(&self, entry: &StoreEntry) -> Result<bool, StoreError> {
        let Some(ports) = entry.ports.as_ref().filter(|_| entry.boot_id == self.boot_id) else {
            return Ok(false);
        };
        let layout = self.layout(&ports.network);
        let owner = layout.owner(&entry.container_id, &entry.ifname);
        // The owner's file may have been deleted by hand.
        let address = entry.addresses.first().map(|address| layout.address(*address));
        for path in [owner].into_iter().chain(address) {
            if entry_at(&path)?.is_some_and(|there| there.is_same(entry)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl LockedClaims<'_> {
    /// Claims every port of `entry`, or none; but those that another interface of the same container
    /// has stay there (runtimes ask for a container's ports in each of its networks). A holder of
    /// which `is_gone` is true loses its port.
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
                .make_way(&forward.from, entry, &is_gone)
                .and_then(|free| if free { self.link(&file, &forward.from) } else { Ok(()) });
            if let Err(error) = claimed {
                self.release(entry)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives back those ports of `entry` that are still its own.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn release(&self, entry: &StoreEntry) -> Result<(), StoreError> {
        for claim in self.own(entry)? {
            self.remove(&claim.forward.from)?;
        }
        Ok(())
    }

    /// The claims of `entry` that are still its own: of an attachment that was killed while it
    /// was made, or that lost its ports when it died, not all are.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn own(&self, entry: &StoreEntry) -> Result<Vec<Claim>, StoreError> {
        let mut own = Vec::new();
        for forward in entry.forwards() {
            let holder = self.reading.holder(&forward.from)?;
            if holder.is_some_and(|holder| holder.entry.is_same(entry)) {
                own.extend(claim(entry, forward));
            }
        }
        Ok(own)
    }

    /// [`ClaimsView::held`].
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn held(&self) -> Result<Vec<Claim>, StoreError> {
        self.reading.held()
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

    /// Removes the claims in the way of one on `port` whose holders are gone; `false` if another
    /// interface of the same container is in the way.
    fn make_way(
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

    /// Every claim whose holder's reservation exists, in no order.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn held(&self) -> Result<Vec<Claim>, StoreError> {
        let mut held = Vec::new();
        for port in self.ports()? {
            let holder = self.living(&port)?;
            held.extend(holder.and_then(|holder| claim(&holder.entry, holder.forwards[&port])));
        }
        Ok(held)
    }

    /// Who has `port`, if that reservation exists.
    fn living(&self, port: &HostPort) -> Result<Option<Rc<Holder>>, StoreError> {
        let holder = self.holder(port)?;
        Ok(holder.filter(|holder| holder.is_reserved && holder.forwards.contains_key(port)))
    }

    /// Who claimed `port` last. What cannot be understood counts as nobody.
    fn holder(&self, port: &HostPort) -> Result<Option<Rc<Holder>>, StoreError> {
        let path = self.claims.path(port);
        let found = found(fs::symlink_metadata(&path)).map_err(failed("look at", &path))?;
        let Some(inode) = found.map(|metadata| metadata.ino()) else { return Ok(None) };
        if let Some(known) = self.read.borrow().get(&inode) {
            return Ok(known.clone());
        }
        let holder = match entry_at(&path)? {
            None => None,
            Some(entry) => Some(Rc::new(Holder {
                is_reserved: self.claims.is_reserved(&entry)?,
                forwards: entry.forwards().into_iter().map(|one| (one.from, one)).collect(),
                entry,
            })),
        };
        self.read.borrow_mut().insert(inode, holder.clone());
        Ok(holder)
    }

    /// Every port that has a file.
    fn ports(&self) -> Result<Vec<HostPort>, StoreError> {
        let folder = self.claims.folder();
        let mut ports = Vec::new();
        for name in names(&folder)? {
            let port = name.split_once('-').and_then(|(protocol, port)| {
                Some((protocol.parse::<Protocol>().ok()?, port.parse().ok()?))
            });
            let Some((protocol, port)) = port else { continue };
            for name in names(&folder.join(name))? {
                ports.extend(name.parse().ok().map(|address| HostPort { protocol, port, address }));
            }
        }
        Ok(ports)
    }
}

fn claim(entry: &StoreEntry, forward: PortForward) -> Option<Claim> {
    let ports = entry.ports.as_ref()?;
    Some(Claim {
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

/// The entry in the file at `path`; what cannot be understood counts as none.
fn entry_at(path: &Path) -> Result<Option<StoreEntry>, StoreError> {
    Ok(read(path)?.and_then(|bytes| StoreEntry::parse(&bytes).ok()))
}
