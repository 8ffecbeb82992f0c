//! The table of targets and results.

use std::fmt;

/// One line. Every text may be empty: not measured, or nothing to compare with.
#[derive(Default)]
pub struct Row {
    pub what: String,
    pub reference: String,
    pub floor: String,
    pub humanz: String,
    pub target: String,
    /// humanz in the target's terms.
    pub reached: String,
    /// `None`: there is no target, the figure is only printed.
    pub met: Option<bool>,
}

#[derive(Default)]
pub struct Table(Vec<Row>);

impl Table {
    /// Adds a row and prints it at once: the whole table follows minutes later.
    pub fn push(&mut self, row: Row) {
        println!("  {}", row.texts().join("  ").trim_end());
        self.0.push(row);
    }

    fn widths(&self) -> [usize; COLUMNS] {
        let mut widths = HEAD.map(|text| text.chars().count());
        for row in &self.0 {
            for (width, text) in widths.iter_mut().zip(row.texts()) {
                *width = (*width).max(text.chars().count());
            }
        }
        widths
    }
}

const COLUMNS: usize = 7;
const HEAD: [&str; COLUMNS] =
    ["median / p99", "reference", "kernel floor", "humanz", "target", "reached", ""];

impl Row {
    fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "PASS",
            Some(false) => "MISS",
            None => "",
        }
    }

    fn texts(&self) -> [&str; COLUMNS] {
        let Self { what, reference, floor, humanz, target, reached, .. } = self;
        [what, reference, floor, humanz, target, reached, self.verdict()]
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        line(f, HEAD, widths)?;
        line(f, widths.map(|width| "─".repeat(width)).each_ref().map(String::as_str), widths)?;
        for row in &self.0 {
            line(f, row.texts(), widths)?;
        }
        let judged: Vec<bool> = self.0.iter().filter_map(|row| row.met).collect();
        let met = judged.iter().filter(|met| **met).count();
        write!(f, "{met} of {} targets met", judged.len())
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    texts: [&str; COLUMNS],
    widths: [usize; COLUMNS],
) -> fmt::Result {
    let cells: Vec<_> = texts.iter().zip(widths).map(|(t, w)| format!("{t:w$}")).collect();
    writeln!(f, "{}", cells.join("  ").trim_end())
}
