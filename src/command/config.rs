//! `config`: the settings that hold, and where each is from.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent;
use crate::agent::cli::{VARIABLES, Variable};
use crate::agent::exit::Exit;
use crate::agent::origin::{Said, Texts, Whence};
use crate::agent::values::without_secrets;
use crate::command::call::{Call, Outcome};
use crate::command::table::{Cell, Table, Tone};

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
    let said = call.origin.said().map_err(|faults| agent::wrong(&faults))?;
    let shown: Vec<&Variable> = VARIABLES
        .iter()
        .filter(|variable| !options.changed || said.texts[variable.name].1 != Whence::Default)
        .collect();
    let faults = said.read().err().unwrap_or_default();
    let settings: Vec<Value> = shown.iter().map(|variable| setting(variable, &said)).collect();
    let value = json!({ "settings": settings, "remarks": said.remarks, "faults": faults });
    let text = table(&shown, &said).render(call.style);
    let remarks = said.remarks.iter().map(|remark| format!("\n! {remark}"));
    call.answer(options.json, value, &(text + &remarks.collect::<String>()))?;
    if faults.is_empty() { Ok(Outcome::Fine) } else { Err(agent::wrong(&faults)) }
}

/// Every setting with the value that holds, as `NAME=value` lines.
pub fn lines(texts: &Texts) -> String {
    let line = |variable: &Variable| {
        let text = texts.get(variable.name).map_or("", String::as_str);
        format!("{}={text}", variable.name)
    };
    VARIABLES.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn setting(variable: &Variable, said: &Said) -> Value {
    let (text, whence) = &said.texts[variable.name];
    let (file, line) = match whence {
        Whence::File(path, line) => (Some(path.display().to_string()), Some(line)),
        _ => (None, None),
    };
    let from = match whence {
        Whence::Option => "option",
        Whence::Environment => "environment",
        Whence::File(..) => "file",
        Whence::Default => "default",
    };
    json!({
        "name": variable.name, "value": without_secrets(text), "from": from, "file": file,
        "line": line, "default": variable.default, "meaning": variable.help,
    })
}

fn table(shown: &[&Variable], said: &Said) -> Table {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for variable in shown {
        let (text, whence) = &said.texts[variable.name];
        let tone = if *whence == Whence::Default { Tone::Faint } else { Tone::Plain };
        let cell = |text: &str| Cell::new(text).tone(tone);
        let value = without_secrets(text);
        table.row([
            cell(variable.name),
            cell(if value.is_empty() { "-" } else { &value }),
            cell(&whence.to_string()),
        ]);
    }
    table
}
