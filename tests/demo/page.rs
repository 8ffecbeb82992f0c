//! Formatting: headings, wrapped text, aligned columns, a summary.

use std::time::Duration;

const WIDTH: usize = 92;

/// The text printed so far, for the summary.
#[derive(Default)]
pub struct Page {
    chapters: usize,
    facts: Vec<(String, String)>,
}

impl Page {
    pub fn title(&mut self, title: &str) {
        println!("\n{title}\n{}\n", "=".repeat(title.chars().count()));
    }

    pub fn chapter(&mut self, title: &str) {
        self.chapters += 1;
        let title = format!("{}. {title}", self.chapters);
        println!("\n{title}\n{}\n", "-".repeat(title.chars().count()));
    }

    /// A paragraph.
    pub fn text(&mut self, text: &str) {
        let mut column = 0;
        for word in text.split_whitespace() {
            let length = word.chars().count();
            if column > 0 && column + 1 + length > WIDTH {
                println!();
                column = 0;
            } else if column > 0 {
                print!(" ");
                column += 1;
            }
            print!("{word}");
            column += length;
        }
        println!("\n");
    }

    /// Rows with aligned columns, indented.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            println!("    {}", cells.collect::<Vec<_>>().join("   ").trim_end());
        }
        println!();
    }

    /// A command and its output, indented.
    pub fn transcript(&mut self, command: &str, output: &str) {
        println!("    $ {command}");
        for line in output.lines() {
            println!("{}", format!("    {line}").trim_end());
        }
        println!();
    }

    /// Something for the summary.
    pub fn remember(&mut self, what: &str, value: impl Into<String>) {
        self.facts.push((what.into(), value.into()));
    }

    pub fn summary(&mut self, took: Duration) {
        self.title("Summary");
        let rows = self.facts.iter().map(|(what, value)| vec![what.clone(), value.clone()]);
        let rows: Vec<_> = rows.collect();
        self.table(&rows);
        self.text(&format!(
            "The demo took {} and has removed everything it made.",
            if took.as_secs() < 2 { milliseconds(took) } else { format!("{} s", took.as_secs()) }
        ));
    }
}

/// `0.31 ms`, `12 ms`.
pub fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1000.0;
    if milliseconds < 10.0 {
        format!("{milliseconds:.2} ms")
    } else {
        format!("{milliseconds:.0} ms")
    }
}

/// A row of a table.
pub fn row<const N: usize>(cells: [&dyn std::fmt::Display; N]) -> Vec<String> {
    cells.iter().map(|cell| cell.to_string()).collect()
}
