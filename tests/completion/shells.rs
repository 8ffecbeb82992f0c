//! Shells run the files, beside a program whose names are hostile: they are others' words, and a shell neither runs nor
//! offers what it could take for more, even if the program printed it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::{offered, root};

/// A folder with a `humanz-agent` that writes down its words and prints hostile names between two good ones.
struct HostileNames(TempDir);

impl HostileNames {
    fn new() -> HostileNames {
        let names = HostileNames(tempfile::tempdir().unwrap());
        let ran = names.ran().display().to_string();
        let printed = format!(
            "shop/web\\n$(touch {ran})\\n`touch {ran}`\\nshop/a;touch {ran}\\nshop/$(touch {ran})\\n-rf\\n--force\\n\
             \\033[2Jshop\\nshop/a b\\nshop/*\\n*\\n~\\n!!\\n\\nshop/web2\\n"
        );
        let asked = names.folder().join("asked");
        let script = format!("#!/bin/sh\necho \"$*\" >>{}\nprintf '{printed}'\n", asked.display());
        let program = names.folder().join("humanz-agent");
        fs::write(&program, script).unwrap();
        Command::new("chmod").arg("+x").arg(&program).status().unwrap();
        names
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    /// What is there once a name was run.
    fn ran(&self) -> PathBuf {
        self.folder().join("ran")
    }

    fn asked(&self) -> String {
        fs::read_to_string(self.folder().join("asked")).unwrap_or_default()
    }

    /// Runs `script` in `shell`, where the program of this folder is found.
    fn run(&self, shell: &str, words: &[&str], script: &str) -> String {
        let path = format!("{}:{}", self.folder().display(), std::env::var("PATH").unwrap());
        let home = self.folder();
        let mut command = Command::new(shell);
        command.args(words).arg(script).current_dir(root()).env("PATH", path).env("HOME", home);
        let done = output(shell, &mut command);
        let (said, why) =
            (String::from_utf8(done.stdout).unwrap(), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && why.is_empty(), "{shell}: {script}: {said}{why}");
        assert!(!self.ran().exists(), "{shell}: {script}: a name was run");
        said
    }
}

fn output(shell: &str, command: &mut Command) -> Output {
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("{shell} is not installed: packaging/deps test")
        }
        done => done.unwrap(),
    }
}

#[test]
fn shells_understand_their_files() {
    for shell in ["bash", "zsh", "fish"] {
        let file = format!("packaging/completion/{shell}");
        let done = output(shell, Command::new(shell).arg("-n").arg(file).current_dir(root()));
        let (status, said) = (done.status, String::from_utf8_lossy(&done.stderr));
        assert!(status.success() && said.is_empty(), "{shell}: {said}");
    }
}

#[test]
fn bash_runs_nothing_of_what_it_offers() {
    let names = HostileNames::new();
    let hostile = format!("'$(touch {})'", names.ran().display());
    for (typed, wanted) in [
        ("humanz-agent ipam show ''", "shop/web"),
        ("humanz-agent ipam show shop", "shop/web"),
        ("humanz-agent flows --pod = shop", "shop/web"),
        ("humanz-agent flows --pod '$('", ""),
        ("humanz-agent group set x --policies ''", "shop/web"),
        ("humanz-agent explain ''", "shop/web"),
        // The second end; behind it comes a port.
        ("humanz-agent explain fd00 :: 1 ''", "shop/web"),
        ("humanz-agent explain :: 1 ''", "shop/web"),
        ("humanz-agent explain fd00 : 1 :: 1 ''", "shop/web"),
        ("humanz-agent explain fd00 :: 1 fd00 :: 2 ''", ""),
        ("humanz-agent explain fd00 ::", ""),
        ("humanz-agent explain fd00 :: 1", ""),
        (&*format!("humanz-agent ipam show {hostile}"), ""),
        (&*format!("humanz-agent {hostile} {hostile} ''"), "status"),
        (&*format!("humanz-agent policy rm {hostile} shop"), "shop/web"),
        ("humanz-agent policy rm 'a[$(id)]' '*'", ""),
    ] {
        let found = offered(typed, names.folder());
        let first = found.split(' ').next().unwrap();
        assert_eq!(first, wanted, "{typed}: {found}");
        assert!(!found.contains(['$', '`', ';', '*', '~', '!', '\u{1b}']), "{typed}: {found}");
    }
    assert!(!names.ran().exists());
    let asked = names.asked();
    assert!(
        asked.contains("names pods\n") && asked.contains("names grouppolicies --bare\n"),
        "{asked}"
    );
}

#[test]
fn fish_runs_nothing_of_what_it_offers() {
    let names = HostileNames::new();
    let both = "shop/web shop/web2";
    let hostile = format!("'\\$(touch {})'", names.ran().display());
    for (typed, wanted) in [
        ("humanz-agent sta", "status"),
        ("humanz-agent nodes r", "reserve rm roles"),
        ("humanz-agent --env-file x nodes r", "reserve rm roles"),
        ("humanz-agent nodes rm --f", "--force"),
        ("humanz-agent net set blue/a --shared ", "no yes"),
        ("humanz-agent policy rm GroupP", "GroupPolicy"),
        ("humanz-agent ipam show ", both),
        ("humanz-agent ipam show shop", both),
        ("humanz-agent flows --pod ", both),
        ("humanz-agent group set x --policies ", both),
        ("humanz-agent explain fd00::1 ", both),
        ("humanz-agent explain a b 80 ", ""),
        ("humanz-agent policy rm Pin ", both),
        (&*format!("humanz-agent ipam show {hostile} "), ""),
        (&*format!("humanz-agent policy rm {hostile} "), both),
    ] {
        let script = format!("source packaging/completion/fish; complete -C \"{typed}\"");
        let found = names.run("fish", &["--no-config", "-c"], &script);
        // Behind a tab stands what it is.
        let words = found.lines().map(|line| line.split('\t').next().unwrap());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        assert_eq!(words.join(" "), wanted, "{typed}");
    }
    let asked = names.asked();
    assert!(
        asked.contains("names pods\n") && asked.contains("names grouppolicies --bare\n"),
        "{asked}"
    );
}

/// Types into an interactive zsh: what was completed is what the program is called with.
const TYPED: &str = r#"
zmodload zsh/zpty zsh/zselect
zpty shell "TERM=dumb zsh -f -i"
drain() { local text; while zpty -r -t shell text; do :; done }
lines() { local -a all; all=("${(@f)$(<$folder/asked)}"); print $#all }
await() {
    local try
    for try in {1..1000}; do
        drain
        if eval "$1"; then return 0; fi
        zselect -t 2
    done
    print "never: $1"
    return 1
}
zpty -w shell "cd $folder; fpath=($folder \$fpath); autoload -Uz compinit; compinit -u -D; unsetopt beep automenu listambiguous; : >asked; : >ready"
await '[[ -e $folder/ready ]]'
for line in $typed; do
    print -rn >$folder/done
    zpty -w -n shell "$line"$'\t'"; print -n yes >$folder/done"$'\n'
    await '[[ $(<$folder/done) == yes ]]'
done
zpty -d shell
"#;

#[test]
fn zsh_runs_nothing_of_what_it_completes() {
    let names = HostileNames::new();
    fs::copy(root().join("packaging/completion/zsh"), names.folder().join("_humanz-agent"))
        .unwrap();
    let hostile = format!("'$(touch {})'", names.ran().display());
    let cases = [
        ("humanz-agent stat", "status"),
        ("humanz-agent nodes res", "nodes reserve"),
        ("humanz-agent --env-file x nodes res", "--env-file x nodes reserve"),
        ("humanz-agent nodes rm --fo", "nodes rm --force"),
        ("humanz-agent net set blue/a --shared y", "net set blue/a --shared yes"),
        ("humanz-agent policy rm GroupP", "policy rm GroupPolicy"),
        ("humanz-agent ipam show ", "ipam show shop/web"),
        ("humanz-agent flows --pod ", "flows --pod shop/web"),
        ("humanz-agent group set x --policies sh", "group set x --policies shop/web"),
        ("humanz-agent explain fd00::1 sh", "explain fd00::1 shop/web"),
        ("humanz-agent policy rm Pin sh", "policy rm Pin shop/web"),
    ];
    let words = cases.map(|(typed, _)| format!("'{typed}'")).join(" ");
    let hostile = format!("\"humanz-agent policy rm \"{}\" sh\"", quoted(&hostile));
    let script = format!("folder={}; typed=({words} {hostile})\n{TYPED}", names.folder().display());
    names.run("zsh", &["-f", "-c"], &script);
    let asked = names.asked();
    let called: Vec<&str> = asked.lines().filter(|line| !line.starts_with("names ")).collect();
    let wanted = cases.map(|(_, called)| called);
    assert_eq!(called[..cases.len()], wanted, "{asked}");
    assert!(
        asked.contains("names pods\n") && asked.contains("names grouppolicies --bare\n"),
        "{asked}"
    );
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
