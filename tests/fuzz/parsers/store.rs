//! The files of the address store, humanz's own and those of earlier plugins.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use humanz::cni::RangeConf;
use humanz::ipam::entry::{Owner, StoreEntry, file_name};
use humanz::ipam::import::{Sources, reservation, used_addresses};
use humanz::ipam::pool::range_sets;
use humanz::ipam::{LockedStore, Store, StoreError};

const BOOT: &str = "b";
const WAIT: Duration = Duration::from_secs(10);

/// Parts: an address, the content of its file, of the owner's, of the cursor, of `boot`, of the Go
/// seed's file and of one of host-local. They are parsed, and then found in a store.
pub fn store(data: &[u8]) {
    let [address, entry, owner, cursor, boot, seed, local] = super::parts(data);
    let address = super::some_address(address);
    for bytes in [entry, owner] {
        parsed(bytes);
    }
    let _others = (used_addresses(seed).ok(), reservation(local));
    // Files cost a thousand times as much as parsing.
    if StoreEntry::parse(entry).is_err() && data.first().is_none_or(|first| first % 16 != 0) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let network = folder.path().join("net");
    let write = |path: &Path, bytes: &[u8]| {
        if !bytes.is_empty() {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, bytes).expect("a file");
        }
    };
    write(&network.join(address.to_string()), entry);
    write(&network.join("owners/c1:eth0"), owner);
    write(&network.join("cursor.0"), cursor);
    write(&network.join("boot"), boot);
    let sources = Sources {
        go_seed: Some(folder.path().join("seed.json")),
        host_local: Some(folder.path().join("local")),
    };
    write(&folder.path().join("seed.json"), seed);
    write(&folder.path().join("local").join(address.to_string()), local);
    used(&Store::open(folder.path(), "net", BOOT, sources));
}

/// An entry that was read is written back unchanged, and has an owner text and forwards.
fn parsed(bytes: &[u8]) {
    let Ok(entry) = StoreEntry::parse(bytes) else { return };
    assert_eq!(StoreEntry::parse(&entry.to_bytes()).as_ref(), Ok(&entry));
    assert!(file_name(&entry.container_id, &entry.ifname).len() <= 255, "{entry:?}");
    let _shown = (entry.owner_text(), entry.forwards());
}

/// No file in the directory blocks an allocation, and no address gets a second owner.
fn used(store: &Store) {
    let lock = || -> LockedStore<'_> { store.lock(WAIT).expect("the store opens") };
    let before = lock().entries().expect("the entries are listed");
    let is_taken = |address: &IpAddr| store.dir().join(address.to_string()).exists();
    let addresses = before.iter().flat_map(|entry| entry.addresses.clone());
    let taken: Vec<IpAddr> = addresses.filter(is_taken).collect();
    let owner = Owner { container_id: "c9".into(), ifname: "eth0".into(), ..Owner::default() };
    let subnet = "10.244.1.0/28".parse().expect("a subnet");
    let range = RangeConf { subnet, range_start: None, range_end: None, gateway: None };
    let sets = range_sets(&[vec![range]]).expect("a range");
    match lock().reserve(&owner, &sets, &[]) {
        Ok(reservation) => {
            let got = reservation.addresses().to_vec();
            assert!(!taken.contains(&got[0]), "{} has two owners", got[0]);
            reservation.commit();
            assert_eq!(lock().release("c9", "eth0").expect("it is released"), got);
        }
        Err(StoreError::Duplicate(_) | StoreError::Exhausted { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    // An address whose file has another time of its owner is found when the owner is gone.
    for _ in 0..2 {
        lock().retain(|_, _| false).expect("everything is released");
    }
    assert!(lock().entries().expect("the entries are listed").is_empty(), "something stayed");
}
