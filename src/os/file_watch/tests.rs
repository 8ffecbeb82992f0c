use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Instant;

use crate::os::file_watch::*;

/// Longer than the kernel needs to report.
const SOON: Duration = Duration::from_secs(20);

/// A folder `a/b` with a file `f` that is followed.
struct WatchedFolders {
    folder: tempfile::TempDir,
    watch: FileWatch,
}

impl WatchedFolders {
    fn new() -> WatchedFolders {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/f"), "text").unwrap();
        let ground = WatchedFolders { folder, watch: FileWatch::open().unwrap() };
        ground.follow();
        ground
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn follow(&self) {
        self.watch.follow([self.path("a/b/f").as_path()]).unwrap();
    }

    /// Others write below `/tmp` as well.
    fn notices(&self, what: &str) {
        let begun = Instant::now();
        while self.watch.wait(SOON).unwrap().files.is_empty() {
            assert!(begun.elapsed() < SOON, "{what}");
        }
        self.follow();
        self.drain();
    }

    fn drain(&self) {
        while is_readable(&self.watch.inotify, Duration::ZERO).unwrap() {
            self.watch.wait(Duration::ZERO).unwrap();
        }
    }
}

#[test]
fn whatever_is_done_to_a_file_is_received() {
    let ground = WatchedFolders::new();
    let file = ground.path("a/b/f");
    fs::write(&file, "other").unwrap();
    ground.notices("written");
    nix::unistd::truncate(&file, 0).unwrap();
    ground.notices("truncated by its path");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    ground.notices("mode");
    fs::write(ground.path("new"), "new").unwrap();
    fs::rename(ground.path("new"), &file).unwrap();
    ground.notices("replaced");
    fs::remove_file(&file).unwrap();
    ground.notices("removed");
    symlink("elsewhere", &file).unwrap();
    ground.notices("a link in its place");
}

#[test]
fn a_folder_that_goes_and_comes_is_received_at_once() {
    let ground = WatchedFolders::new();
    fs::remove_dir_all(ground.path("a")).unwrap();
    ground.notices("removed");
    fs::create_dir(ground.path("a")).unwrap();
    ground.notices("made again above");
    fs::create_dir(ground.path("a/b")).unwrap();
    ground.notices("made again");
    fs::write(ground.path("a/b/f"), "text").unwrap();
    ground.notices("written in the new folder");
    fs::rename(ground.path("a"), ground.path("old")).unwrap();
    ground.notices("moved away, though the folder itself is as it was");
    fs::create_dir_all(ground.path("a/b")).unwrap();
    ground.notices("made in the place of the one that was moved");
}

#[test]
fn what_is_beside_the_file_is_not_received() {
    let ground = WatchedFolders::new();
    fs::write(ground.path("a/b/other"), "text").unwrap();
    fs::read(ground.path("a/b/f")).unwrap();
    fs::create_dir(ground.path("c")).unwrap();
    assert!(ground.watch.wait(Duration::from_millis(50)).unwrap().files.is_empty());
    fs::write(ground.path("a/b/f"), "text").unwrap();
    ground.notices("written");
}

#[test]
fn a_file_that_is_no_longer_followed_is_not_received() {
    let ground = WatchedFolders::new();
    ground.watch.follow([ground.path("x/y").as_path()]).unwrap();
    fs::write(ground.path("a/b/f"), "other").unwrap();
    assert!(ground.watch.wait(Duration::from_millis(50)).unwrap().files.is_empty());
    ground.drain();
    fs::create_dir(ground.path("x")).unwrap();
    ground.notices("a folder that was not there yet");
}

#[test]
fn those_that_were_touched_are_named_and_no_others() {
    let ground = WatchedFolders::new();
    let [f, g, h] = ["a/b/f", "a/b/g", "a/f"].map(|below| ground.path(below));
    let named = |expected: &[&PathBuf]| {
        ground.watch.follow([&f, &g, &h].map(PathBuf::as_path)).unwrap();
        let mut received = BTreeSet::new();
        while is_readable(&ground.watch.inotify, Duration::ZERO).unwrap() {
            received.extend(ground.watch.wait(Duration::ZERO).unwrap().files);
        }
        assert_eq!(received, expected.iter().map(|path| path.to_path_buf()).collect());
    };
    named(&[]);
    fs::write(&g, "text").unwrap();
    named(&[&g]);
    fs::write(&h, "the name of another one elsewhere").unwrap();
    named(&[&h]);
    fs::rename(ground.path("a/b"), ground.path("a/c")).unwrap();
    named(&[&f, &g]);
    fs::rename(ground.path("a"), ground.path("c")).unwrap();
    named(&[&f, &g, &h]);
}

#[test]
fn every_folder_on_the_way_matters_and_only_the_last_for_what_is_written() {
    let files = [Path::new("/etc/cni/net.d/f"), Path::new("/etc/g")];
    let found: Vec<String> = places(files)
        .iter()
        .map(|(folder, place)| {
            format!("{} {:?} {}", folder.display(), place.names, place.has_files)
        })
        .collect();
    let wanted = [
        r#"/ {"etc": {"/etc/cni/net.d/f", "/etc/g"}} false"#,
        r#"/etc {"cni": {"/etc/cni/net.d/f"}, "g": {"/etc/g"}} true"#,
        r#"/etc/cni {"net.d": {"/etc/cni/net.d/f"}} false"#,
        r#"/etc/cni/net.d {"f": {"/etc/cni/net.d/f"}} true"#,
    ];
    assert_eq!(found, wanted);
}
