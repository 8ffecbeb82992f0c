//! The shell completions match the command line: packaging/completion.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

mod bash;
mod fish;
mod level;
mod shells;
mod takes;
mod zsh;

use std::path::{Path, PathBuf};
use std::process::Command;

use argh::ArgsInfo;
use humanz::command::Arguments;
use humanz::sources::KINDS;

/// `UPDATE=1 cargo test --test completion` writes the files anew.
#[test]
fn the_files_contain_every_subcommand_and_option() {
    let info = Arguments::get_args_info();
    for (shell, text) in
        [("bash", bash::file(&info)), ("zsh", zsh::file(&info)), ("fish", fish::file(&info))]
    {
        let path = root().join("packaging/completion").join(shell);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == text, "{shell} is outdated: UPDATE=1 cargo test --test completion");
    }
}

/// What bash offers after these words, in `folder`, whose `humanz-agent` answers.
pub fn offered(typed: &str, folder: &Path) -> String {
    let script = format!(
        "source packaging/completion/bash; PATH={}:$PATH; COMP_WORDS=({typed}); \
         COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _humanz-agent; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        folder.display()
    );
    let done = Command::new("bash").args(["-euc", &script]).current_dir(root()).output().unwrap();
    assert!(done.stderr.is_empty(), "{typed}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().replace('\n', " ")
}

#[test]
fn bash_completes_subcommands_and_options() {
    let nowhere = tempfile::tempdir().unwrap();
    for (typed, wanted) in [
        ("humanz-agent sta", "status"),
        ("humanz-agent --env-file x nodes r", "rm reserve roles"),
        ("humanz-agent nodes --env-file x r", "rm reserve roles"),
        ("humanz-agent nodes rm --f", "--force"),
        ("humanz-agent nodes ls --n", ""),
        ("/usr/sbin/humanz-agent ipam ls --n", "--network"),
        ("humanz-agent --etcd-ho", "--etcd-host"),
        ("humanz-agent routes ''", "--help --wrong --json"),
        ("humanz-agent net set blue/a --shared ''", "yes no"),
        ("humanz-agent net set blue/a --shared = y", "yes"),
        ("humanz-agent policy rm GroupP", "GroupPolicy"),
        // bash offers files, or nobody can offer anything.
        ("humanz-agent --env-file ''", ""),
        ("humanz-agent policy test --to a/b : 8", ""),
        ("humanz-agent policy test --to fd00 :: 1", ""),
        ("humanz-agent policy test --to fd00 :: 1 --pro", "--protocol"),
        ("humanz-agent policy test --to =:: 1 --pro", "--protocol"),
        ("humanz-agent policy test --to :: 1 --pro", "--protocol"),
        ("humanz-agent group show ''", ""),
    ] {
        assert_eq!(offered(typed, nowhere.path()), wanted, "{typed}");
    }
}

#[test]
fn every_kind_of_object_can_be_typed() {
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    let takes::Takes::Words(offered) = takes::takes(&["policy", "rm"], "kind") else { panic!() };
    assert_eq!(offered, kinds);
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
