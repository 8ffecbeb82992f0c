//! Corrupt files, other boots, locks and inaccessible directories.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use humanz::ipam::import::Sources;
use humanz::ipam::{Owner, Store, StoreError};

use crate::*;

#[test]
fn a_corrupt_entry_is_quarantined_with_all_its_files() {
    let fixture = Fixture::new();
    let sets = [set(&["10.1.2.0/29"]), set(&["fd00::/64"])];
    let store = fixture.store();
    add(&store, "a", &sets, &[]).unwrap();
    fs::write(fixture.path("owners/a:eth0"), "{\"sche").unwrap();
    assert!(del(&store, "a").is_empty());
    assert!(fixture.addresses().is_empty());
    let mut moved: Vec<_> = fs::read_dir(fixture.path("quarantine")).unwrap().collect();
    assert_eq!(moved.drain(..).count(), 3);
}

#[test]
fn empty_address_files_do_not_exhaust_the_pool() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    drop(store.lock(WAIT).unwrap());
    for number in 2..=6 {
        fs::write(fixture.path(&format!("10.1.2.{number}")), "").unwrap();
    }
    assert_eq!(add(&store, "a", &sets, &[]).unwrap(), ips(&["10.1.2.2"]));
    assert_eq!(add(&store, "b", &sets, &["10.1.2.5"]).unwrap(), ips(&["10.1.2.5"]));
}

#[test]
fn a_corrupt_file_does_not_block_a_request() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    drop(store.lock(WAIT).unwrap());
    fs::write(fixture.path("10.1.2.5"), "{}").unwrap();
    assert_eq!(add(&store, "a", &sets, &["10.1.2.5"]).unwrap(), ips(&["10.1.2.5"]));
}

#[test]
fn an_entry_under_a_wrong_name_is_quarantined_and_its_owner_keeps_the_address() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    let address = add(&store, "a", &sets, &[]).unwrap();
    fs::hard_link(fixture.path("owners/a:eth0"), fixture.path("owners/b:eth0")).unwrap();
    fs::copy(fixture.path("owners/a:eth0"), fixture.path("10.1.2.6")).unwrap();
    assert_eq!(store.lock(WAIT).unwrap().entries().unwrap().len(), 1);
    assert_ne!(add(&store, "b", &sets, &[]).unwrap(), address);
    assert_eq!(add(&store, "c", &sets, &["10.1.2.6"]).unwrap(), ips(&["10.1.2.6"]));
    assert_eq!(del(&store, "a"), address);
    assert_eq!(fs::read_dir(fixture.path("quarantine")).unwrap().count(), 2);
}

#[test]
fn entries_of_an_earlier_boot_are_free() {
    let fixture = Fixture::new();
    let sets = [set(&["10.1.2.0/29"])];
    for number in 0..5 {
        add(&fixture.store(), &format!("c{number}"), &sets, &[]).unwrap();
    }
    let rebooted = Store::open(fixture.dir.path(), "net", "boot-2", Sources::default());
    assert_eq!(add(&rebooted, "c0", &sets, &[]).unwrap(), ips(&["10.1.2.2"]));
    assert_eq!(fixture.addresses(), ["10.1.2.2"]);
    assert_eq!(fs::read_dir(fixture.path("owners")).unwrap().count(), 1);
}

#[test]
fn a_missing_boot_file_frees_nothing() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "a", &sets, &[]).unwrap();
    fs::remove_file(fixture.path("boot")).unwrap();
    assert_eq!(add(&store, "b", &sets, &[]).unwrap(), ips(&["10.1.2.3"]));
    assert_eq!(del(&store, "a"), ips(&["10.1.2.2"]));
}

#[test]
fn a_missing_owners_directory_is_recreated_and_frees_nothing() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "a", &sets, &[]).unwrap();
    fs::remove_dir_all(fixture.path("owners")).unwrap();
    assert_eq!(add(&store, "b", &sets, &[]).unwrap(), ips(&["10.1.2.3"]));
    let left = store.lock(WAIT).unwrap().retain(|_, _| true);
    assert!(left.unwrap().is_empty());
    assert_eq!(del(&store, "a"), ips(&["10.1.2.2"]));
}

#[test]
fn a_lock_that_is_held_is_an_error_after_the_deadline() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let held = store.lock(WAIT).unwrap();
    let started = Instant::now();
    let error = store.lock(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, StoreError::LockTimeout { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(held);
    drop(store.lock(Duration::ZERO).unwrap());
}

#[test]
fn a_directory_that_cannot_be_created_is_reported_with_its_path() {
    let fixture = Fixture::new();
    fs::write(fixture.dir.path().join("file"), "").unwrap();
    let store = Store::open(&fixture.dir.path().join("file"), "net", BOOT, Sources::default());
    let error = add(&store, "a", &[set(&["10.1.2.0/24"])], &[]).unwrap_err();
    assert!(error.to_string().contains("/file/net"), "{error}");
    assert!(store.writable().is_err());
    assert!(fixture.store().writable().is_ok());
}

#[test]
fn a_process_that_does_not_know_this_boot_frees_nothing() {
    let fixture = Fixture::new();
    let sets = [set(&["10.1.2.0/29"])];
    let given = add(&fixture.store(), "a", &sets, &[]).unwrap();
    let nameless = Store::open(fixture.dir.path(), "net", "", Sources::default());
    assert!(nameless.close(None, WAIT).is_err(), "locked without a boot id");
    assert!(nameless.ports().lock(WAIT).is_err(), "locked without a boot id");
    assert_eq!(fixture.addresses(), ["10.1.2.2"]);
    assert_eq!(nameless.taken().unwrap(), given, "reading needs none");
    assert_eq!(del(&fixture.store(), "a"), given);
}

#[test]
fn garbled_files_of_an_earlier_boot_are_free_at_the_first_use_of_the_next() {
    let fixture = Fixture::new();
    let sets = [set(&["10.1.2.0/29"])];
    add(&fixture.store(), "a", &sets, &[]).unwrap();
    fs::write(fixture.path("10.1.2.4"), "").unwrap();
    fs::write(fixture.path("10.1.2.5"), "\0\0\0\0").unwrap();
    let rebooted = Store::open(fixture.dir.path(), "net", "boot-2", Sources::default());
    drop(rebooted.lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), Vec::<String>::new());
    assert_eq!(fs::read_dir(fixture.path("quarantine")).unwrap().count(), 2);
}

#[test]
fn only_entries_of_this_boot_and_reservations_of_host_local_fill_a_pool() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    drop(store.lock(WAIT).unwrap());
    let rebooted = Store::open(fixture.dir.path(), "net", "boot-2", Sources::default());
    for number in 2..=6 {
        fs::write(fixture.path(&format!("10.1.2.{number}")), "c1\r\neth0").unwrap();
    }
    assert!(!store.has_free(&sets).unwrap(), "host-local has them all");
    fs::write(fixture.path("10.1.2.5"), "").unwrap();
    assert!(store.has_free(&sets).unwrap(), "an empty file is nobody's");
    fs::remove_file(fixture.path("10.1.2.5")).unwrap();
    add(&store, "a", &sets, &[]).unwrap();
    assert!(!store.has_free(&sets).unwrap());
    assert!(rebooted.has_free(&sets).unwrap(), "an entry of another boot is nobody's");
}

#[test]
fn a_lock_whose_file_was_deleted_meanwhile_is_taken_at_the_new_file() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let held = store.lock(WAIT).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let _locked = store.lock(WAIT).unwrap();
            let third = store.lock(Duration::ZERO);
            assert!(third.is_err(), "two have the lock");
        });
        // It waits for the file that is held.
        thread::sleep(Duration::from_millis(50));
        fs::remove_dir_all(fixture.path("")).unwrap();
        drop(held);
        waiting.join().unwrap();
    });
}

#[test]
fn an_undo_leaves_alone_what_a_later_add_of_the_same_interface_reserved() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    let one = ips(&["10.1.2.9"]);
    // The last one: the same address in the same second.
    for (requested, secs, nanos) in [(&[][..], 9, 0), (&one[..], 9, 0), (&one[..], 0, 1)] {
        let slow = store.lock(WAIT).unwrap();
        let slow = slow.reserve(&owner("a", "eth0"), &sets, requested).unwrap();
        del(&store, "a");
        let time_secs = 1_700_000_000 + secs;
        let later = Owner { time_secs, time_nanos: nanos, ..owner("a", "eth0") };
        let locked = store.lock(WAIT).unwrap();
        let later = locked.reserve(&later, &sets, requested).unwrap().commit();
        drop(slow);
        assert_eq!(store.lock(WAIT).unwrap().entry("a", "eth0").unwrap(), Some(later.clone()));
        assert_eq!(del(&store, "a"), later.addresses);
    }
}
