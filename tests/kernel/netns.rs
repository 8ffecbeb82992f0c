//! Network namespaces.

use std::path::Path;

use humanz::linux::netns::{NetNs, NetNsError};

use super::namespace;

#[test]
fn a_path_that_is_no_namespace_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("left");
    std::fs::write(&left, "").unwrap();
    assert!(matches!(NetNs::open(&left), Err(NetNsError::NotANamespace(_))));
    assert!(matches!(NetNs::open(&dir.path().join("none")), Err(NetNsError::Missing(_))));
    assert!(matches!(NetNs::open(Path::new("/proc/4194304/ns/net")), Err(NetNsError::Missing(_))));
}

#[test]
fn a_namespace_is_itself_under_every_path() {
    let own = NetNs::current().unwrap();
    let by_process = format!("/proc/{}/ns/net", std::process::id());
    assert!(own.is(&NetNs::open(Path::new(&by_process)).unwrap()).unwrap());
    assert!(!own.is(&namespace()).unwrap());
}

#[test]
fn work_in_a_namespace_leaves_the_caller_where_it_was() {
    let other = namespace();
    let before = NetNs::current().unwrap();
    let inside = other.run(|| NetNs::current().unwrap()).unwrap();
    assert!(inside.is(&other).unwrap());
    assert!(before.is(&NetNs::current().unwrap()).unwrap());
}
