//! Pure. Text for people: tables and colours.

use std::ffi::OsString;
use std::time::Duration;

use crate::command::wrap::{Breaks, continued, letters, longest_piece, wrapped};
use crate::net::Problem;

/// How text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    colour: bool,
    /// How wide the terminal is; `None` where lines may have any length, as in a pipe.
    columns: Option<usize>,
}

impl Style {
    /// Colour on a terminal that has it, unless `NO_COLOR` is set to something.
    ///
    /// Source: no-color.org; terminfo(5) `dumb`.
    pub fn of(terminal: bool, environment: impl Fn(&str) -> Option<OsString>) -> Style {
        let refused = environment("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = environment("TERM").is_none_or(|value| value.is_empty() || value == "dumb");
        Style { colour: terminal && !refused && !dumb, columns: None }
    }

    /// The same on a terminal with so many columns.
    pub fn columns(self, columns: Option<u16>) -> Style {
        Style { columns: columns.map(usize::from), ..self }
    }

    /// `text` in lines that fit behind `before` columns. Words are never broken.
    pub fn lines(self, before: usize, text: &str) -> Vec<String> {
        match self.columns {
            None => vec![text.to_owned()],
            Some(columns) => wrapped(text, columns.saturating_sub(before)),
        }
    }

    /// A sentence in that tone, in lines that fit, each with its end; it may be from anybody: see [`printable`].
    pub fn sentence(self, tone: Tone, text: &str) -> String {
        self.behind("", tone, text)
    }

    /// `! text`, likewise.
    pub fn remark(self, tone: Tone, text: &str) -> String {
        self.behind("! ", tone, text)
    }

    fn behind(self, mark: &str, tone: Tone, text: &str) -> String {
        let lines = self.lines(mark.len(), &printable(text)).into_iter().enumerate();
        let before = |at| if at == 0 { mark.to_owned() } else { " ".repeat(mark.len()) };
        lines.map(|(at, line)| self.paint(tone, &(before(at) + &line)) + "\n").collect()
    }

    /// `! what; fix`. On a terminal the fix is a line of its own, which stays whole: it may be a command to copy.
    pub fn fault(self, tone: Tone, problem: &Problem) -> String {
        match &problem.fix {
            Some(fix) if self.columns.is_some() => {
                let what = self.remark(tone, &format!("{};", problem.what));
                format!("{what}  {}\n", self.paint(tone, &printable(fix)))
            }
            _ => self.remark(tone, &problem.to_string()),
        }
    }

    /// `text` in that tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if !self.colour => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Odd => "33",
            Tone::Faint => "2",
            Tone::Strong => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// What a text means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing in particular.
    #[default]
    Plain,
    /// As it shall be.
    Good,
    /// Somebody must act.
    Bad,
    /// Worth a look.
    Odd,
    /// Beside the point.
    Faint,
    /// A heading.
    Strong,
}

/// One cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with `text`, which may be from anybody: see [`printable`]. Nothing is shown as `-`.
    pub fn new(text: impl AsRef<str>) -> Cell {
        let text = printable(text.as_ref());
        let text = if text.is_empty() { "-".to_owned() } else { text };
        Cell { text, tone: Tone::Plain }
    }

    /// The same in `tone`.
    pub fn tone(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }
}

/// `text` without anything that a terminal would act on: control characters and the marks that
/// turn the direction of writing are shown as escapes.
pub fn printable(text: &str) -> String {
    let harmful = |char: char| {
        let turns = matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        char.is_control() || turns
    };
    if !text.contains(harmful) {
        return text.to_owned();
    }
    let show = |char: char| match harmful(char) {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(show).collect()
}

/// How long that is, in the largest unit of which it has two: `90s`, `12m`, `5h`, `3d`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Names and values below each other, the values in one column; a value may have several lines.
pub fn facts(rows: &[(&str, String)], style: Style) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        let mut name = *name;
        for line in value.lines().flat_map(|line| style.lines(width + 2, &printable(line))) {
            text.push_str(&format!("{name:width$}  {line}\n"));
            name = "";
        }
    }
    text
}

/// Rows below a heading. Columns are two blanks apart, and as wide as their widest cell where there is room;
/// where there is none, the widest columns are wrapped, and names and lists in them continued in the next line.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<Cell>>,
    /// Headings of columns that are left out where there is no room, the first first.
    dispensable: &'static [&'static str],
}

impl Table {
    /// A table with these columns.
    pub fn new(heading: &[&str]) -> Table {
        Table {
            rows: vec![heading.iter().map(|text| Cell::new(text).tone(Tone::Strong)).collect()],
            dispensable: &[],
        }
    }

    /// Where not even one word of each column has room, columns of `headings` are left out, one after the other.
    pub fn without_if_narrow(self, headings: &'static [&'static str]) -> Table {
        Table { dispensable: headings, ..self }
    }

    /// Adds a row with a cell for every column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// There is nothing below the heading.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The lines, each with its end.
    pub fn render(&self, style: Style) -> String {
        if let [first, others @ ..] = self.dispensable
            && !self.has_room(style.columns)
        {
            let at = self.rows[0].iter().position(|cell| cell.text == *first);
            let mut narrower = self.clone().without_if_narrow(others);
            for row in narrower.rows.iter_mut().filter(|row| at.is_some_and(|at| at < row.len())) {
                row.remove(at.unwrap_or_default());
            }
            return narrower.render(style);
        }
        let (widths, breaks) = self.widths(style.columns);
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| match style.columns {
                None => vec![cell.text.clone()],
                Some(_) => continued(&cell.text, *width, breaks),
            });
            let cells: Vec<Vec<String>> = cells.collect();
            for line in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let parts = cells.iter().map(|cell| cell.get(line).map_or("", String::as_str));
                text.push_str(&text_line(row, &parts.collect::<Vec<_>>(), &widths, style));
            }
        }
        text
    }

    /// One word of each column has room, with names as they are.
    fn has_room(&self, columns: Option<usize>) -> bool {
        let least: usize = self.least(Breaks::Slashes).iter().sum();
        columns.is_none_or(|columns| least <= self.room(columns))
    }

    fn columns(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// What the columns have together.
    fn room(&self, columns: usize) -> usize {
        columns.saturating_sub(2 * self.columns().saturating_sub(1))
    }

    fn widest(&self, width: impl Fn(&str) -> usize) -> Vec<usize> {
        let of_column = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell: &Cell| width(&cell.text)).max().unwrap_or(0)
        };
        (0..self.columns()).map(of_column).collect()
    }

    fn least(&self, breaks: Breaks) -> Vec<usize> {
        self.widest(|text| longest_piece(text, breaks))
    }

    /// The width of each column, and where words are broken for that: nowhere before every column is as narrow as its
    /// longest word, and so on.
    fn widths(&self, columns: Option<usize>) -> (Vec<usize>, Breaks) {
        let room = self.room(columns.unwrap_or(usize::MAX));
        let mut widths = self.widest(letters);
        for breaks in Breaks::ALL {
            shrink(&mut widths, &self.least(breaks), room);
            if widths.iter().sum::<usize>() <= room {
                return (widths, breaks);
            }
        }
        (widths, Breaks::Names)
    }
}

/// The widest columns first, none below its `least`.
fn shrink(widths: &mut [usize], least: &[usize], room: usize) {
    while widths.iter().sum::<usize>() > room {
        let shrinkable = (0..widths.len()).filter(|column| widths[*column] > least[*column]);
        let Some(column) = shrinkable.max_by_key(|column| widths[*column]) else { return };
        widths[column] -= 1;
    }
}

/// One line of a row, with its end.
fn text_line(row: &[Cell], parts: &[&str], widths: &[usize], style: Style) -> String {
    let mut line = String::new();
    let mut gap = 0;
    for ((cell, part), width) in row.iter().zip(parts).zip(widths) {
        if !part.is_empty() {
            line.extend(std::iter::repeat_n(' ', gap));
            line.push_str(&style.paint(cell.tone, part));
            gap = 0;
        }
        gap += width - letters(part).min(*width) + 2;
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Object, ProblemKind};

    fn style(terminal: bool, set: &[(&str, &str)]) -> Style {
        Style::of(terminal, |name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn columns_are_as_wide_as_the_widest_cell() {
        let mut table = Table::new(&["NAME", "ADDRESS", "WHY"]);
        table.row(["h1", "2001:db8::1", ""].map(Cell::new));
        table.row(["a-long-name", "10.1.2.3", "hôte"].map(Cell::new));
        let lines = "NAME         ADDRESS      WHY\n\
                     h1           2001:db8::1  -\n\
                     a-long-name  10.1.2.3     hôte\n";
        assert_eq!(table.render(Style::default()), lines);
    }

    #[test]
    fn spans_and_facts() {
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")]
        {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        let rows = [("a", "1\n2".to_owned()), ("none", String::new()), ("long", "\x1b".to_owned())];
        assert_eq!(facts(&rows, Style::default()), "a     1\n      2\nlong  \\u{1b}\n");
    }

    #[test]
    fn the_widest_column_is_wrapped_where_the_terminal_is_narrow() {
        let mut table = Table::new(&["IS", "SEEN", "AT"]);
        table.row(["bad", "the route to 10.1.2.0/24 is missing", "h2"].map(Cell::new));
        table.row(["ok", "awordthatislongerthanall,othersaswell", "h3"].map(Cell::new));
        let lines = "IS   SEEN                                   AT\n\
                     bad  the route to 10.1.2.0/24 is missing    h2\n\
                     ok   awordthatislongerthanall,othersaswell  h3\n";
        assert_eq!(table.render(Style::default().columns(Some(46))), lines);
        let lines = "IS   SEEN                       AT\n\
                     bad  the route to 10.1.2.0/24   h2\n     \
                          is missing\n\
                     ok   awordthatislongerthanall,  h3\n     \
                          othersaswell\n";
        assert_eq!(table.render(Style::default().columns(Some(34))), lines);
        let narrow = Style::default().columns(Some(10));
        let text = table.render(narrow);
        assert!(text.contains("awordthatislongerthanall,"), "words stay whole: {text}");
        assert_eq!(facts(&[("a", "one two".to_owned())], narrow), "a  one two\n");
        assert_eq!(facts(&[("a", "one three".to_owned())], narrow), "a  one\n   three\n");
    }

    #[test]
    fn names_and_lists_are_continued_in_the_next_line_only_where_there_is_no_room() {
        let mut table = Table::new(&["POD", "ADDRESSES", "STATE"]);
        table.row(["team-a/web-7d9f-x2x4z", "10.1.2.3,fd00:1:2::3", "attached"].map(Cell::new));
        let at = |columns| table.render(Style::default().columns(Some(columns)));
        assert!(at(54).contains("team-a/web-7d9f-x2x4z  10.1.2.3,fd00:1:2::3  attached\n"));
        let lines = "POD                    ADDRESSES     STATE\n\
                     team-a/web-7d9f-x2x4z  10.1.2.3,     attached\n                       \
                                            fd00:1:2::3\n";
        assert_eq!(at(45), lines);
        let lines = "POD              ADDRESSES    STATE\n\
                     team-a/          10.1.2.3,    attached\n\
                     web-7d9f-x2x4z   fd00:1:2::3\n";
        assert_eq!(at(38), lines);
        let lines = "POD         ADDRESSES    STATE\n\
                     team-a/     10.1.2.3,    attached\n\
                     web-7d9f-   fd00:1:2::3\n\
                     x2x4z\n";
        assert_eq!(at(33), lines);
        // A subnet and a command's option are never taken apart.
        let mut table = Table::new(&["SUBNET", "FIX"]);
        table.row(["10.244.111.0/24", "--dry-run"].map(Cell::new));
        let line = table.render(Style::default().columns(Some(8)));
        assert!(line.contains("10.244.111.0/24  --dry-run\n"), "{line}");
    }

    #[test]
    fn a_name_is_broken_only_where_it_is_longer_than_its_column_can_be() {
        let mut table = Table::new(&["HOST", "WHAT", "SEEN"]);
        let seen = "no packet of that host arrives in any way";
        table.row(["rack-1-node-a-b", "host-unanswered", seen].map(Cell::new));
        let at = |columns| table.render(Style::default().columns(Some(columns)));
        let whole = "rack-1-node-a-b  host-unanswered  ";
        assert!((41..80).all(|columns| at(columns).contains(whole)), "{}", at(41));
        assert!(at(40).contains("rack-1-node-a-b  host-           "), "{}", at(40));
        let mut table = Table::new(&["HOST", "AGE"]).without_if_narrow(&["AGE"]);
        table.row(["rack-1-node-a-b", "12345678"].map(Cell::new));
        assert!(table.render(Style::default().columns(Some(20))).ends_with("\nrack-1-node-a-b\n"));
    }

    #[test]
    fn sentences_fit_the_terminal_and_the_command_of_a_fix_stays_whole() {
        let narrow = Style { columns: Some(20), ..style(true, &[("TERM", "xterm")]) };
        let said = narrow.sentence(Tone::Bad, "2 of 3 hosts are well, 1 is not");
        assert_eq!(said, "\x1b[31m2 of 3 hosts are\x1b[0m\n\x1b[31mwell, 1 is not\x1b[0m\n");
        let plain = Style { colour: false, ..narrow };
        assert_eq!(
            plain.remark(Tone::Bad, "etcd does not \x1b answer"),
            "! etcd does not\n  \\u{1b} answer\n"
        );
        let problem = Problem::new(ProblemKind::Etcd, Object::named("x"), "etcd does not answer");
        assert_eq!(plain.fault(Tone::Plain, &problem), "! etcd does not\n  answer\n");
        let problem = problem.with_fix("humanz-agent nodes rm h3 # if it is gone");
        let lines = "! etcd does not\n  answer;\n  humanz-agent nodes rm h3 # if it is gone\n";
        assert_eq!(plain.fault(Tone::Plain, &problem), lines);
        let line = "! etcd does not answer; humanz-agent nodes rm h3 # if it is gone\n";
        assert_eq!(Style::default().fault(Tone::Plain, &problem), line);
    }

    #[test]
    fn columns_that_can_be_spared_are_left_out_where_words_have_no_room() {
        let mut table =
            Table::new(&["ADDRESS", "POD", "ID", "IF"]).without_if_narrow(&["ID", "IF"]);
        table.row(["10.1.2.3,fd10::1:2", "shop/web", "0123456789", "eth0"].map(Cell::new));
        let at = |columns| table.render(Style::default().columns(columns));
        let heads = |columns: Option<u16>| {
            let text = at(columns);
            assert!(
                text.lines().all(|it| it.len() <= usize::from(columns.unwrap_or(50).max(16))),
                "{text}"
            );
            text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!((heads(None), heads(Some(35))), ("ADDRESS POD ID IF".into(), heads(None)));
        assert_eq!(
            (heads(Some(30)), heads(Some(16))),
            ("ADDRESS POD IF".into(), "ADDRESS POD".into())
        );
        assert_eq!(heads(Some(3)), "ADDRESS POD", "words stay whole");
    }

    #[test]
    fn colours_do_not_move_columns() {
        let mut table = Table::new(&["A", "B"]);
        table.row([Cell::new("bad").tone(Tone::Bad), Cell::new("x")]);
        let on = style(true, &[("TERM", "xterm")]);
        assert_eq!(table.render(on), "\x1b[1mA\x1b[0m    \x1b[1mB\x1b[0m\n\x1b[31mbad\x1b[0m  x\n");
    }

    #[test]
    fn colour_is_for_terminals_alone_and_can_be_refused() {
        let terminal = ("TERM", "xterm");
        assert!(style(true, &[terminal]).colour);
        assert!(style(true, &[terminal, ("NO_COLOR", "")]).colour);
        assert!(!style(true, &[terminal, ("NO_COLOR", "1")]).colour);
        assert!(!style(true, &[("TERM", "dumb")]).colour);
        assert!(!style(true, &[]).colour);
        assert!(!style(false, &[terminal]).colour);
    }

    #[test]
    fn what_others_wrote_does_not_reach_the_terminal_as_commands() {
        assert_eq!(printable("a\x1b[2Jb\n\u{202e}c\u{9b}"), "a\\u{1b}[2Jb\\n\\u{202e}c\\u{9b}");
        assert_eq!(printable("hôte 1"), "hôte 1");
    }
}
