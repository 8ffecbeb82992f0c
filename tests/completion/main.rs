//! The shell completions match the command line: packaging/completion.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

mod bash;
mod fish;
mod level;
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

#[test]
fn the_shells_that_are_installed_understand_their_files() {
    for shell in ["bash", "zsh", "fish"] {
        let file = format!("packaging/completion/{shell}");
        let checked = Command::new(shell).arg("-n").arg(file).current_dir(root()).output();
        let Ok(done) = checked else { continue };
        let (status, said) = (done.status, String::from_utf8_lossy(&done.stderr));
        assert!(status.success() && said.is_empty(), "{shell}: {said}");
    }
}

/// What bash offers after these words, in `folder`, whose `humanz-agent` answers.
fn offered(typed: &str, folder: &Path) -> String {
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
        ("humanz-agent group show ''", ""),
    ] {
        assert_eq!(offered(typed, nowhere.path()), wanted, "{typed}");
    }
}

/// Names are others' words: a shell neither runs nor offers what it could take for more, even if the program printed it.
#[test]
fn bash_runs_nothing_of_what_it_offers() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let hostile = format!(
        "shop/web\\n$(touch {0})\\n`touch {0}`\\nshop/a;touch {0}\\nshop/$(touch {0})\\n-rf\\n--force\\n\\033[2Jshop\\n\
         shop/a b\\nshop/*\\n*\\n~\\n!!\\n\\nshop/web2",
        ran.display()
    );
    let script =
        format!("#!/bin/sh\necho \"$*\" >>{}/asked\nprintf '{hostile}'\n", folder.path().display());
    let program = folder.path().join("humanz-agent");
    std::fs::write(&program, script).unwrap();
    Command::new("chmod").arg("+x").arg(&program).status().unwrap();
    let hostile = format!("'$(touch {})'", ran.display());
    for (typed, wanted) in [
        ("humanz-agent ipam show ''", "shop/web"),
        ("humanz-agent ipam show shop", "shop/web"),
        ("humanz-agent flows --pod = shop", "shop/web"),
        ("humanz-agent flows --pod '$('", ""),
        ("humanz-agent group set x --policies ''", "shop/web"),
        (&*format!("humanz-agent ipam show {hostile}"), ""),
        (&*format!("humanz-agent {hostile} {hostile} ''"), "status"),
        (&*format!("humanz-agent policy rm {hostile} shop"), "shop/web"),
        ("humanz-agent policy rm 'a[$(id)]' '*'", ""),
    ] {
        let found = offered(typed, folder.path());
        let first = found.split(' ').next().unwrap();
        assert_eq!(first, wanted, "{typed}: {found}");
        assert!(!found.contains(['$', '`', ';', '*', '~', '!', '\u{1b}']), "{typed}: {found}");
    }
    assert!(!ran.exists());
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    assert!(
        asked.starts_with("names pods\n") && asked.contains("names grouppolicies --bare\n"),
        "{asked}"
    );
}

#[test]
fn every_kind_of_object_can_be_typed() {
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    let takes::Takes::Words(offered) = takes::takes(&["policy", "rm"], "kind") else { panic!() };
    assert_eq!(offered, kinds);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
