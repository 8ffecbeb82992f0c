//! A single process.

use std::fs;
use std::os::unix::fs::symlink;

use humanz::ipam::import::Sources;
use humanz::ipam::{ReadEntries, Store, StoreError};

use crate::*;

#[test]
fn two_sets_give_one_address_each_and_a_release_keeps_the_cursors() {
    let fixture = Fixture::new();
    let sets = [set(&["10.1.2.0/24", "10.2.2.0/24"]), set(&["2001:db8:1::/64"])];
    let given = add(&fixture.store(), "dummy", &sets, &[]).unwrap();
    assert_eq!(given, ips(&["10.1.2.2", "2001:db8:1::2"]));
    assert_eq!(fixture.addresses(), ["10.1.2.2", "2001:db8:1::2"]);
    let entry: serde_json::Value =
        serde_json::from_slice(&fs::read(fixture.path("10.1.2.2")).unwrap()).unwrap();
    assert_eq!((&entry["containerID"], &entry["ifname"]), (&"dummy".into(), &"eth0".into()));
    assert_eq!(del(&fixture.store(), "dummy"), given);
    assert!(fixture.addresses().is_empty());
    assert_eq!(fs::read_to_string(fixture.path("cursor.0")).unwrap(), "10.1.2.2\n");
    assert_eq!(fs::read_to_string(fixture.path("cursor.1")).unwrap(), "2001:db8:1::2\n");
}

#[test]
fn networks_are_independent() {
    let fixture = Fixture::new();
    let sets = [set(&["10.1.2.0/24"])];
    for network in ["net", "other"] {
        let given = add(&fixture.store_of(network), "dummy", &sets, &[]).unwrap();
        assert_eq!(given, ips(&["10.1.2.2"]));
    }
}

#[test]
fn a_freed_address_rests_whatever_pods_of_other_networks_get() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let [one, other] = [[set(&["10.1.2.0/24"])], [set(&["10.9.0.0/24"])]];
    let give = |container: &str, sets: &[RangeSet], wanted: &str| {
        assert_eq!(add(&store, container, sets, &[]).unwrap(), ips(&[wanted]), "{container}");
    };
    let cursors = || fs::read_to_string(fixture.path("cursor.0")).unwrap();
    give("a", &one, "10.1.2.2");
    del(&store, "a");
    give("b", &other, "10.9.0.2");
    give("c", &one, "10.1.2.3");
    give("d", &other, "10.9.0.3");
    assert_eq!(cursors(), format!("{:<127}\n10.1.2.3\n", "10.9.0.3"), "one line of each");
    // Of networks that come and go no more is left than this.
    for number in 0..100 {
        let wanted = format!("10.50.{number}.2");
        give(&format!("x{number}"), &[set(&[&format!("10.50.{number}.0/24")])], &wanted);
    }
    assert_eq!(cursors().lines().count(), 64);
    // An earlier version reads so much of the file, and leaves one address there.
    assert_eq!(cursors()[..128].trim_end(), "10.50.99.2");
    fs::write(fixture.path("cursor.0"), "10.1.2.100\n").unwrap();
    give("e", &one, "10.1.2.101");
}

#[test]
fn interfaces_of_one_container_are_independent() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    for (ifname, wanted) in [("eth0", "10.1.2.2"), ("eth1", "10.1.2.3")] {
        let locked = store.lock(WAIT).unwrap();
        let reservation = locked.reserve(&owner("c", ifname), &sets, &[]).unwrap();
        assert_eq!(reservation.addresses(), ips(&[wanted]));
        reservation.commit();
    }
    let locked = store.lock(WAIT).unwrap();
    assert_eq!(locked.release("c", "eth0").unwrap(), ips(&["10.1.2.2"]));
    assert_eq!(locked.entry("c", "eth1").unwrap().unwrap().addresses, ips(&["10.1.2.3"]));
}

#[test]
fn a_second_reservation_of_one_owner_is_a_duplicate_with_the_entry() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "a", &sets, &[]).unwrap();
    let error = add(&store, "a", &sets, &[]).unwrap_err();
    assert!(error.to_string().contains("duplicate allocation is not allowed"), "{error}");
    let StoreError::Duplicate(entry) = error else { panic!("{error}") };
    assert_eq!(entry.netns.as_deref(), Some("/run/netns/x"));
    assert_eq!(add(&store, "b", &sets, &[]).unwrap(), ips(&["10.1.2.3"]));
}

#[test]
fn a_full_pool_has_the_error_of_host_local_but_a_duplicate_comes_first() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    for (number, wanted) in (2..=6).enumerate() {
        let given = add(&store, &format!("c{number}"), &sets, &[]).unwrap();
        assert_eq!(given, ips(&[&format!("10.1.2.{wanted}")]));
    }
    assert!(!store.has_free(&sets).unwrap());
    let error = add(&store, "late", &sets, &[]).unwrap_err().to_string();
    assert_eq!(error, "no IP addresses available in range set: 10.1.2.1-10.1.2.6");
    assert!(matches!(add(&store, "c0", &sets, &[]), Err(StoreError::Duplicate(_))));
    del(&store, "c3");
    assert!(store.has_free(&sets).unwrap());
    assert_eq!(add(&store, "late", &sets, &[]).unwrap(), ips(&["10.1.2.5"]));
}

#[test]
fn a_second_set_that_is_full_leaves_nothing_of_the_first_reserved() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"]), set(&["fd00::/126"])]);
    add(&store, "a", &sets, &[]).unwrap();
    add(&store, "b", &sets, &[]).unwrap();
    assert!(matches!(add(&store, "c", &sets, &[]), Err(StoreError::Exhausted { .. })));
    assert_eq!(fixture.addresses(), ["10.1.2.2", "10.1.2.3", "fd00::2", "fd00::3"]);
}

#[test]
fn a_released_address_is_reused_after_all_others() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    assert_eq!(add(&store, "a", &sets, &[]).unwrap(), ips(&["10.1.2.2"]));
    del(&store, "a");
    for wanted in ["10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6", "10.1.2.2", "10.1.2.3"] {
        assert_eq!(add(&store, "a", &sets, &[]).unwrap(), ips(&[wanted]));
        del(&store, "a");
    }
}

#[test]
fn a_cursor_that_is_no_address_starts_anywhere() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    for cursor in ["", "nonsense", "10.9.9.9", "\u{fffd}\0\0"] {
        fs::create_dir_all(fixture.path("")).unwrap();
        fs::write(fixture.path("cursor.0"), cursor).unwrap();
        assert_eq!(add(&store, "a", &sets, &[]).unwrap(), ips(&["10.1.2.2"]), "{cursor:?}");
        del(&store, "a");
    }
}

#[test]
fn the_last_allocated_address_is_reused_when_all_others_are_taken() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    for number in 2..=254 {
        add(&store, &format!("c{number}"), &sets, &[]).unwrap();
    }
    del(&store, "c254");
    assert_eq!(add(&store, "again", &sets, &[]).unwrap(), ips(&["10.1.2.254"]));
}

#[test]
fn requested_addresses_are_allocated_from_one_set_each() {
    let fixture = Fixture::new();
    let sets = [set(&["10.1.2.0/24"]), set(&["10.1.3.0/24"]), set(&["fd00::/64"])];
    let store = fixture.store();
    let given = add(&store, "a", &sets, &["fd00::99", "10.1.2.88"]).unwrap();
    assert_eq!(given, ips(&["10.1.2.88", "10.1.3.2", "fd00::99"]));
    let given = add(&store, "b", &sets[..1], &["10.1.2.77"]).unwrap();
    assert_eq!(given, ips(&["10.1.2.77"]));
}

#[test]
fn requested_addresses_that_cannot_be_allocated_leave_nothing_reserved() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "first", &sets, &["10.1.2.9"]).unwrap();
    for (requested, text) in [
        (&["10.1.2.88", "10.1.2.77"][..], "failed to allocate all requested IPs: 10.1.2.77"),
        (&["10.9.9.9"], "failed to allocate all requested IPs: 10.9.9.9"),
        (&["10.1.2.255"], "failed to allocate all requested IPs: 10.1.2.255"),
        (&["10.1.2.1"], "requested IP 10.1.2.1 is the subnet's gateway"),
        (&["10.1.2.9"], "requested IP address 10.1.2.9 is taken by container first"),
    ] {
        let error = add(&store, "late", &sets, requested).unwrap_err().to_string();
        assert!(error.starts_with(text), "{requested:?}: {error}");
        assert_eq!(fixture.addresses(), ["10.1.2.9"]);
        assert_eq!(fs::read_dir(fixture.path("owners")).unwrap().count(), 1);
    }
}

#[test]
fn without_ranges_exactly_the_requested_addresses_are_claimed() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let given = add(&store, "a", &[], &["192.0.2.7", "fd00::7", "192.0.2.7"]).unwrap();
    assert_eq!(given, ips(&["192.0.2.7", "fd00::7"]));
    assert!(matches!(add(&store, "b", &[], &["fd00::7"]), Err(StoreError::Taken { .. })));
    assert_eq!(fixture.addresses(), ["192.0.2.7", "fd00::7"]);
    assert!(add(&store, "c", &[], &[]).unwrap().is_empty());
}

#[test]
fn a_dropped_reservation_releases_everything() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let sets = [set(&["10.1.2.0/24"]), set(&["fd00::/64"])];
    let locked = store.lock(WAIT).unwrap();
    let reservation = locked.reserve(&owner("a", "eth0"), &sets, &[]).unwrap();
    assert_eq!(fixture.addresses().len(), 2);
    drop(reservation);
    assert!(fixture.addresses().is_empty());
    assert_eq!(store.lock(WAIT).unwrap().entry("a", "eth0").unwrap(), None);
}

#[test]
fn releasing_a_missing_entry_succeeds() {
    let fixture = Fixture::new();
    assert!(del(&fixture.store(), "nobody").is_empty());
}

#[test]
fn a_release_keeps_an_address_of_another_owner() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    // As a process leaves it that was killed between the owner's name and the address.
    add(&store, "killed", &sets, &["10.1.2.9"]).unwrap();
    fs::remove_file(fixture.path("10.1.2.9")).unwrap();
    add(&store, "other", &sets, &["10.1.2.9"]).unwrap();
    assert!(del(&store, "killed").is_empty());
    assert_eq!(fixture.addresses(), ["10.1.2.9"]);
    assert_eq!(del(&store, "other"), ips(&["10.1.2.9"]));
}

#[test]
fn a_temporary_file_of_a_killed_process_is_ignored() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "a", &sets, &[]).unwrap();
    fs::hard_link(fixture.path("10.1.2.2"), fixture.path("new")).unwrap();
    assert_eq!(add(&store, "b", &sets, &[]).unwrap(), ips(&["10.1.2.3"]));
    assert_eq!(del(&store, "a"), ips(&["10.1.2.2"]));
    assert!(!fixture.path("new").exists());
}

#[test]
fn retain_releases_invalid_entries_only() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"]), set(&["fd00::/64"])]);
    for name in ["a", "b", "c", "d"] {
        add(&store, name, &sets, &[]).unwrap();
    }
    for name in ["c", "d"] {
        fs::remove_file(fixture.path(&format!("owners/{name}:eth0"))).unwrap();
    }
    let valid = |id: &str, ifname: &str| ["a", "d"].contains(&id) && ifname == "eth0";
    let released = store.lock(WAIT).unwrap().retain(valid);
    let released: Vec<_> = released.unwrap().into_iter().map(|entry| entry.container_id).collect();
    assert_eq!(released, ["b", "c"], "also an owner known from its addresses only");
    assert_eq!(fixture.addresses(), ["10.1.2.2", "10.1.2.5", "fd00::2", "fd00::5"]);
    assert_eq!(del(&store, "d"), ips(&["10.1.2.5", "fd00::5"]), "and a valid owner is known again");
}

#[test]
fn a_very_long_container_id_is_kept_and_found() {
    let fixture = Fixture::new();
    let (store, sets, long) = (fixture.store(), [set(&["10.1.2.0/24"])], "c".repeat(300));
    add(&store, &long, &sets, &[]).unwrap();
    assert!(matches!(add(&store, &long, &sets, &[]), Err(StoreError::Duplicate(_))));
    assert_eq!(del(&store, &long), ips(&["10.1.2.2"]));
}

#[test]
fn a_store_on_a_path_through_a_symlink_works() {
    let fixture = Fixture::new();
    let real = fixture.dir.path().join("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, fixture.dir.path().join("link")).unwrap();
    let store = Store::open(&fixture.dir.path().join("link"), "net", BOOT, Sources::default());
    assert_eq!(add(&store, "a", &[set(&["10.1.2.0/24"])], &[]).unwrap(), ips(&["10.1.2.2"]));
}

#[test]
fn what_was_read_before_is_read_again_once_it_is_another_file() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    let mut before = ReadEntries::default();
    let mut check = |wanted: &[&str]| {
        // Each call comes after a change.
        assert!(!store.is_as_read(&before));
        // Younger files are read in any case.
        std::thread::sleep(Duration::from_millis(100));
        let (again, fresh) =
            (store.contents_after(&mut before).unwrap(), store.contents().unwrap());
        assert_eq!((&again.entries, &again.faults), (&fresh.entries, &fresh.faults));
        assert_eq!(store.is_as_read(&before), store.dir().exists());
        let found = again.entries.iter().map(|entry| entry.container_id.as_str());
        assert_eq!(found.collect::<Vec<_>>(), wanted);
        again.faults.len()
    };
    let requested = &["10.1.2.5"];
    check(&[]);
    add(&store, "a", &sets, requested).unwrap();
    assert_eq!(check(&["a"]), 0);
    del(&store, "a");
    // The same name and length: nothing but the file says that it is another.
    add(&store, "b", &sets, requested).unwrap();
    assert_eq!(check(&["b"]), 0);
    let (path, new) = (fixture.path("10.1.2.5"), fixture.path("garbled"));
    let owners = fs::read_dir(fixture.path("owners")).unwrap();
    owners.for_each(|file| fs::remove_file(file.unwrap().path()).unwrap());
    fs::write(&new, vec![b'x'; fs::read(&path).unwrap().len()]).unwrap();
    fs::rename(&new, &path).unwrap();
    assert_eq!(check(&[]), 1);
    fs::remove_file(&path).unwrap();
    assert_eq!(check(&[]), 0);
    fs::create_dir(&path).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..2 {
        assert!(store.contents_after(&mut before).is_err());
        assert!(!store.is_as_read(&before), "nothing was read");
    }
}
