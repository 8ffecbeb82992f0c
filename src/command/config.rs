//! `config`: the settings, and where each is from.

mod found;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent::logger::USUAL;
use crate::command::call::{Call, Outcome, complain};
use crate::command::config::found::{EffectiveValue, Places};
use crate::command::table::{Cell, Table, Tone};
use crate::inspect::preflight::{self, missing_address};
use crate::net::Problem;
use crate::netlink::rtnl::Rtnl;
use crate::settings::exit::{self, Exit};
use crate::settings::flags::{VARIABLES, Variable};
use crate::settings::loader::{LOG, RawSettings, SettingSource, without_effect};
use crate::settings::values::without_secrets;
use crate::settings::values_only;

/// print the settings and where each is from
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "config",
    example = "{command_name}",
    example = "{command_name} --json",
    example = "{command_name} --running --changed",
    example = "{command_name} --check --env-file /etc/humanz/new.env",
    note = "From an option, the environment, a line of the settings file, or its default; --check compares them with \
        this host, too. Every error is reported.",
    error_code(0, "the settings are valid"),
    error_code(2, "a setting is invalid; every error is listed"),
    error_code(69, "--running, and no agent answers")
)]
pub struct Config {
    /// only those that differ from their defaults
    #[argh(switch)]
    changed: bool,
    /// compare them with this host: its files, links and addresses (check-config is short for config --check --env)
    #[argh(switch)]
    check: bool,
    /// those that the running agent uses, instead of those that it would use after a restart
    #[argh(switch)]
    running: bool,
    /// print NAME=value lines, as in the settings file
    #[argh(switch)]
    env: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// # Errors
/// The settings file cannot be read, or a setting is invalid (after it was shown).
pub fn run(call: &mut Call<'_>, options: &Config) -> Result<Outcome, Exit> {
    if options.running && !call.follow_agent() {
        let why = "no agent of this host answers with its settings: see humanz-agent status";
        return Err(Exit::new(exit::UNAVAILABLE, why));
    }
    let raw = call.origin.load_raw().map_err(|faults| Exit::invalid_settings(&faults))?;
    let checked = raw.check(if options.check { preflight::check } else { values_only });
    let mut warnings = raw.warnings.clone();
    if let Ok(settings) = &checked {
        warnings.extend(without_effect(&raw.texts(), settings));
        // A start is not refused: the address may still come.
        let rtnl = Rtnl::open().ok().filter(|_| options.check);
        warnings.extend(rtnl.and_then(|it| missing_address(&settings.node_addresses, &it)));
    }
    let faults = checked.as_ref().err().cloned().unwrap_or_default();
    if options.env && !options.json && !faults.is_empty() {
        return Err(Exit::invalid_settings(&faults));
    }
    let places = checked.as_ref().ok().map(Places::of);
    let all = rows(&raw, places.as_ref());
    let shown: Vec<SettingRow> =
        all.filter(|shown| !options.changed || shown.source != SettingSource::Default).collect();
    let settings: Vec<Value> = shown.iter().map(setting).collect();
    let texts = |problems: &[Problem]| problems.iter().map(Problem::to_string).collect::<Vec<_>>();
    let problems = faults.iter().chain(&warnings).cloned().map(Problem::with_usual_fix);
    let problems: Vec<Problem> = problems.collect();
    let value = json!({
        "settings": settings, "problems": problems, "remarks": texts(&warnings),
        "faults": texts(&faults),
    });
    let text = if options.env {
        warnings.iter().for_each(|warning| complain(&warning.to_string()));
        lines(shown.iter().map(|shown| (shown.variable.name, shown.text.as_str())))
    } else {
        let fault = |warning| format!("\n{}", call.style.fault(Tone::Plain, warning));
        table(&shown).render(call.style) + warnings.iter().map(fault).collect::<String>().trim_end()
    };
    let outcome = call.answer(options.json, true, value, &text)?;
    if faults.is_empty() { Ok(outcome) } else { Err(Exit::invalid_settings(&faults)) }
}

fn rows(raw: &RawSettings, places: Option<&Places>) -> impl Iterator<Item = SettingRow> {
    VARIABLES.iter().chain([&LOGGED]).map(move |variable| {
        let given = raw.texts.get(variable.name).or(raw.log.as_ref()).cloned();
        let (text, source) =
            given.unwrap_or_else(|| (variable.default.to_owned(), SettingSource::Default));
        let places = places.filter(|_| text.is_empty() || text == "auto");
        let found = places.and_then(|places| places.found(variable.name));
        SettingRow { variable, text: without_secrets(&text), source, found }
    })
}

/// `NAME=value` lines.
pub fn lines<'a>(settings: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    settings.map(|(name, text)| format!("{name}={text}\n")).collect()
}

/// The log filter is no setting, but has the same sources.
const LOGGED: Variable = Variable {
    name: LOG,
    default: USUAL,
    help: "what the agent logs: error, warn, info or debug",
    choices: &[],
};

/// One row.
struct SettingRow {
    variable: &'static Variable,
    text: String,
    source: SettingSource,
    /// The effective value of a setting that has none, and its origin.
    found: Option<EffectiveValue>,
}

fn setting(shown: &SettingRow) -> Value {
    let SettingRow { variable, text, source, found } = shown;
    let effective = match found {
        Some(found) => found.value.as_ref(),
        None => Some(text),
    };
    let (file, line) = match source {
        SettingSource::File(path, line) => (Some(path.display().to_string()), Some(line)),
        _ => (None, None),
    };
    let from = match source {
        SettingSource::Option => "option",
        SettingSource::Environment => "environment",
        SettingSource::File(..) => "file",
        SettingSource::Agent => "agent",
        SettingSource::Default => "default",
    };
    json!({
        "name": variable.name, "value": text, "effective": effective,
        "found": found.as_ref().map(|found| &found.why), "from": from, "file": file,
        "line": line, "default": variable.default, "meaning": variable.help,
    })
}

fn table(shown: &[SettingRow]) -> Table {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for SettingRow { variable, text, source, found } in shown {
        let tone = if *source == SettingSource::Default { Tone::Faint } else { Tone::Plain };
        let cell = |text: &str| Cell::new(text).tone(tone);
        let (value, from) = match found {
            Some(EffectiveValue { value, why }) => {
                (value.as_ref().unwrap_or(text).as_str(), format!("{source} ({why})"))
            }
            None if text.is_empty() => ("-", source.to_string()),
            None => (text.as_str(), source.to_string()),
        };
        table.row([cell(variable.name), cell(value), cell(&from)]);
    }
    table
}
