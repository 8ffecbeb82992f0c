//! The packages under test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the project lies.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The one package in `dist/` with this ending.
///
/// # Panics
/// If it was not made, or one is left from another version.
pub fn package(ending: &str) -> PathBuf {
    package_in(&root().join("dist"), ending)
}

/// The one package in `folder` with this ending.
pub fn package_in(folder: &Path, ending: &str) -> PathBuf {
    let files = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let files = files.map(|file| file.unwrap().path());
    let found: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
    let [package] = &found[..] else {
        panic!("{}: {} files end in .{ending}: run make packages", folder.display(), found.len());
    };
    package.clone()
}

/// A copy of what packages and the image are made of, without the executable; `dist/` is empty.
pub fn source() -> tempfile::TempDir {
    let source = tempfile::tempdir().unwrap();
    for name in ["Makefile", "Cargo.toml", "LICENSE", "packaging"] {
        let copied =
            Command::new("cp").arg("-a").arg(root().join(name)).arg(source.path()).status();
        assert!(copied.unwrap().success());
    }
    std::fs::create_dir(source.path().join("dist")).unwrap();
    source
}
