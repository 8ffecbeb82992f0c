//! Pure. The first page of `--help`: subcommands before the agent's options, and each option's default.

use std::fmt::Write as _;

use argh::{CommandInfoWithArgs, FlagInfo};

use crate::command::arguments::flag;
use crate::command::wrap::wrapped;
use crate::settings::flags::VARIABLES;

/// What a terminal has at least.
const COLUMNS: usize = 80;

/// The page for all that can be typed.
pub fn page(info: &CommandInfoWithArgs) -> String {
    let mut text = "Usage: humanz-agent [<options>] [<command> [<args>]]\n\n".to_owned();
    lines(&mut text, "", "", info.description);
    text.push_str("\nCommands:\n");
    let names = info.commands.iter().map(|command| command.name.len());
    let width = names.max().unwrap_or(0) + 2;
    for command in &info.commands {
        entry(&mut text, command.name, width, command.command.description);
    }
    text.push_str("\nOptions:\n");
    for known in info.flags.iter().filter(|known| variable(known).is_none() && !known.hidden) {
        entry(&mut text, &short(known.long), WIDTH, known.description);
    }
    text.push_str("\nSettings:\n");
    for known in VARIABLES {
        let default = match known.default {
            "" => String::new(),
            default => format!(" (default: {default})"),
        };
        entry(&mut text, &flag(known.name), WIDTH, &format!("{}{default}", known.help));
    }
    for note in info.notes {
        write!(text, "\n{note}\n").expect("a String takes everything");
    }
    text.push_str("\nExit codes:\n");
    for known in info.error_codes {
        entry(&mut text, &known.code.to_string(), 4, known.description);
    }
    text
}

/// The help of a subcommand, as argh writes it, with no paragraph wider than the page; examples stay as they can be
/// typed.
pub fn narrow(text: &str) -> String {
    let narrow = |line: &str| {
        if line.chars().count() <= COLUMNS || line.starts_with("  humanz-agent ") {
            return vec![line.to_owned()];
        }
        let indent = if line.starts_with("  ") { "  " } else { "" };
        let lines = wrapped(line.trim_start(), COLUMNS - indent.len());
        lines.iter().map(|line| format!("{indent}{line}")).collect()
    };
    text.trim_end().lines().flat_map(narrow).collect::<Vec<_>>().join("\n")
}

/// The column in which options are explained.
const WIDTH: usize = 20;

fn variable(known: &FlagInfo) -> Option<&'static str> {
    VARIABLES.iter().map(|variable| variable.name).find(|name| flag(name) == known.long)
}

/// With the short form that stands for it.
fn short(long: &str) -> String {
    match long {
        "--help" => "-h, --help".to_owned(),
        "--version" => "-V, --version".to_owned(),
        long => long.to_owned(),
    }
}

fn entry(text: &mut String, name: &str, width: usize, what: &str) {
    let indent = " ".repeat(width + 2);
    if name.len() < width {
        return lines(text, &format!("  {name:width$}"), &indent, what);
    }
    writeln!(text, "  {name}").expect("a String takes everything");
    lines(text, &indent, &indent, what);
}

fn lines(text: &mut String, first: &str, indent: &str, what: &str) {
    let mut before = first;
    for line in wrapped(what, COLUMNS - indent.len()) {
        writeln!(text, "{before}{line}").expect("a String takes everything");
        before = indent;
    }
}

#[cfg(test)]
mod tests {
    use argh::ArgsInfo;

    use super::*;
    use crate::command::Arguments;

    #[test]
    fn the_page_names_every_command_and_setting_within_80_columns() {
        let info = Arguments::get_args_info();
        let page = page(&info);
        for command in &info.commands {
            assert!(page.contains(&format!("\n  {} ", command.name)), "{}", command.name);
        }
        for known in VARIABLES {
            assert!(page.contains(&flag(known.name)), "{}", known.name);
        }
        let commands = page.find("\nCommands").unwrap();
        assert!(commands < page.find("\nOptions").unwrap());
        let words: Vec<&str> = page.split_whitespace().collect();
        assert!(words.join(" ").contains("(default: 10.244.0.0/16)"), "{page}");
        let long = page.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(long, None);
    }
}
