//! `config`: the settings that hold, and where each is from.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::agent;
use crate::agent::cli::{VARIABLES, Variable};
use crate::agent::exit::Exit;
use crate::agent::host;
use crate::agent::logger::USUAL;
use crate::agent::origin::{Against, LOG, Texts, Whence};
use crate::agent::settings::Settings;
use crate::agent::start;
use crate::agent::values::without_secrets;
use crate::command::call::{Call, Outcome};
use crate::command::table::{Cell, Table, Tone};
use crate::linux::rtnl::Rtnl;

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
    let (settings, faults) = match said.read(Against::Nothing) {
        Ok(settings) => (Some(settings), Vec::new()),
        Err(faults) => (None, faults),
    };
    let all = VARIABLES.iter().chain([&LOGGED]).map(|variable| {
        let (text, whence) = said
            .texts
            .get(variable.name)
            .or(said.log.as_ref())
            .cloned()
            .unwrap_or_else(|| (variable.default.to_owned(), Whence::Default));
        let found = settings.as_ref().filter(|_| text.is_empty());
        let found = found.and_then(|settings| found_here(variable.name, settings));
        Shown { variable, text: without_secrets(&text), whence, found }
    });
    let shown: Vec<Shown> =
        all.filter(|shown| !options.changed || shown.whence != Whence::Default).collect();
    let settings: Vec<Value> = shown.iter().map(setting).collect();
    let value = json!({ "settings": settings, "remarks": said.remarks, "faults": faults });
    let text = table(&shown).render(call.style);
    let remarks = said.remarks.iter().map(|remark| format!("\n! {remark}"));
    call.answer(options.json, value, &(text + &remarks.collect::<String>()))?;
    if faults.is_empty() { Ok(Outcome::Fine) } else { Err(agent::wrong(&faults)) }
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
    whence: Whence,
    /// What holds as nothing is said, and what that follows from.
    found: Option<(String, &'static str)>,
}

/// What the agent would take on this host for a setting that nobody made, as far as it can be told
/// without etcd.
fn found_here(name: &str, settings: &Settings) -> Option<(String, &'static str)> {
    match name {
        "NODE_NAME" => Some((start::node_name(settings).ok()?.to_string(), "host name")),
        "NODE_IP" => {
            let found = host::observe(&Rtnl::open().ok()?, settings, None).ok()?;
            let addresses: Vec<String> =
                found.own.addresses.iter().map(ToString::to_string).collect();
            (!addresses.is_empty()).then(|| (addresses.join(","), "default route"))
        }
        "CNI_PLUGIN_LOCATION" => Some((settings.cni.plugin.display().to_string(), "CNI_TYPE")),
        _ => None,
    }
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
    let effective = found.as_ref().map_or(text, |(value, _)| value);
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
        "name": variable.name, "value": text, "effective": effective, "from": from, "file": file,
        "line": line, "default": variable.default, "meaning": variable.help,
    })
}

fn table(shown: &[Shown]) -> Table {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for Shown { variable, text, whence, found } in shown {
        let tone = if *whence == Whence::Default { Tone::Faint } else { Tone::Plain };
        let cell = |text: &str| Cell::new(text).tone(tone);
        let (value, from) = match found {
            Some((value, why)) => (value.as_str(), format!("{whence} ({why})")),
            None if text.is_empty() => ("-", whence.to_string()),
            None => (text.as_str(), whence.to_string()),
        };
        table.row([cell(variable.name), cell(value), cell(&from)]);
    }
    table
}
