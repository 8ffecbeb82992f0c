//! What is installed beside the executable says what the executable does.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use humanz::agent::cli::VARIABLES;

#[test]
fn the_example_of_agent_env_has_every_setting_with_its_default() {
    let example = read("packaging/agent.env");
    let lines = example.lines().filter_map(|line| line.strip_prefix('#')?.split_once('='));
    let settings: Vec<(&str, &str)> = lines.filter(|(name, _)| is_variable(name)).collect();
    for variable in VARIABLES {
        let shown = settings.iter().find(|(name, _)| *name == variable.name);
        let (_, value) = shown.unwrap_or_else(|| panic!("{} is missing", variable.name));
        // Without a default, or with one that is found out, an example stands there.
        if !matches!(variable.default, "" | "auto" | "etcd") {
            assert_eq!(*value, variable.default, "{}", variable.name);
        }
    }
    names_nothing_else(settings.iter().map(|(name, _)| *name).collect());
}

#[test]
fn the_manual_page_has_every_setting_with_its_default() {
    let page = read("packaging/humanz-agent.8");
    let (_, environment) = page.split_once(".SH ENVIRONMENT").unwrap();
    let (environment, _) = environment.split_once(".SH FILES").unwrap();
    for variable in VARIABLES {
        assert!(environment.contains(variable.name), "{} is missing", variable.name);
        if !matches!(variable.default, "" | "auto") {
            let line = environment.lines().find(|line| names(line, variable.name)).unwrap();
            assert!(line.contains(&format!("({})", variable.default)), "{line}");
        }
    }
    let tags =
        environment.lines().filter(|line| line.starts_with(".BR ") || line.starts_with(".B "));
    let words = tags.flat_map(|line| line.split([' ', '"', ',', '(', ')']));
    names_nothing_else(words.filter(|word| is_variable(word)).collect());
}

#[test]
fn everything_is_installed_below_the_folder_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = tempfile::tempdir().unwrap();
    for name in ["Makefile", "packaging"] {
        let copied =
            Command::new("cp").arg("-a").arg(root().join(name)).arg(source.path()).status();
        assert!(copied.unwrap().success());
    }
    std::fs::create_dir(source.path().join("dist")).unwrap();
    std::fs::copy("/bin/true", source.path().join("dist/humanz-agent")).unwrap();
    let install = || {
        let made = Command::new("make")
            .args(["install", "PREFIX=/usr"])
            .arg(format!("DESTDIR={}", folder.path().display()))
            .current_dir(source.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    install();
    let installed = |path: &str| folder.path().join(path.trim_start_matches('/'));
    let unit = std::fs::read_to_string(installed("/usr/lib/systemd/system/humanz-agent.service"));
    let unit = unit.unwrap();
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    for path in [program, "/usr/share/man/man8/humanz-agent.8", "/usr/share/doc/humanz/copyright"] {
        assert!(installed(path).is_file(), "{path}");
    }
    let settings = installed("/etc/humanz/agent.env");
    assert!(unit.contains("EnvironmentFile=-/etc/humanz/agent.env") && settings.is_file());
    std::fs::write(&settings, "ETCD_HOST=mine\n").unwrap();
    install();
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), "ETCD_HOST=mine\n", "kept");
}

/// `RUST_LOG` is the logger's own.
fn names_nothing_else(names: BTreeSet<&str>) {
    let known: BTreeSet<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
    let unknown: Vec<_> = names.difference(&known).filter(|name| **name != "RUST_LOG").collect();
    assert!(unknown.is_empty(), "no such settings: {unknown:?}");
}

fn is_variable(word: &str) -> bool {
    let of_variable = |c: char| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit();
    word.len() > 2 && word.chars().all(of_variable)
}

/// Whether a macro line of the page is the heading of this variable.
fn names(line: &str, variable: &str) -> bool {
    line.starts_with(".B") && line.split([' ', '"', ',']).any(|word| word == variable)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}
