//! lintian and rpmlint.

use std::process::Command;

use crate::built::{package, root};

/// The output of a linter; it must succeed.
fn judge(command: &mut Command, debian_package: &str) -> String {
    let output = command.current_dir(root()).output();
    let output = output.unwrap_or_else(|e| panic!("{command:?}: {e} (package {debian_package})"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn lintian_finds_nothing_that_is_not_explained() {
    let mut lintian = Command::new("lintian");
    lintian.args(["--display-info", "--fail-on=error,warning,info", "--tag-display-limit=0"]);
    // Three bytes of machine code can resemble a word.
    lintian.args(["--suppress-tags", "spelling-error-in-binary"]);
    judge(lintian.arg(package("deb")), "lintian");
}

#[test]
fn rpmlint_finds_nothing_that_is_not_explained() {
    let mut rpmlint = Command::new("rpmlint");
    rpmlint.args(["--strict", "--config", "packaging/rpm/rpmlint.toml"]);
    judge(rpmlint.arg(package("rpm")), "rpmlint");
    let whole = judge(Command::new("rpm").arg("-K").arg(package("rpm")), "rpm");
    assert!(whole.contains("digests OK"), "{whole}");
}

#[test]
fn both_packages_install_the_same_files() {
    let deb = judge(Command::new("dpkg-deb").arg("-c").arg(package("deb")), "dpkg");
    let deb = deb.lines().filter(|line| !line.starts_with('d'));
    let deb = deb.filter_map(|line| line.split_whitespace().nth(5)?.strip_prefix('.'));
    let rpm = judge(Command::new("rpm").arg("-qpl").arg(package("rpm")), "rpm");
    let own = |path: &&str| {
        let debian = path.starts_with("/usr/share/lintian/") || path.ends_with("/changelog.gz");
        !debian && !path.starts_with("/usr/share/licenses/") && !path.starts_with("/usr/share/zsh/")
    };
    let sorted = |files: Vec<&str>| {
        let mut files: Vec<String> = files.into_iter().filter(own).map(String::from).collect();
        files.sort();
        files
    };
    let doc = "/usr/share/doc/humanz";
    let folders = ["/etc/humanz", doc, "/usr/share/doc/humanz/doc", "/usr/share/humanz"];
    let zsh = (
        deb.clone().any(|path| path == "/usr/share/zsh/vendor-completions/_humanz-agent"),
        rpm.contains("/usr/share/zsh/site-functions/_humanz-agent"),
    );
    let rpm = rpm.lines().filter(|path| !folders.contains(path));
    let (deb, rpm) = (sorted(deb.collect()), sorted(rpm.collect()));
    assert_eq!(deb, rpm);
    assert!(zsh.0 && zsh.1, "each where its zsh looks");
    assert!(deb.contains(&"/usr/sbin/humanz-agent".to_owned()), "{deb:?}");
}

/// Both packages and the image have this file.
#[test]
fn the_executable_that_ships_is_smaller_than_8_mb() {
    let path = root().join("dist/humanz-agent");
    let bytes = std::fs::metadata(&path).unwrap().len();
    println!("{bytes} bytes");
    assert!(bytes < 8_000_000, "{}: {bytes} bytes", path.display());
}

/// How much of it an ADD maps depends on that: if this fails, `packaging/plugin-order/update` writes their names anew.
#[test]
fn the_functions_of_the_plugin_lie_side_by_side() {
    let mut readelf = Command::new("readelf");
    let sections = judge(readelf.args(["-SW", "dist/humanz-agent"]), "binutils");
    let section = sections.lines().find(|line| line.contains(" .text.plugin "));
    let size = section.and_then(|line| line.split_whitespace().rev().nth(5)).unwrap_or("0");
    println!("{section:?}");
    let bytes = u64::from_str_radix(size, 16).unwrap();
    assert!((400_000..1_000_000).contains(&bytes), "{bytes} bytes: {sections}");
}
