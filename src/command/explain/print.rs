//! Pure. The hops, for people and for programs.

use serde_json::{Value, json};

use crate::checks::explain::{Hop, HopVerdict, Path, PathEnd};
use crate::command::table::{Cell, Style, Table, Tone, printable};

/// A table of the hops, then what to do.
pub fn text(path: &Path, hops: &[Hop], style: Style) -> String {
    let title = |end: &PathEnd| match end.name.starts_with(&end.address.to_string()) {
        true => end.name.clone(),
        false => format!("{} ({})", end.name, end.address),
    };
    let head = style.sentence(Tone::Plain, &format!("{} → {}", title(&path.from), title(&path.to)));
    let mut table = Table::new(&["IS", "HOP", "WHERE", "SEEN"]);
    for hop in hops {
        let (word, tone) = word(&hop.verdict);
        let verdict = Cell::new(word).tone(tone);
        table.row([verdict, Cell::new(hop.name), Cell::new(&hop.place), Cell::new(&hop.seen)]);
    }
    let mut text = format!("{head}\n{}\n", table.render(style));
    for hop in hops {
        let (HopVerdict::Odd(fix) | HopVerdict::Lost(fix)) = &hop.verdict else { continue };
        let what = style.paint(word(&hop.verdict).1, hop.name);
        text.push_str(&format!("{what}: {}\n", printable(&fix.to_string())));
    }
    let end = match hops.iter().find(|hop| hop.is_lost()) {
        Some(hop) => {
            let line = format!("lost at {} ({}): {}", hop.name, hop.place, hop.seen);
            style.sentence(Tone::Bad, &line)
        }
        None => without_loss(hops, style),
    };
    format!("{text}{end}")
}

/// The last line, where this host loses nothing.
fn without_loss(hops: &[Hop], style: Style) -> String {
    let mut odd: Vec<&str> =
        hops.iter().filter(|hop| hop.verdict != HopVerdict::Fine).map(|hop| hop.name).collect();
    odd.dedup();
    match odd[..] {
        [] => style.paint(Tone::Good, "nothing is wrong as far as this host can see"),
        _ => {
            let line =
                format!("nothing is lost as far as this host can see; odd: {}", odd.join(", "));
            style.sentence(Tone::Odd, &line)
        }
    }
}

/// The same as one object; `cure` is `fix` as earlier releases have it.
pub fn json(path: &Path, hops: &[Hop]) -> Value {
    let end = |end: &PathEnd| json!({ "name": end.name, "address": end.address });
    let hop = |hop: &Hop| {
        let fix = match &hop.verdict {
            HopVerdict::Fine => Value::Null,
            HopVerdict::Odd(fix) | HopVerdict::Lost(fix) => fix.to_string().into(),
        };
        json!({
            "hop": hop.name, "place": hop.place, "seen": hop.seen,
            "verdict": word(&hop.verdict).0, "fix": fix, "cure": fix,
        })
    };
    json!({
        "from": end(&path.from),
        "to": end(&path.to),
        "hops": hops.iter().map(hop).collect::<Vec<Value>>(),
        "problems": hops.iter().filter_map(Hop::problem).collect::<Vec<_>>(),
        "lost": hops.iter().find(|hop| hop.is_lost()).map(|hop| hop.name),
    })
}

fn word(verdict: &HopVerdict) -> (&'static str, Tone) {
    match verdict {
        HopVerdict::Fine => ("ok", Tone::Good),
        HopVerdict::Odd(_) => ("odd", Tone::Odd),
        HopVerdict::Lost(_) => ("lost", Tone::Bad),
    }
}
