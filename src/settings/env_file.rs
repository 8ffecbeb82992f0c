//! Pure. The settings file: `NAME=value` lines, in the syntax of systemd's `EnvironmentFile=`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::Chars;

/// The assignments of a file, by name. Of several of one name the last one counts.
pub type Assignments = BTreeMap<String, Assignment>;

/// What a name is set to, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The value, without quotes.
    pub value: String,
    /// The line it begins in, from 1.
    pub line: usize,
}

/// Something that is no assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it, and what would be right.
    pub wrong: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.wrong)
    }
}

/// The assignments in `text`.
///
/// Lines that begin with `#` or `;` are comments. A value in quotes may go over several lines; in
/// double quotes and without quotes `\` takes the meaning from the next character, and joins lines.
/// Nothing is expanded. What systemd would leave out or read in a way that cannot be meant
/// (a line without `=`, a name that is none, a quote without an end) is a fault.
///
/// # Errors
/// Every [`SyntaxError`], by line.
///
/// Source: systemd.exec(5) `EnvironmentFile=`; src/basic/env-file.c of systemd 257.
pub fn parse(text: &[u8]) -> Result<Assignments, Vec<SyntaxError>> {
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let before = text.iter().take(error.valid_up_to());
            let line = before.filter(|byte| **byte == b'\n').count() + 1;
            return Err(vec![SyntaxError { line, wrong: "is not UTF-8 text".to_owned() }]);
        }
    };
    let mut parser = Scanner { rest: text.chars(), line: 1 };
    let (mut assignments, mut faults) = (Assignments::new(), Vec::new());
    while let Some(first) = parser.begin() {
        match parser.assignment(first) {
            Ok((name, assignment)) => {
                assignments.insert(name, assignment);
            }
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(assignments) } else { Err(faults) }
}

struct Scanner<'a> {
    rest: Chars<'a>,
    line: usize,
}

impl Scanner<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// The first character of the next assignment.
    fn begin(&mut self) -> Option<char> {
        loop {
            match self.next()? {
                '#' | ';' => while !matches!(self.next()?, '\n' | '\r') {},
                blank if is_blank(blank) => {}
                first => return Some(first),
            }
        }
    }

    fn assignment(&mut self, first: char) -> Result<(String, Assignment), SyntaxError> {
        let line = self.line;
        let fault = |wrong: String| SyntaxError { line, wrong };
        let mut name = String::from(first);
        if first != '=' {
            loop {
                match self.next() {
                    Some('=') => break,
                    None | Some('\n' | '\r') => {
                        return Err(fault(format!("{name:?} has no =; write NAME=value")));
                    }
                    Some(other) => name.push(other),
                }
            }
        } else {
            name.clear();
        }
        let value = self.value().ok_or_else(|| fault("a quote has no end".to_owned()));
        let name = name.trim_end().to_owned();
        let value = value?;
        if name.starts_with("export ") {
            return Err(fault("export belongs to shells; write NAME=value".to_owned()));
        }
        if !is_name(&name) {
            return Err(fault(format!("{name:?} is no name of a variable; write NAME=value")));
        }
        if value.contains(char::is_control) {
            return Err(fault(format!("the value of {name} holds a control character")));
        }
        Ok((name, Assignment { value, line }))
    }

    /// `None` if a quote has no end.
    fn value(&mut self) -> Option<String> {
        let mut value = String::new();
        loop {
            match self.next() {
                None | Some('\n' | '\r') => return Some(value),
                Some(blank) if is_blank(blank) => {}
                Some('\'') => self.in_single_quotes(&mut value)?,
                Some('"') => self.in_double_quotes(&mut value)?,
                Some(first) => {
                    self.bare(first, &mut value);
                    return Some(value);
                }
            }
        }
    }

    fn in_single_quotes(&mut self, value: &mut String) -> Option<()> {
        loop {
            match self.next()? {
                '\'' => return Some(()),
                other => value.push(other),
            }
        }
    }

    fn in_double_quotes(&mut self, value: &mut String) -> Option<()> {
        loop {
            match self.next()? {
                '"' => return Some(()),
                '\\' => match self.next()? {
                    '\n' => {}
                    special @ ('"' | '\\' | '`' | '$') => value.push(special),
                    other => value.extend(['\\', other]),
                },
                other => value.push(other),
            }
        }
    }

    /// The rest of the line, without blanks at its end that are not escaped.
    fn bare(&mut self, first: char, value: &mut String) {
        let mut kept = value.len();
        let mut next = Some(first);
        while let Some(char) = next.filter(|char| !matches!(char, '\n' | '\r')) {
            if char != '\\' {
                value.push(char);
            } else {
                let escaped = self.next().filter(|escaped| !matches!(escaped, '\n' | '\r'));
                value.extend(escaped);
                kept = value.len();
            }
            next = self.next();
        }
        let end = value.trim_end_matches(is_blank).len();
        value.truncate(end.max(kept));
    }
}

fn is_blank(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\n' | '\r')
}

fn is_name(text: &str) -> bool {
    let valid = |char: char| char.is_ascii_alphanumeric() || char == '_';
    text.chars().all(valid) && text.starts_with(|char: char| !char.is_ascii_digit())
}

#[cfg(test)]
mod tests;
