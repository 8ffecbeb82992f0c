//! `policy from-contiv`: objects of Contiv as those of humanz.

use argh::{ArgsInfo, FromArgs};
use serde_json::Value;

use crate::command::call::{self, Call, Outcome};
use crate::command::objects::files;
use crate::policy::read::contiv;
use crate::settings::exit::{self, Exit};

/// print the networks, groups, policies, rules and profiles of Contiv as objects that policy apply -f reads; what
/// they say and humanz has not is noted on standard error
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "from-contiv",
    example = "{command_name} -f contiv.json > policies.json",
    error_code(1, "something is not understood: nothing is printed")
)]
pub struct FromContiv {
    /// a file with objects as netctl or the netmaster prints them (JSON), again for more; -: standard input
    #[argh(option, short = 'f')]
    file: Vec<String>,
}

/// Answers.
///
/// # Errors
/// A file that cannot be read, or what is not understood in it.
pub fn run(call: &mut Call<'_>, options: &FromContiv) -> Result<Outcome, Exit> {
    let mut documents = Vec::new();
    for path in &options.file {
        let text = files::text(path)?;
        for document in serde_json::Deserializer::from_slice(text.as_bytes()).into_iter::<Value>() {
            documents.push(document.map_err(|error| files::failed(path, &error.to_string()))?);
        }
    }
    if documents.is_empty() {
        return Err(Exit::new(
            exit::SETTINGS,
            "no objects are given: -f FILE (-f -: standard input)",
        ));
    }
    let converted = contiv::convert(documents).map_err(|faults| {
        let faults: String = faults.iter().map(|fault| format!("\n! {fault}")).collect();
        Exit::new(exit::FAILURE, format!("nothing was converted:{faults}"))
    })?;
    converted.notes.iter().for_each(|note| call::complain(note));
    let list = Value::Array(converted.objects);
    call.answer(false, true, Value::Null, &format!("{list:#}\n"))
}
