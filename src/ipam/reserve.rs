//! Reserving addresses: the choice, the claim, and the guard that releases them.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::ipam::entry::{Owner, StoreEntry};
use crate::ipam::error::StoreError;
use crate::ipam::free::CURSORS;
use crate::ipam::layout::{failed, remove};
use crate::ipam::pool::RangeSet;
use crate::ipam::store::{LockedStore, Store};

/// How long an undo waits for the lock.
const UNDO_WAIT: Duration = Duration::from_secs(2);

/// Fresh addresses. Dropping it releases them; [`Reservation::commit`] keeps them.
#[must_use = "dropping a reservation releases its addresses"]
#[derive(Debug)]
pub struct Reservation<'s> {
    store: &'s Store,
    entry: StoreEntry,
    committed: bool,
}

impl Reservation<'_> {
    /// The addresses, in the order of the range sets.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.entry.addresses
    }

    /// Its entry in the store.
    pub fn entry(&self) -> &StoreEntry {
        &self.entry
    }

    /// Claims the ports that the owner requests: all or none. A holder of one of them for which
    /// `is_gone` is true loses it. They are released with the addresses.
    ///
    /// # Errors
    /// [`StoreError::PortTaken`] names the holder; [`StoreError::LockTimeout`], [`StoreError::Io`].
    pub fn claim_ports(
        &self,
        wait: Duration,
        is_gone: impl Fn(&StoreEntry) -> bool,
    ) -> Result<(), StoreError> {
        match self.entry.ports {
            Some(_) => self.store.ports().lock(wait)?.claim(&self.entry, is_gone),
            None => Ok(()),
        }
    }

    /// Keeps them until they are released; gives their entry.
    pub fn commit(mut self) -> StoreEntry {
        self.committed = true;
        self.entry.clone()
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        if let Err(error) = self.store.give_back(&self.entry, UNDO_WAIT) {
            let owner = self.entry.owner_text();
            log::error!("the addresses of {owner} were not released: {error}");
        }
    }
}

impl Store {
    /// Releases what is still its own of `entry`, which was just reserved; waits at most `wait` for the lock.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn give_back(&self, entry: &StoreEntry, wait: Duration) -> Result<(), StoreError> {
        self.lock(wait)?.remove_entry(entry).map(drop)
    }
}

impl<'s> LockedStore<'s> {
    /// One address out of each set for `owner`: one of `requested` that lies in the set, else the next
    /// one after the last allocated. Without sets, exactly `requested`. Releases the lock.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is reserved then. [`StoreError::Duplicate`] if the owner has addresses
    /// already: the caller finds out whether that attachment is still alive; [`StoreError::Closed`].
    pub fn reserve(
        self,
        owner: &Owner,
        sets: &[RangeSet],
        requested: &[IpAddr],
    ) -> Result<Reservation<'s>, StoreError> {
        if let Some(entry) = self.entry(&owner.container_id, &owner.ifname)? {
            return Err(StoreError::Duplicate(Box::new(entry)));
        }
        self.store.check_open(sets)?;
        let choices = assign_requested(sets, requested)?;
        let mut addresses = Vec::with_capacity(choices.len());
        let mut cursors = Vec::with_capacity(choices.len());
        for (position, choice) in choices.iter().enumerate() {
            let (address, known) = match choice {
                Some(address) => (*address, Vec::new()),
                None => {
                    let known = self.store.cursors(position)?;
                    (self.choose(&known, &sets[position])?, known)
                }
            };
            addresses.push(address);
            cursors.push(known);
        }
        let store = self.store;
        let entry = StoreEntry::new(owner, addresses, &store.boot_id);
        self.claim(&entry)?;
        let reservation = Reservation { store, entry, committed: false };
        match self.advance(sets, cursors, &reservation.entry.addresses, &choices) {
            Ok(()) => Ok(reservation),
            Err(error) => {
                self.remove_entry(&reservation.entry)?;
                reservation.commit();
                Err(error)
            }
        }
    }

    /// Writes `entry` and claims all of its addresses or none: first the owner's file, then the
    /// addresses, so that a release finds everything wherever the process was killed.
    ///
    /// # Errors
    /// [`StoreError::Taken`], [`StoreError::Duplicate`], [`StoreError::Io`].
    pub(super) fn claim(&self, entry: &StoreEntry) -> Result<(), StoreError> {
        let new = self.store.layout.write_new(&entry.to_bytes())?;
        let claimed = self.link_all(&new, entry);
        // The next claim removes a leftover.
        if let Err(error) = remove(&new) {
            log::warn!("{error}");
        }
        claimed
    }

    fn link_all(&self, new: &Path, entry: &StoreEntry) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let owner = layout.owner(&entry.container_id, &entry.ifname);
        if !entry.is_unowned() && !self.link_owner(new, &owner)? {
            return Err(StoreError::Duplicate(Box::new(entry.clone())));
        }
        for address in &entry.addresses {
            let linked = self.link_address(new, *address);
            if linked.is_err() {
                self.remove_entry(entry)?;
                return linked;
            }
        }
        Ok(())
    }

    /// As [`link`]; the folder of the owners may have been deleted since the boot began.
    fn link_owner(&self, new: &Path, owner: &Path) -> Result<bool, StoreError> {
        match link(new, owner) {
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.store.layout.create()?;
                link(new, owner)
            }
            other => other,
        }
    }

    fn link_address(&self, new: &Path, address: IpAddr) -> Result<(), StoreError> {
        let path = self.store.layout.address(address);
        if link(new, &path)? {
            return Ok(());
        }
        if let Some(entry) = self.entry_at(&path)? {
            return Err(StoreError::Taken { address, owner: entry.owner_text() });
        }
        // The former file is in quarantine now.
        match link(new, &path)? {
            true => Ok(()),
            false => Err(StoreError::Taken { address, owner: path.display().to_string() }),
        }
    }

    /// The next free address of a set. If there is none, unreadable entries are moved to quarantine.
    fn choose(&self, cursors: &[IpAddr], set: &RangeSet) -> Result<IpAddr, StoreError> {
        if let Some(address) = self.store.next_free(cursors, set, &self.others)? {
            return Ok(address);
        }
        for address in self.store.layout.addresses()? {
            self.entry_at(&self.store.layout.address(address))?;
        }
        let free = self.store.next_free(cursors, set, &self.others)?;
        free.ok_or_else(|| StoreError::Exhausted { set: set.to_string() })
    }

    /// Records the last allocated addresses, so that a released one is not reused at once, whatever pods of other
    /// networks get meanwhile.
    fn advance(
        &self,
        sets: &[RangeSet],
        cursors: Vec<Vec<IpAddr>>,
        addresses: &[IpAddr],
        choices: &[Option<IpAddr>],
    ) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        for (position, mut others) in cursors.into_iter().enumerate() {
            if choices[position].is_none() {
                others.retain(|other| sets[position].range_of(*other).is_none());
                others.truncate(CURSORS - 1);
                let text = written(addresses[position], &others);
                layout.replace(&layout.cursor(position), text.as_bytes())?;
            }
        }
        Ok(())
    }
}

/// The content of a file of cursors. Earlier versions read 128 bytes of it, as one address.
fn written(latest: IpAddr, others: &[IpAddr]) -> String {
    match others {
        [] => format!("{latest}\n"),
        _ => others
            .iter()
            .fold(format!("{latest:<127}\n"), |text, other| text + &format!("{other}\n")),
    }
}

/// The requested address of each set; `None` where the set may choose. A requested address is of the
/// first set that holds it and has none yet; without sets, all are taken.
fn assign_requested(
    sets: &[RangeSet],
    requested: &[IpAddr],
) -> Result<Vec<Option<IpAddr>>, StoreError> {
    let mut left: Vec<IpAddr> = Vec::new();
    for address in requested {
        if !left.contains(address) {
            left.push(*address);
        }
    }
    if sets.is_empty() {
        return Ok(left.into_iter().map(Some).collect());
    }
    if let Some(gateway) =
        left.iter().find(|address| sets.iter().any(|set| set.is_gateway(**address)))
    {
        return Err(StoreError::Gateway(*gateway));
    }
    let mut choices = Vec::with_capacity(sets.len());
    for set in sets {
        let position = left.iter().position(|address| set.range_of(*address).is_some());
        choices.push(position.map(|position| left.remove(position)));
    }
    if left.is_empty() {
        return Ok(choices);
    }
    let sets: Vec<String> = sets.iter().map(RangeSet::to_string).collect();
    Err(StoreError::NotInRange { addresses: left, sets: sets.join("; ") })
}

/// Gives the file `new` the further name `path`; `false` if that name is taken.
fn link(new: &Path, path: &Path) -> Result<bool, StoreError> {
    match fs::hard_link(new, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed("link", path)(error)),
    }
}
