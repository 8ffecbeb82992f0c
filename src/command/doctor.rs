//! `doctor`: every known trap, where it was seen, and its fix.

mod agent;
mod all;
mod bundle;
mod cni;
mod context;
mod disk;
mod etcd;
mod former_ports;
mod kernel;
mod leaks;
mod unenforced;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent::active_problems::sort;
use crate::command::call::{Call, Outcome};
use crate::command::doctor::context::DoctorContext;
use crate::command::severity::{since, word};
use crate::command::table::{Cell, Style, Table, Tone, printable};
use crate::inspect::service_manager::service_manager;
use crate::inspect::{Host, HostList};
use crate::net::gather::Gather;
use crate::net::{Problem, Severity};
use crate::settings::exit::{self, Exit};

/// check this host for all known problems, and show each with what was seen and its fix
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "doctor",
    example = "{command_name}",
    example = "{command_name} --all",
    example = "{command_name} --json",
    example = "{command_name} --bundle /var/log/humanz-bundle.tar",
    note = "Changes nothing.",
    error_code(0, "nothing is wrong"),
    error_code(1, "something is wrong, or will be"),
    error_code(2, "a setting is invalid; every error is listed")
)]
pub struct Doctor {
    /// the problems of all hosts, by kind, as their agents publish them in etcd; and which hosts others do not reach
    #[argh(switch)]
    all: bool,
    /// write all that a bug report needs into a tar file, without passwords, keys and tokens
    #[argh(option)]
    bundle: Option<PathBuf>,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Looks for everything that is known to go wrong.
///
/// # Errors
/// The settings are wrong; the bundle cannot be written.
pub fn run(call: &mut Call<'_>, options: &Doctor) -> Result<Outcome, Exit> {
    let loaded = call.load_to_look()?;
    if options.all {
        if options.bundle.is_some() {
            return Err(Exit::new(exit::SETTINGS, "--bundle is of this host alone: drop --all"));
        }
        return all::run(call, &loaded.settings, options.json);
    }
    let host = Host::inspect(&loaded.settings, HostList::Live)?;
    let context = DoctorContext { loaded: &loaded, host: &host };
    let problems = problems(&context);
    let findings: Vec<Value> = problems.iter().map(finding).collect();
    let value = json!({ "findings": findings, "problems": problems });
    if let Some(path) = &options.bundle {
        let written = bundle::write(path, &context, &value);
        written.map_err(|why| Exit::new(exit::FAILURE, why))?;
    }
    let fine = problems.iter().all(|problem| problem.severity() == Severity::Note);
    let mut text = text(&problems, call.style);
    if let Some(path) = &options.bundle {
        let written = format!("written to {}: look through it before you send it", path.display());
        text.push_str(&format!("\n{}", call.style.sentence(Tone::Plain, &written)));
    }
    call.answer(options.json, fine, value, &text)
}

/// Everything, the worst first. What several parts see is listed once.
fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let parts: [fn(&DoctorContext<'_>) -> Vec<Problem>; 8] = [
        agent::reported,
        agent::problems,
        etcd::problems,
        cni::problems,
        disk::problems,
        kernel::problems,
        leaks::problems,
        former_ports::problems,
    ];
    let mut problems: Vec<Problem> = Vec::new();
    for part in parts {
        let key = |problem: &Problem| (problem.kind, problem.subject.to_string());
        let known: BTreeSet<_> = problems.iter().map(key).gather();
        problems.extend(part(context).into_iter().filter(|found| !known.contains(&key(found))));
    }
    sort(&mut problems);
    problems
}

/// As earlier releases have it.
fn finding(problem: &Problem) -> Value {
    json!({
        "name": problem.kind, "severity": word(problem.severity()).0, "seen": problem.what,
        "cure": fix(problem), "how": problem.subject,
    })
}

fn fix(problem: &Problem) -> Cow<'_, str> {
    match &problem.fix {
        Some(fix) => fix.into(),
        None => format!("{} # the log of the agent", service_manager().show_log()).into(),
    }
}

fn text(problems: &[Problem], style: Style) -> String {
    if problems.is_empty() {
        return style.paint(Tone::Good, "nothing is wrong");
    }
    let mut table = Table::new(&["IS", "WHAT", "SEEN", "AT"]);
    for problem in problems {
        let (word, tone) = word(problem.severity());
        let name = Cell::new(word).tone(tone);
        let at = problem.subject.to_string();
        let seen = Cell::new(format!("{}{}", problem.what, since(problem)));
        table.row([name, Cell::new(problem.kind.name()), seen, Cell::new(at)]);
    }
    let fix = |problem: &Problem| format!("{}: {}\n", problem.kind, printable(&fix(problem)));
    format!("{}\n{}", table.render(style), problems.iter().map(fix).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::net::{Object, ProblemKind};

    #[test]
    fn a_problem_has_the_time_since_when_as_in_the_status() {
        let since = UNIX_EPOCH + Duration::from_secs(1_763_664_360);
        let problem = Problem::new(ProblemKind::Etcd, Object::named("etcd"), "it is away");
        let problems = [problem.clone().with_since(since).with_fix("start it"), problem];
        let text = text(&problems, Style::default());
        assert!(text.contains("  it is away (since 2025-11-20T18:46:00Z)  etcd\n"), "{text}");
        assert!(text.contains("  it is away                               etcd\n"), "{text}");
        assert!(text.contains("\netcd: start it\n"), "{text}");
    }
}
