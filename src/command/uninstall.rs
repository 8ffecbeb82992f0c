//! `uninstall`: what was removed from this host, or would be.

use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::settings::exit::{self, Exit};
use crate::settings::flags::Uninstall;
use crate::uninstall::{self, Removed};

/// Removals are logged as they are made, and printed only with `--json` or `--dry-run`.
///
/// # Errors
/// Nothing was removed, or something was not; the text says why.
pub fn run(call: &mut Call<'_>, options: &Uninstall) -> Result<Outcome, Exit> {
    let removed = uninstall::run(&mut call.origin, options)?;
    let text = text(&removed, options.dry_run);
    if options.json || !text.is_empty() {
        let lines: Vec<String> = removed.lines.iter().map(ToString::to_string).collect();
        let value = json!({
            "dry_run": options.dry_run, "changes": lines, "in_the_way": removed.in_the_way,
            "failures": removed.failures.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        call.answer(options.json, true, value, &text)?;
    }
    match removed.failures.as_slice() {
        [] => Ok(Outcome::Fine),
        failures => {
            let lines: Vec<String> = failures.iter().map(ToString::to_string).collect();
            Err(Exit::new(exit::FAILURE, lines.join("\n")))
        }
    }
}

fn text(removed: &Removed, dry: bool) -> String {
    let lines: Vec<String> = match (removed.lines.as_slice(), dry) {
        ([], true) => vec!["nothing would be removed".to_owned()],
        ([], false) if removed.failures.is_empty() => {
            vec!["nothing was there to be removed".to_owned()]
        }
        (lines, true) => lines.iter().map(ToString::to_string).collect(),
        (_, false) => Vec::new(),
    };
    let refused = removed.in_the_way.iter().map(|why| format!("! {why}"));
    lines.into_iter().chain(refused).collect::<Vec<_>>().join("\n")
}
