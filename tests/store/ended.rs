//! Notes that attachments have ended, left without the lock.

use std::fs;

use humanz::ipam::{LockedStore, Store};

use crate::*;

/// What DEL does while another process holds the lock.
fn end(store: &Store, container_id: &str) {
    let seen = store.seen(container_id, "eth0").unwrap().expect("it is attached");
    store.note_end(&seen).unwrap();
}

fn note(fixture: &Fixture, name: &str) -> bool {
    fixture.path(&format!("ended/{name}")).exists()
}

#[test]
fn the_next_holder_of_the_lock_releases_what_has_ended_and_nothing_else() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"]), set(&["fd00::/64"])]);
    for name in ["a", "b"] {
        add(&store, name, &sets, &[]).unwrap();
    }
    let held: LockedStore<'_> = store.lock(WAIT).unwrap();
    end(&store, "a");
    end(&store, "a");
    assert_eq!(fixture.addresses(), ["10.1.2.2", "10.1.2.3", "fd00::2", "fd00::3"]);
    let ended = store.contents().unwrap().ended;
    assert_eq!(ended.iter().map(|entry| entry.container_id.as_str()).collect::<Vec<_>>(), ["a"]);
    drop(held);
    drop(store.lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.3", "fd00::3"]);
    assert!(!note(&fixture, "a:eth0") && store.ended().unwrap().is_empty());
}

#[test]
fn an_entry_that_was_replaced_since_it_was_seen_is_not_noted() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "a", &sets, &["10.1.2.9"]).unwrap();
    let seen = store.seen("a", "eth0").unwrap().unwrap();
    del(&store, "a");
    // Even one of the same time, with the same address.
    add(&store, "a", &sets, &["10.1.2.9"]).unwrap();
    store.note_end(&seen).unwrap();
    assert!(!note(&fixture, "a:eth0"));
    drop(store.lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.9"]);
}

#[test]
fn the_note_of_a_later_attachment_takes_the_place_of_a_former_one() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "former", &sets, &[]).unwrap();
    fs::create_dir(fixture.path("ended")).unwrap();
    add(&store, "a", &sets, &[]).unwrap();
    fs::hard_link(fixture.path("owners/former:eth0"), fixture.path("ended/a:eth0")).unwrap();
    end(&store, "a");
    drop(store.lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.2"]);
}

#[test]
fn an_address_of_an_older_plugin_that_kept_no_owners_is_released_by_its_note() {
    let fixture = Fixture::new();
    let seed = fixture.dir.path().join("seed.json");
    let slot = |address: &str| format!(r#"{{"IP":"{address}/24","Used":true}}"#);
    let slots = ["10.1.2.1", "10.1.2.2", "10.1.2.3"].map(slot).join(",");
    fs::write(&seed, format!("[{slots}]")).unwrap();
    let store = fixture.importing(BOOT, Some(&seed), None);
    assert!(store.awaits_import().unwrap());
    let held = store.lock(WAIT).unwrap();
    assert!(!store.awaits_import().unwrap());
    assert!(store.seen("a", "eth0").unwrap().is_none());
    let seen = store.seen_unowned(&ips(&["10.1.2.2", "10.1.2.7"])).unwrap();
    assert_eq!(seen.len(), 1);
    store.note_end(&seen[0]).unwrap();
    drop(held);
    drop(store.lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.3"]);
}

#[test]
fn a_note_of_another_boot_goes_with_its_entry() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "a", &sets, &["10.1.2.9"]).unwrap();
    end(&store, "a");
    let later = fixture.importing("boot-2", None, None);
    assert!(later.seen("a", "eth0").unwrap().is_none() && later.ended().unwrap().is_empty());
    assert_eq!(add(&later, "b", &sets, &["10.1.2.9"]).unwrap(), ips(&["10.1.2.9"]));
    assert!(!note(&fixture, "a:eth0"));
    drop(later.lock(WAIT).unwrap());
    assert_eq!(fixture.addresses(), ["10.1.2.9"]);
}

#[test]
fn a_note_that_is_none_is_a_fault_and_goes_to_quarantine() {
    let fixture = Fixture::new();
    let (store, sets) = (fixture.store(), [set(&["10.1.2.0/24"])]);
    add(&store, "a", &sets, &[]).unwrap();
    let folder = fixture.path("ended");
    fs::create_dir_all(folder.join("folder")).unwrap();
    fs::write(folder.join("torn"), "{\"schema\":1,\"contai").unwrap();
    let faults = store.contents().unwrap().faults;
    let of = |name: &str| faults.iter().any(|fault| fault.what.contains(name));
    assert!(faults.len() == 2 && of("ended/torn") && of("ended/folder"), "{faults:?}");
    add(&store, "b", &sets, &[]).unwrap();
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["folder"]);
    assert!(fixture.path("quarantine/torn").exists());
    assert_eq!(fixture.addresses(), ["10.1.2.2", "10.1.2.3"]);
}
