//! Files of earlier plugins.

use std::fs;
use std::path::Path;

use humanz::ipam::StoreError;
use humanz::ipam::import::Sources;

use crate::*;

#[test]
fn addresses_of_the_go_plugin_are_not_allocated_again() {
    let fixture = Fixture::new();
    let seed = fixture.dir.path().join("humanz-cni.json");
    let text = r#"[{"IP":"10.1.2.1/29","Used":true},{"IP":"10.1.2.2/29","Used":true},{"IP":"10.1.2.3/29","Used":false}]"#;
    fs::write(&seed, text).unwrap();
    let (store, sets) = (fixture.importing(BOOT, Some(&seed), None), [set(&["10.1.2.0/29"])]);
    assert_eq!(add(&store, "a", &sets, &[]).unwrap(), ips(&["10.1.2.3"]));
    let locked = store.lock(WAIT).unwrap();
    let freed = locked.release_unowned(&ips(&["10.1.2.2", "10.1.2.3", "10.1.2.4"])).unwrap();
    assert_eq!(freed, ips(&["10.1.2.2"]), "an address with an owner stays");
    drop(locked);
    // Taken over once: what it says later is of no interest.
    fs::write(&seed, text).unwrap();
    assert_eq!(fixture.addresses(), ["10.1.2.3"]);
    assert_eq!(add(&store, "b", &sets, &["10.1.2.2"]).unwrap(), ips(&["10.1.2.2"]));
}

#[test]
fn only_a_store_with_earlier_directories_imports_them() {
    let fixture = Fixture::new();
    let theirs = fixture.dir.path().join("host-local");
    host_local(&theirs);
    let sets = [set(&["10.1.2.0/24"])];
    let behind = fixture.importing(BOOT, None, None);
    assert_eq!(add(&behind, "chained", &[], &["10.1.2.9"]).unwrap(), ips(&["10.1.2.9"]));
    let knowing = fixture.importing(BOOT, None, Some(&theirs));
    assert_eq!(add(&knowing, "new", &sets, &[]).unwrap(), ips(&["10.1.2.4"]), "behind 2 and 3");
    assert_eq!(del(&behind, "chained"), ips(&["10.1.2.9"]));
    // Once is enough: what was released is not taken over again by turns.
    del(&knowing, "c1");
    assert!(del(&behind, "c1").is_empty());
    add(&knowing, "c1", &sets, &[]).unwrap();
}

#[test]
fn a_corrupt_store_of_the_go_plugin_blocks_no_allocation() {
    let fixture = Fixture::new();
    let seed = fixture.dir.path().join("humanz-cni.json");
    fs::write(&seed, "[{\"IP\":").unwrap();
    let store = fixture.importing(BOOT, Some(&seed), Some(&seed));
    assert_eq!(add(&store, "a", &[set(&["10.1.2.0/29"])], &[]).unwrap(), ips(&["10.1.2.2"]));
}

/// A folder as host-local leaves it.
fn host_local(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for (name, content) in [
        ("10.1.2.2", "c1\r\neth0"),
        ("2001:db8::2", "c1\r\neth0"),
        ("10.1.2.3", " c2 "),
        ("10.1.2.4", ""),
        ("last_reserved_ip.0", "10.1.2.4"),
        ("lock", ""),
    ] {
        fs::write(dir.join(name), content).unwrap();
    }
}

#[test]
fn host_locals_reservations_are_taken_over_and_released() {
    let fixture = Fixture::new();
    let theirs = fixture.dir.path().join("host-local");
    host_local(&theirs);
    let (store, sets) = (fixture.importing(BOOT, None, Some(&theirs)), [set(&["10.1.2.0/24"])]);
    assert!(matches!(add(&store, "c1", &sets, &[]), Err(StoreError::Duplicate(_))));
    assert_eq!(add(&store, "new", &sets, &[]).unwrap(), ips(&["10.1.2.4"]));
    let mut freed = del(&store, "c1");
    freed.sort();
    assert_eq!(freed, ips(&["10.1.2.2", "2001:db8::2"]));
    assert_eq!(del(&store, "c2"), ips(&["10.1.2.3"]), "the oldest format names no interface");
    assert_eq!(fixture.addresses(), ["10.1.2.4"]);
    assert!(theirs.join("10.1.2.2").exists(), "a way back stays open");
}

#[test]
fn host_locals_reservations_do_not_come_back_after_a_reboot() {
    let fixture = Fixture::new();
    let theirs = fixture.dir.path().join("host-local");
    host_local(&theirs);
    drop(fixture.importing(BOOT, None, Some(&theirs)).lock(WAIT).unwrap());
    assert_eq!(fixture.addresses().len(), 3);
    // The same boot, our store lost: they are in use.
    fs::remove_dir_all(fixture.path("")).unwrap();
    drop(fixture.importing(BOOT, None, Some(&theirs)).lock(WAIT).unwrap());
    assert_eq!(fixture.addresses().len(), 3);
    // The next boot: only what host-local has added since.
    fs::remove_dir_all(fixture.path("")).unwrap();
    fs::write(theirs.join("10.1.2.9"), "c9\r\neth0").unwrap();
    drop(fixture.importing("boot-2", None, Some(&theirs)).lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.9"]);
}

#[test]
fn a_data_dir_shared_with_host_local_is_taken_over_in_place() {
    let fixture = Fixture::new();
    host_local(&fixture.path(""));
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/29"])]);
    assert_eq!(add(&store, "new", &sets, &[]).unwrap(), ips(&["10.1.2.4"]), "its file was empty");
    let mut freed = del(&store, "c1");
    freed.sort();
    assert_eq!(freed, ips(&["10.1.2.2", "2001:db8::2"]));
    assert_eq!(fixture.addresses(), ["10.1.2.3", "10.1.2.4"]);
}

#[test]
fn an_address_of_the_oldest_host_local_is_of_its_container_whatever_the_interface() {
    let fixture = Fixture::new();
    let theirs = fixture.dir.path().join("host-local");
    host_local(&theirs);
    let store = fixture.importing(BOOT, None, Some(&theirs));
    let locked = store.lock(WAIT).unwrap();
    let all = ips(&["10.1.2.2", "10.1.2.3"]);
    let of = |container_id| locked.without_others(container_id, "eth0", all.clone()).unwrap();
    assert_eq!(of("c2"), ips(&["10.1.2.3"]));
    assert_eq!(of("c1"), ips(&["10.1.2.2"]));
}

#[test]
fn what_the_older_plugins_change_after_an_early_import_counts() {
    let fixture = Fixture::new();
    let (theirs, seed) = (fixture.dir.path().join("host-local"), fixture.dir.path().join("seed"));
    host_local(&theirs);
    let seed_text = |used| {
        format!(r#"[{{"IP":"10.1.2.1/24","Used":true}},{{"IP":"10.1.2.8/24","Used":{used}}}]"#)
    };
    fs::write(&seed, seed_text(true)).unwrap();
    let sources = Sources { go_seed: Some(seed.clone()), host_local: Some(theirs.clone()) };
    let agent = fixture.importing(BOOT, None, None);
    let early = || agent.lock(WAIT).unwrap().import_early(&sources).unwrap();
    early();
    assert_eq!(fixture.addresses(), ["10.1.2.2", "10.1.2.3", "10.1.2.8", "2001:db8::2"]);
    // c1 ends, and c5 gets one of its addresses.
    fs::write(theirs.join("10.1.2.2"), "c5\r\neth0").unwrap();
    fs::remove_file(theirs.join("2001:db8::2")).unwrap();
    early();
    assert_eq!(fixture.addresses(), ["10.1.2.2", "10.1.2.3", "10.1.2.8"]);
    // c2 ends, and one without a known owner.
    fs::remove_file(theirs.join("10.1.2.3")).unwrap();
    fs::write(&seed, seed_text(false)).unwrap();
    let knowing = fixture.importing(BOOT, Some(&seed), Some(&theirs));
    drop(knowing.lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.2"]);
    assert!(del(&knowing, "c1").is_empty());
    assert!(del(&knowing, "c2").is_empty());
    assert_eq!(del(&knowing, "c5"), ips(&["10.1.2.2"]));
}

#[test]
fn an_early_import_outlives_its_sources_and_what_is_imported_on_request_stays() {
    let fixture = Fixture::new();
    let (theirs, seed) = (fixture.dir.path().join("host-local"), fixture.dir.path().join("seed"));
    host_local(&theirs);
    let of = |dir: &Path| Sources { go_seed: None, host_local: Some(dir.to_owned()) };
    let store = fixture.importing(BOOT, None, None);
    store.lock(WAIT).unwrap().import_early(&of(&theirs)).unwrap();
    let elsewhere = fixture.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("10.1.2.9"), "c9\r\neth0").unwrap();
    store.lock(WAIT).unwrap().import(&of(&elsewhere)).unwrap();
    fs::rename(&theirs, fixture.dir.path().join("uninstalled")).unwrap();
    drop(fixture.importing(BOOT, Some(&seed), Some(&theirs)).lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.2", "10.1.2.3", "10.1.2.9", "2001:db8::2"]);
    // What is imported on request does not come from these sources.
    fs::remove_dir_all(fixture.path("")).unwrap();
    store.lock(WAIT).unwrap().import(&of(&elsewhere)).unwrap();
    fs::create_dir(&theirs).unwrap();
    drop(fixture.importing(BOOT, Some(&seed), Some(&theirs)).lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.9"]);
}
