//! `doctor`: every known trap, how it was seen, and its cure.

mod agent;
mod bundle;
mod cni;
mod disk;
mod etcd;
mod kernel;
mod leaks;

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::checks::finding::{Finding, Severity};
use crate::command::call::{Call, Outcome};
use crate::command::table::{Cell, Style, Table, Tone, printable};
use crate::inspect::{Host, HostList};
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};
use crate::settings::loader::LoadedSettings;

/// look for everything that is known to go wrong on a host, and say how it was seen and what to do.
/// Changes nothing
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "doctor",
    example = "{command_name}",
    example = "{command_name} --json",
    example = "{command_name} --bundle /tmp/humanz.tar",
    error_code(0, "nothing is wrong"),
    error_code(1, "something is wrong, or will be"),
    error_code(2, "a setting is wrong; every fault is listed")
)]
pub struct Doctor {
    /// write all that a bug report needs into a tar file, without passwords, keys and tokens
    #[argh(option)]
    bundle: Option<PathBuf>,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// What is examined.
struct DoctorContext<'a> {
    loaded: &'a LoadedSettings,
    host: &'a Host,
}

impl DoctorContext<'_> {
    fn settings(&self) -> &Settings {
        &self.host.settings
    }
}

/// Looks for everything that is known to go wrong.
///
/// # Errors
/// The settings are wrong; the bundle cannot be written.
pub fn run(call: &mut Call<'_>, options: &Doctor) -> Result<Outcome, Exit> {
    let loaded = call.load()?;
    let host = Host::inspect(&loaded.settings, HostList::Live)?;
    let context = DoctorContext { loaded: &loaded, host: &host };
    let findings = findings(&context);
    let value = json!({ "findings": findings.iter().map(object).collect::<Vec<Value>>() });
    if let Some(path) = &options.bundle {
        let written = bundle::write(path, &context, &value);
        written.map_err(|why| Exit::new(exit::FAILURE, why))?;
    }
    let fine = findings.iter().all(|finding| finding.severity == Severity::Note);
    let mut text = text(&findings, call.style);
    if let Some(path) = &options.bundle {
        text.push_str(&format!(
            "\nwritten to {}: look through it before you send it",
            path.display()
        ));
    }
    call.answer(options.json, fine, value, &text)
}

/// Everything, the worst first.
fn findings(context: &DoctorContext<'_>) -> Vec<Finding> {
    let parts: [fn(&DoctorContext<'_>) -> Vec<Finding>; 6] =
        [agent::look, etcd::look, cni::look, disk::look, kernel::look, leaks::look];
    let mut findings: Vec<Finding> = parts.iter().flat_map(|look| look(context)).collect();
    findings.sort_by_key(|finding| finding.severity);
    findings.dedup();
    findings
}

fn word(severity: Severity) -> (&'static str, Tone) {
    match severity {
        Severity::Wrong => ("wrong", Tone::Bad),
        Severity::Warning => ("warning", Tone::Odd),
        Severity::Note => ("note", Tone::Faint),
    }
}

fn object(finding: &Finding) -> Value {
    json!({
        "name": finding.name, "severity": word(finding.severity).0, "seen": finding.seen,
        "cure": finding.cure, "how": finding.how,
    })
}

fn text(findings: &[Finding], style: Style) -> String {
    if findings.is_empty() {
        return style.paint(Tone::Good, "nothing is wrong");
    }
    let mut table = Table::new(&["IS", "WHAT", "SEEN", "BY"]);
    for finding in findings {
        let (word, tone) = word(finding.severity);
        let name = Cell::new(word).tone(tone);
        table.row([
            name,
            Cell::new(finding.name),
            Cell::new(&finding.seen),
            Cell::new(&finding.how),
        ]);
    }
    let cure = |finding: &Finding| format!("{}: {}\n", finding.name, printable(&finding.cure));
    format!("{}\n{}", table.render(style), findings.iter().map(cure).collect::<String>())
}
