//! Free addresses that no connection of their former owner is left of: its DEL has had the kernel delete them all.
//!
//! To look for them again costs the next owner's ADD a tenth of its time, and the processors' caches more. A note is
//! a file in the folder `swept` that holds the address; those that end with the same octet share one, so that there
//! are no more than 256 of each family. It is left while the lock is held, as the address is released, and removed
//! by whoever gets the address. One that is missing costs only that look.

use std::fs::{self, DirBuilder};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::ipam::store::{LockedStore, Store};

/// No older note counts: the addresses may have been another host's meanwhile. Connections of its pods would be
/// over after three minutes of silence.
const LIFETIME: Duration = Duration::from_secs(300);

impl LockedStore<'_> {
    /// Leaves a note of `released`. Where there is no room for notes there are none.
    pub fn note_swept(&self, released: &[IpAddr]) {
        let _exists = DirBuilder::new().mode(0o700).create(self.store.layout.swept());
        for address in released {
            let (path, note) = self.store.swept(*address);
            let _no_room = fs::write(path, note);
        }
    }
}

impl Store {
    /// Takes the notes of `addresses`, which have a new owner. True: each had one.
    pub fn take_swept(&self, addresses: &[IpAddr]) -> bool {
        let take = |address: &IpAddr| {
            let (path, note) = self.swept(*address);
            if !fs::read(&path).is_ok_and(|found| found == note.as_bytes()) {
                return false;
            }
            let left = fs::metadata(&path).and_then(|found| found.modified());
            let age = left.ok().and_then(|left| left.elapsed().ok());
            fs::remove_file(&path).is_ok() && age.is_some_and(|age| age < LIFETIME)
        };
        // Each is taken, whatever the others say.
        addresses.iter().map(take).fold(true, |all, one| all & one)
    }

    /// Removes all notes: other hosts may have some of the addresses from now on.
    pub fn forget_swept(&self) {
        let _none = fs::remove_dir_all(self.layout.swept());
    }

    /// The file for a note of `address`, and what it says.
    fn swept(&self, address: IpAddr) -> (PathBuf, String) {
        let slot = match address {
            IpAddr::V4(address) => format!("v4.{}", address.octets()[3]),
            IpAddr::V6(address) => format!("v6.{}", address.octets()[15]),
        };
        (self.layout.swept().join(slot), format!("{address}\n"))
    }
}
