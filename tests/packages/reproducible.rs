//! The same executable gives the same packages and the same image; and no path of the machine that built it is in it.

use std::path::Path;
use std::process::Command;

use crate::built::{package_in, root, source};
use crate::processors;

/// Two machines: where they differ, as variables and as a command of the shell.
const MACHINES: [(&str, &str, &str); 2] =
    [("UTC", "C", "umask 022"), ("Pacific/Kiritimati", "C.UTF-8", "umask 077")];

/// The scripts do not look into an executable, and a small one is packed at once. Both processors have it here.
const ANY: &str = "/bin/true";

/// Names and bytes.
type Files = Vec<(String, Vec<u8>)>;

/// What packaging/`script` leaves in `dist/` with each ending, made on both machines from the executable that ships.
/// With `arch`, arm64, it is made in a folder of that name, from [`ANY`].
fn made(script: &str, arch: &str, endings: &[&str]) -> [Files; 2] {
    let executable = if arch.is_empty() { root().join("dist/humanz-agent") } else { ANY.into() };
    MACHINES.map(|(zone, locale, mask)| {
        let source = source();
        let lines = format!(
            "{mask}; mkdir -p home dist/arm64; for folder in dist dist/arm64; do
             cp -p {} $folder/humanz-agent; done; packaging/{script} {arch}",
            executable.display()
        );
        let mut shell = Command::new("sh");
        let shell = shell.args(["-ec", &lines]).current_dir(source.path());
        shell.env("TZ", zone).env("LC_ALL", locale).env("HOME", source.path().join("home"));
        let ended = shell.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let files = endings.iter().map(|ending| {
            let path = package_in(&source.path().join("dist").join(arch), ending);
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        });
        files.collect()
    })
}

/// The files of either machine.
fn same([one, other]: [Files; 2]) -> Files {
    assert_eq!(one.len(), other.len());
    for ((name, bytes), (other_name, other)) in one.iter().zip(&other) {
        assert_eq!(name, other_name);
        let differs = bytes.iter().zip(other).position(|(byte, other)| byte != other);
        assert!(
            bytes == other,
            "{name}: {} and {} bytes, from {differs:?}",
            bytes.len(),
            other.len()
        );
    }
    one
}

#[test]
fn packages_of_one_executable_are_the_same_bytes_on_every_machine() {
    same(made("package", "", &["deb", "rpm"]));
}

#[test]
fn packages_for_arm64_say_so() {
    let made = same(made("package", "arm64", &["deb", "rpm"]));
    let folder = tempfile::tempdir().unwrap();
    let [deb, rpm] = [0, 1].map(|which: usize| {
        let (name, bytes) = &made[which];
        std::fs::write(folder.path().join(name), bytes).unwrap();
        folder.path().join(name)
    });
    assert!(deb.to_str().unwrap().ends_with("_arm64.deb"), "{}", deb.display());
    assert_eq!(processors::of_deb(&deb), "arm64");
    assert!(rpm.to_str().unwrap().ends_with(".aarch64.rpm"), "{}", rpm.display());
    assert_eq!(processors::of_rpm(&rpm), "aarch64");
}

#[test]
fn images_of_one_executable_are_the_same_bytes_on_every_machine() {
    if std::env::var("SKIP_RUNTIMES").is_ok_and(|value| value == "1") {
        return println!("left out: SKIP_RUNTIMES=1");
    }
    same(made("image", "", &["tar"]));
    let index = same(made("image", "arm64", &["tar"]));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &index[0].1).unwrap();
    let images = processors::images(file.path());
    let processors = images.iter().map(|image| image.processor.as_str());
    assert_eq!(processors.collect::<Vec<_>>(), ["amd64", "arm64"], "this machine's first");
    let executable = std::fs::read(ANY).unwrap();
    assert!(images.iter().all(|image| image.executable == executable));
}

#[test]
fn the_executable_has_no_path_of_the_machine_that_built_it() {
    let own = paths_in(&root().join("dist/humanz-agent"));
    assert!(own.is_empty(), "{own:?}");
    // Which are found where they are.
    let of_cargo = paths_in(Path::new(env!("CARGO_BIN_EXE_humanz-agent")));
    assert!(!of_cargo.is_empty(), "a build without packaging/build has none, either");
}

/// Folders of this machine, and of usual ones, that are in an executable.
fn paths_in(executable: &Path) -> Vec<String> {
    let home = std::env::var("HOME").unwrap_or_default();
    let cargo = std::env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"));
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap().stdout;
    let sysroot = String::from_utf8(sysroot).unwrap();
    let paths = [
        format!("{}/src/", root().display()),
        format!("{}/target/", root().display()),
        format!("{cargo}/registry/"),
        format!("{}/lib/", sysroot.trim()),
        "/.cargo/".to_owned(),
        "/.rustup/".to_owned(),
        "/home/".to_owned(),
        "/work/".to_owned(),
    ];
    // Not with this program's own code, which is not optimised: it took half a minute for 130 MB.
    let is_in = |path: &String| {
        let mut grep = Command::new("grep");
        let grep = grep.args(["-qaF", "-e", path]).arg(executable).env("LC_ALL", "C");
        let ended = grep.status().unwrap();
        assert!(matches!(ended.code(), Some(0 | 1)), "{grep:?}: {ended}");
        ended.success()
    };
    paths.into_iter().filter(is_in).collect()
}
