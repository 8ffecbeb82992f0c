//! Files and sysctls.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use humanz::os::{files, sysctl};

use super::namespace;

#[test]
fn a_sysctl_is_written_in_its_namespace_only() {
    let key = "net/ipv4/ip_forward";
    let outside = sysctl::read(key).unwrap();
    namespace()
        .run(|| {
            let other = if sysctl::read(key).unwrap() == "1" { "0" } else { "1" };
            sysctl::write(key, other).unwrap();
            assert_eq!(sysctl::read(key).unwrap(), other);
        })
        .unwrap();
    assert_eq!(sysctl::read(key).unwrap(), outside);
    assert!(sysctl::read("net/ipv4/no_such_key").unwrap_err().is_missing());
}

#[test]
fn a_file_is_replaced_atomically_without_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b.conf");
    files::replace(&path, b"one", 0o600).unwrap();
    files::replace_watched(&path, b"two", 0o600).unwrap();
    assert!(files::holds(&path, b"two") && !files::holds(&path, b"one"));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    files::replace_link(Path::new("b.conf"), &dir.path().join("a/link")).unwrap();
    files::replace_link(Path::new("b.conf"), &dir.path().join("a/link")).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(dir.path().join("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["b.conf", "link"]);
    files::remove(&path).unwrap();
    files::remove(&path).unwrap();
    let text = files::replace(&dir.path().join("a/link/x"), b"", 0o600).unwrap_err().to_string();
    assert!(text.contains("a/link"), "{text}");
}

#[test]
fn a_running_executable_is_replaced_by_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("sleep");
    files::copy_executable(Path::new("/bin/sleep"), &copy).unwrap();
    let mut child = std::process::Command::new(&copy).arg("60").spawn().unwrap();
    let is_copy_with = |mode| {
        fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
        files::is_copy(Path::new("/bin/sleep"), &copy).unwrap()
    };
    // Some file systems have modes of their own.
    assert!(is_copy_with(0o755) && is_copy_with(0o777));
    assert!(!is_copy_with(0o644), "nobody can run it");
    let replaced = files::copy_executable(Path::new("/bin/true"), &copy);
    child.kill().unwrap();
    child.wait().unwrap();
    replaced.unwrap();
    assert!(!files::is_copy(Path::new("/bin/sleep"), &copy).unwrap());
}

#[test]
fn a_copy_is_one_where_times_are_coarse_too() {
    let dir = tempfile::tempdir().unwrap();
    let (from, copy) = (dir.path().join("from"), dir.path().join("copy"));
    let at = |path: &Path, time: Duration| {
        let file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + time).unwrap();
    };
    fs::copy("/bin/true", &from).unwrap();
    let built = Duration::from_millis(1_700_000_001_700);
    at(&from, built);
    files::copy_executable(&from, &copy).unwrap();
    let is_copy = |secs: u64| {
        at(&copy, Duration::from_secs(secs));
        files::is_copy(&from, &copy).unwrap()
    };
    assert!(files::is_copy(&from, &copy).unwrap());
    assert!(is_copy(1_700_000_001), "ext with small inodes");
    assert!(is_copy(1_700_000_000) && is_copy(1_700_000_002), "vfat");
    assert!(!is_copy(1_699_999_999) && !is_copy(1_700_000_004), "another executable's");
    at(&copy, built);
    fs::OpenOptions::new().write(true).open(&copy).unwrap().set_len(100).unwrap();
    at(&copy, built);
    assert!(!files::is_copy(&from, &copy).unwrap(), "as old, but shorter");
}

#[test]
fn writing_a_missing_sysctl_is_reported_as_missing() {
    let error = sysctl::write("net/ipv4/no_such_key", "1").unwrap_err();
    assert!(error.is_missing(), "{error}");
}
