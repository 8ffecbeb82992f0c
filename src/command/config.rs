//! `config`: the settings that hold, and where each is from.

mod found;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent::logger::USUAL;
use crate::command::call::{Call, Outcome};
use crate::command::config::found::{Found, Places};
use crate::command::table::{Cell, Table, Tone};
use crate::settings::exit::Exit;
use crate::settings::flags::{VARIABLES, Variable};
use crate::settings::loader::{LOG, SettingSource};
use crate::settings::values::without_secrets;
use crate::settings::{Texts, values_only};

/// print the settings that hold and where each is from: option, environment, a line of the settings
/// file, or default. Unlike check-config it does not compare them with this host
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "config",
    example = "{command_name}",
    example = "{command_name} --json",
    example = "{command_name} --env-file /etc/humanz/new.env",
    error_code(0, "the settings are right"),
    error_code(2, "a setting is wrong; every fault is listed")
)]
pub struct Config {
    /// only those that are not as by default
    #[argh(switch)]
    changed: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers with the settings.
///
/// # Errors
/// The settings file cannot be read, or a setting is wrong (after it was shown).
pub fn run(call: &mut Call<'_>, options: &Config) -> Result<Outcome, Exit> {
    let said = call.origin.load_raw().map_err(|faults| Exit::invalid_settings(&faults))?;
    let (settings, faults) = match said.check(values_only) {
        Ok(settings) => (Some(settings), Vec::new()),
        Err(faults) => (None, faults),
    };
    let places = settings.as_ref().map(Places::of);
    let all = VARIABLES.iter().chain([&LOGGED]).map(|variable| {
        let (text, whence) = said
            .texts
            .get(variable.name)
            .or(said.log.as_ref())
            .cloned()
            .unwrap_or_else(|| (variable.default.to_owned(), SettingSource::Default));
        let places = places.as_ref().filter(|_| text.is_empty() || text == "auto");
        let found = places.and_then(|places| places.look(variable.name));
        Shown { variable, text: without_secrets(&text), whence, found }
    });
    let shown: Vec<Shown> =
        all.filter(|shown| !options.changed || shown.whence != SettingSource::Default).collect();
    let settings: Vec<Value> = shown.iter().map(setting).collect();
    let value = json!({ "settings": settings, "remarks": said.warnings, "faults": faults });
    let text = table(&shown).render(call.style);
    let remarks = said.warnings.iter().map(|remark| format!("\n! {remark}"));
    call.answer(options.json, value, &(text + &remarks.collect::<String>()))?;
    if faults.is_empty() { Ok(Outcome::Fine) } else { Err(Exit::invalid_settings(&faults)) }
}

/// What is logged is no setting, but said in the same places.
const LOGGED: Variable = Variable {
    name: LOG,
    default: USUAL,
    help: "what the agent logs: error, warn, info or debug",
    choices: &[],
};

/// One row.
struct Shown {
    variable: &'static Variable,
    text: String,
    whence: SettingSource,
    /// What holds as nothing is said, and what that follows from.
    found: Option<Found>,
}

/// Every setting with the value that holds, as `NAME=value` lines.
pub fn lines(texts: &Texts) -> String {
    let line = |variable: &Variable| {
        let text = texts.get(variable.name).map_or("", String::as_str);
        format!("{}={text}", variable.name)
    };
    VARIABLES.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn setting(shown: &Shown) -> Value {
    let Shown { variable, text, whence, found } = shown;
    let effective = match found {
        Some(found) => found.value.as_ref(),
        None => Some(text),
    };
    let (file, line) = match whence {
        SettingSource::File(path, line) => (Some(path.display().to_string()), Some(line)),
        _ => (None, None),
    };
    let from = match whence {
        SettingSource::Option => "option",
        SettingSource::Environment => "environment",
        SettingSource::File(..) => "file",
        SettingSource::Default => "default",
    };
    json!({
        "name": variable.name, "value": text, "effective": effective,
        "found": found.as_ref().map(|found| &found.why), "from": from, "file": file,
        "line": line, "default": variable.default, "meaning": variable.help,
    })
}

fn table(shown: &[Shown]) -> Table {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for Shown { variable, text, whence, found } in shown {
        let tone = if *whence == SettingSource::Default { Tone::Faint } else { Tone::Plain };
        let cell = |text: &str| Cell::new(text).tone(tone);
        let (value, from) = match found {
            Some(Found { value, why }) => {
                (value.as_ref().unwrap_or(text).as_str(), format!("{whence} ({why})"))
            }
            None if text.is_empty() => ("-", whence.to_string()),
            None => (text.as_str(), whence.to_string()),
        };
        table.row([cell(variable.name), cell(value), cell(&from)]);
    }
    table
}
