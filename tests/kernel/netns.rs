//! Network namespaces.

use std::path::Path;

use humanz::os::netns::{NetNs, NetNsError};

use super::namespace;

#[test]
fn a_path_that_is_no_namespace_is_reported_as_such() {
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

#[test]
fn opening_a_pipe_as_namespace_fails_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(NetNs::open(&pipe)));
    let opened = receiver.recv_timeout(std::time::Duration::from_secs(5)).expect("an answer");
    assert!(matches!(opened, Err(NetNsError::NotANamespace(_))), "{opened:?}");
}

#[test]
fn a_namespace_of_another_kind_is_refused() {
    let entered = NetNs::open(Path::new("/proc/self/ns/mnt")).unwrap().run(|| ());
    assert!(matches!(entered, Err(NetNsError::NotANamespace(_))), "{entered:?}");
}
