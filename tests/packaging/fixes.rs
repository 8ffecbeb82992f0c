//! A fix is to be copied: the command first, with names of this host's objects; then ` # ` and the reason.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use argh::{ArgsInfo, CommandInfoWithArgs, FromArgs};
use humanz::settings::flags::VARIABLES;

use crate::{root, sources};

/// How commands of other programs begin.
pub const PROGRAMS: [&str; 37] = [
    "apt install ",
    "auditctl -",
    "bridge fdb ",
    "cat ",
    "chmod ",
    "chown ",
    "df -h ",
    "dmesg",
    "etcdctl ",
    "findmnt ",
    "firewall-cmd ",
    "fuser ",
    "getent hosts ",
    "ip address ",
    "ip link ",
    "ip link;",
    "ip route ",
    "ip rule",
    "iptables -",
    "journalctl ",
    "kubectl ",
    "ls ",
    "modprobe ",
    "mv ",
    "nft '",
    "nft -",
    "nft insert ",
    "nft list ",
    "nsenter ",
    "openssl ",
    "pgrep -",
    "podman network ",
    "rm ",
    "sysctl -",
    "systemctl ",
    "timedatectl ",
    "ufw allow ",
];

/// Words in capitals that stand for nothing else.
const WORDS: [&str; 19] = [
    "ACCEPT",
    "ADD",
    "API",
    "CAP_NET_RAW",
    "CNI",
    "DEL",
    "DNS",
    "ECDSA",
    "GC",
    "ICMP",
    "IP",
    "JSON",
    "MAC",
    "NAT",
    "RSA",
    "STATUS",
    "UDP",
    "VXLAN",
    "_MARGIN",
];

/// Arguments that stand for several words.
const MANY: [&str; 2] = ["{options}", "{verb}"];

/// Words that no command has.
const PROSE: [&str; 14] = [
    "and", "finds", "has", "if", "is", "it", "lists", "says", "shows", "tests", "the", "then",
    "until", "which",
];

#[test]
fn no_message_has_a_command_with_a_placeholder() {
    let commands = commands();
    let is_mark = |char: char| !(char.is_ascii_alphanumeric() || char == '_');
    let known: BTreeSet<&str> = VARIABLES.iter().map(|it| it.name).chain(WORDS).collect();
    let (mut seen, mut found) = (0, Vec::new());
    for (file, text) in messages() {
        let text = without_arguments(&text, "");
        if commands.iter().all(|command| !has(&text, command)) {
            continue;
        }
        seen += 1;
        let words = text.split(is_mark).filter(|word| word.len() > 1);
        let capitals = words.filter(|word| word.chars().all(|it| !it.is_ascii_lowercase()));
        let capitals = capitals.filter(|word| word.contains(|it: char| it.is_ascii_uppercase()));
        let unknown: Vec<_> = capitals.filter(|word| !known.contains(word)).collect();
        if !unknown.is_empty() {
            found.push(format!("{file}: {unknown:?}: {text}"));
        }
    }
    assert!(seen > 120 && found.is_empty(), "{seen}: {found:#?}");
}

#[test]
fn a_shell_and_the_command_line_take_every_command_that_a_message_begins_with() {
    let (mut seen, mut found) = (0, Vec::new());
    for (file, text) in messages() {
        let has_several = MANY.iter().any(|it| text.contains(it));
        let text = without_arguments(&text, if has_several { "" } else { "x" });
        let ours = text.starts_with("humanz-agent ") && !text.starts_with("humanz-agent x");
        if text.ends_with(' ')
            || text.contains('\n')
            || !(ours || PROGRAMS.iter().any(|it| text.starts_with(it)))
        {
            continue;
        }
        seen += 1;
        let command = text.split(" # ").next().unwrap_or_default();
        let taken = if has_several { prose_and_shell(command) } else { taken(command) };
        if let Err(why) = taken {
            found.push(format!("{file}: {text}: {why}"));
        }
    }
    assert!(seen > 70 && found.is_empty(), "{seen}: {found:#?}");
}

/// Who copies a fix may not know whether the host is gone for good, or the link is another's. Links that have no
/// address in the store are those of pods that ended.
#[test]
fn no_message_begins_with_a_command_that_removes_what_may_be_in_use() {
    let removes = ["humanz-agent nodes rm ", "humanz-agent pin r", "ip link del", "ip route del"];
    let begins = |text: &str| {
        text != "ip link delete {name}" && removes.iter().any(|it| text.starts_with(it))
    };
    let found: Vec<_> = messages().into_iter().filter(|(_, text)| begins(text)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

fn prose_and_shell(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    if let Some(word) = words.iter().find(|word| PROSE.contains(&word.trim_matches([',', ';']))) {
        return Err(format!("{word} is no word of a command"));
    }
    let shell = Command::new("sh").args(["-nc", command]).output().unwrap();
    if !shell.status.success() {
        return Err(String::from_utf8_lossy(&shell.stderr).into_owned());
    }
    Ok(())
}

fn taken(command: &str) -> Result<(), String> {
    prose_and_shell(command)?;
    let words: Vec<&str> = command.split_whitespace().collect();
    let ["humanz-agent", typed @ ..] = &words[..] else { return Ok(()) };
    let typed = humanz::command::arguments::normal(typed.iter().map(|it| it.to_string()).collect());
    let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
    match humanz::command::Arguments::from_args(&["humanz-agent"], &typed) {
        Ok(_) => Ok(()),
        Err(early) => Err(early.output),
    }
}

/// What begins a command: those of other programs, ours, and subcommands that are mentioned without the program.
fn commands() -> Vec<String> {
    fn below(path: &str, level: &CommandInfoWithArgs, all: &mut Vec<String>) {
        for command in &level.commands {
            let path = format!("{path} {}", command.name);
            all.push(path.clone());
            below(&path, &command.command, all);
        }
    }
    let (mut all, info) = (Vec::new(), humanz::command::Arguments::get_args_info());
    below("", &info, &mut all);
    let two = all.iter().filter(|path| path.matches(' ').count() == 2);
    let bare = two.map(|path| path.trim_start().to_owned());
    let ours = all.iter().map(|path| format!("humanz-agent{path}"));
    bare.chain(ours).chain(PROGRAMS.map(|it| it.trim_end().to_owned())).collect()
}

/// As words of their own.
fn has(text: &str, command: &str) -> bool {
    text.match_indices(command).any(|(at, _)| {
        let is_part = |char: Option<char>| char.is_some_and(|it| it.is_alphanumeric() || it == '-');
        !is_part(text[..at].chars().next_back())
            && !is_part(text[at + command.len()..].chars().next())
    })
}

/// `text` with `other` in the place of each `{argument}`.
fn without_arguments(text: &str, other: &str) -> String {
    let text = text.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut parts = text.split('{');
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rest.push_str(other);
        rest.push_str(part.split_once('}').map_or(part, |(_, after)| after));
    }
    rest.replace('\u{1}', "{").replace('\u{2}', "}")
}

/// The texts in the source, but for those of tests, and the file of each.
fn messages() -> Vec<(String, String)> {
    let files = sources(&root().join("src")).into_iter();
    let files = files.filter(|file| {
        let path = file.to_string_lossy();
        path.ends_with(".rs") && !path.ends_with("tests.rs") && !path.contains("/tests/")
    });
    let of_file = |file: std::path::PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let file = file.to_string_lossy().into_owned();
        literals(code).into_iter().map(move |it| (file.clone(), it)).collect::<Vec<_>>()
    };
    files.flat_map(of_file).collect()
}

/// The literals of Rust's `code`, without escapes.
fn literals(code: &str) -> Vec<String> {
    parts(code).1
}

/// `code` without comments and with a number in the place of each literal's text, and those texts.
pub fn parts(code: &str) -> (String, Vec<String>) {
    let (mut all, mut bare, mut rest) = (Vec::new(), String::new(), code);
    while let Some(at) = rest.find(['"', '/', '\'', 'r']) {
        let (before, from) = rest.split_at(at);
        bare.push_str(before);
        let is_word = before.ends_with(|it: char| it.is_alphanumeric() || it == '_');
        let hashes = from[1..].chars().take_while(|it| *it == '#').count();
        let is_raw = from.starts_with('r') && !is_word && from[1 + hashes..].starts_with('"');
        let (text, length) = if from.starts_with("//") {
            (None, from.find('\n').unwrap_or(from.len()))
        } else if is_raw {
            let (begin, end) = (hashes + 2, format!("\"{}", "#".repeat(hashes)));
            let text = from[begin..].split(&end).next().unwrap_or_default();
            (Some(text.to_owned()), begin + text.len() + end.len())
        } else if let Some(begun) = from.strip_prefix('"') {
            let (text, length) = literal(begun);
            (Some(text), length + 1)
        } else if from.starts_with('\'') {
            (None, character(from))
        } else {
            bare.push_str(&from[..1]);
            (None, 1)
        };
        if let Some(text) = text {
            bare.push_str(&format!("\"{}\"", all.len()));
            all.push(text);
        }
        rest = &from[length..];
    }
    (bare + rest, all)
}

/// The length of the literal of a character, or that of a lifetime's mark.
fn character(from: &str) -> usize {
    let mut letters = from.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => from[3..].find('\'').map_or(1, |end| end + 4),
        Some((at, first)) if from[at + first.len_utf8()..].starts_with('\'') => {
            at + first.len_utf8() + 1
        }
        _ => 1,
    }
}

/// What stands before the next quotation mark, and how long that is in the source, with the mark.
fn literal(from: &str) -> (String, usize) {
    let (mut text, mut letters) = (String::new(), from.char_indices().peekable());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (text, at + 1),
            '\\' => match letters.next() {
                Some((_, '\n')) => while letters.next_if(|(_, it)| it.is_whitespace()).is_some() {},
                Some((_, 'n')) => text.push('\n'),
                Some((_, other)) => text.push(other),
                None => {}
            },
            other => text.push(other),
        }
    }
    (text, from.len())
}

#[test]
fn literals_are_read_as_rust_reads_them() {
    let code = r##"x('"', '\'', "a \
        {b}\n\"c\"", r#"d "e""#, &'a str) // "no"
        "é";"##;
    assert_eq!(literals(code), ["a {b}\n\"c\"", "d \"e\"", "é"]);
    assert_eq!(without_arguments("{a:?} {{b}} {}", "x"), "x {b} x");
    assert!(has("(net set it", "net set") && !has("net setting", "net set"));
}
