//! The shell completions match the command line: packaging/completion.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

use std::path::{Path, PathBuf};
use std::process::Command;

use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo, FlagInfoKind, Optionality};
use argh_complete::Generator;
use argh_complete::bash::Bash;
use argh_complete::fish::Fish;
use argh_complete::zsh::Zsh;
use humanz::command::Arguments;

/// `UPDATE=1 cargo test --test completion` writes the files anew.
#[test]
fn the_files_contain_every_subcommand_and_option() {
    let info = shortened(Arguments::get_args_info());
    for (shell, text) in [
        ("bash", by_path(&Bash::generate("humanz-agent", &info))),
        ("zsh", Zsh::generate("humanz-agent", &info)),
        ("fish", Fish::generate("humanz-agent", &info)),
    ] {
        let path = root().join("packaging/completion").join(shell);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == text, "{shell} is outdated: UPDATE=1 cargo test --test completion");
    }
}

#[test]
fn bash_completes_subcommands_and_options() {
    let complete = |typed: &str| {
        let script = format!(
            "source packaging/completion/bash; COMP_WORDS=({typed}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _humanz-agent; echo \"${{COMPREPLY[*]}}\""
        );
        let done = Command::new("bash").args(["-ec", &script]).current_dir(root()).output();
        let done = done.unwrap();
        assert!(done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("humanz-agent sta"), "status");
    assert_eq!(complete("humanz-agent --env-file x nodes r"), "rm reserve roles");
    assert_eq!(complete("humanz-agent nodes rm --f"), "--force");
    assert_eq!(complete("humanz-agent nodes ls --n"), "");
    assert_eq!(complete("/usr/sbin/humanz-agent ipam ls --n"), "--network");
    assert_eq!(complete("humanz-agent --etcd-ho"), "--etcd-host");
    assert_eq!(complete("humanz-agent --env-file ''"), "", "bash offers files");
}

/// Descriptions up to their first `;`, ` (` or `. `.
fn shortened(mut info: CommandInfoWithArgs) -> CommandInfoWithArgs {
    fn short(text: &str) -> &'static str {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let end = [";", " (", ". "].iter().filter_map(|end| text.find(end)).min();
        text[..end.unwrap_or(text.len())].to_owned().leak()
    }
    let flags = info.flags.iter().map(|flag| FlagInfo {
        kind: match flag.kind {
            FlagInfoKind::Switch => FlagInfoKind::Switch,
            FlagInfoKind::Option { arg_name } => FlagInfoKind::Option { arg_name },
        },
        optionality: Optionality::Optional,
        long: flag.long,
        short: flag.short,
        description: short(flag.description),
        hidden: flag.hidden,
    });
    info.flags = flags.collect::<Vec<_>>().leak();
    info.description = short(info.description);
    for next in &mut info.commands {
        next.command = shortened(std::mem::take(&mut next.command));
    }
    info
}

/// argh_complete's bash looks for subcommands by name alone: `ls` is one of `nodes` and one of `ipam`.
fn by_path(script: &str) -> String {
    let mut lines: Vec<String> = script.lines().map(str::to_owned).collect();
    for at in 1..lines.len() {
        let Some(path) = lines[at].trim().strip_prefix("cmd=\"humanz-agent") else { continue };
        let path = path.trim_end_matches('"');
        lines[at - 1] = match path.rsplit_once('_') {
            Some((parent, name)) => format!("            humanz-agent{parent},{name})"),
            None => "            ,*humanz-agent)".to_owned(),
        };
    }
    let script = lines.join("\n") + "\n";
    script.replace("case \"${i}\" in", "case \"${cmd},${i}\" in")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
