//! `names`: what there is, for the completion of shells.

mod find;

use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::os::threads;
use crate::settings::exit::{self, Exit};

/// Somebody waits for it with a finger on a key.
const WITHIN: Duration = Duration::from_secs(1);

/// print the names of a kind, one a line, for the completion of shells
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "names",
    example = "{command_name} pods",
    example = "{command_name} groups",
    note = "Prints what is found within a second. Names with characters that are special to shells \
        are left out.",
    error_code(0, "in every other case"),
    error_code(2, "there is no such kind")
)]
pub struct PrintNames {
    /// pods, hosts, tenants, policies (those in force here), stores and addresses (of this host's pods), or a kind of
    /// objects in etcd: groups, networks, netprofiles, pins …
    #[argh(positional)]
    kind: String,
    /// without tenant or namespace
    #[argh(switch)]
    bare: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// There is no such kind.
pub fn run(call: &mut Call<'_>, options: &PrintNames) -> Result<Outcome, Exit> {
    let kind = find::NameKind::parse(&options.kind).ok_or_else(|| {
        Exit::new(exit::SETTINGS, format!("{:?} is no kind of names", options.kind))
    })?;
    let (found, finds) = mpsc::channel();
    let origin = call.origin.clone();
    // It ends with the process.
    let find = move || find::find(origin, kind, &|names| found.send(names).is_ok());
    let _started = threads::spawn("find", find);
    let mut names = last(&finds, Instant::now() + WITHIN);
    if options.bare {
        names.iter_mut().for_each(|name| *name = bare(name).to_owned());
    }
    names.retain(|name| is_plain(name));
    names.sort_unstable();
    names.dedup();
    call.answer(options.json, true, json!({"names": names}), &names.join("\n"))
}

/// What arrived last until then: what comes later is better known.
fn last(finds: &Receiver<Vec<String>>, end: Instant) -> Vec<String> {
    let mut last = Vec::new();
    while let Ok(names) = finds.recv_timeout(end.saturating_duration_since(Instant::now())) {
        last = names;
    }
    last
}

fn bare(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

/// No shell has a use for any of its characters, and no terminal.
fn is_plain(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:-".contains(&byte);
    name.bytes().all(is_letter)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_shell_could_take_for_more_are_left_out() {
        for good in ["shop/web", "h1", "10.1.2.3", "fd00::1", "::1", "a_b.c-d"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in [
            "",
            "-rf",
            "--all",
            "$(id)",
            "`id`",
            "a b",
            "a\nb",
            "a\tb",
            "a;b",
            "a'b",
            "a\"b",
            "a\\b",
            "~",
            "~/a",
            "a*",
            "a?",
            "{a,b}",
            "a|b",
            "a>b",
            "a&",
            "!1",
            "#a",
            "\u{1b}[2J",
            "\u{202e}a",
            "ü",
            "/etc",
            ".",
            "../a",
        ] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }
}
