//! Pure. A change as a person reads it.

use std::fmt;

/// What a change does to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It was missing.
    Added,
    /// It should not have been there.
    Removed,
    /// It was there and different.
    Changed,
}

/// One change: `+ route 10.1.2.0/24 via 192.0.2.7` in a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What happens.
    pub sign: Sign,
    /// To what, and the values that matter.
    pub what: String,
}

/// A change that can be told to a person.
pub trait Describe {
    /// The change in one line.
    fn line(&self) -> Line;
}

impl Line {
    /// Something that was missing.
    pub fn added(what: impl Into<String>) -> Line {
        Line { sign: Sign::Added, what: what.into() }
    }

    /// Something that should not have been there.
    pub fn removed(what: impl Into<String>) -> Line {
        Line { sign: Sign::Removed, what: what.into() }
    }

    /// Something that was different.
    pub fn changed(what: impl Into<String>) -> Line {
        Line { sign: Sign::Changed, what: what.into() }
    }

    /// For an error: `add route 10.1.2.0/24 via 192.0.2.7`.
    pub fn attempt(&self) -> String {
        let verb = match self.sign {
            Sign::Added => "add",
            Sign::Removed => "remove",
            Sign::Changed => "change",
        };
        format!("{verb} {}", self.what)
    }

    /// For the log: `added route 10.1.2.0/24 via 192.0.2.7`.
    pub fn past(&self) -> String {
        let verb = match self.sign {
            Sign::Added => "added",
            Sign::Removed => "removed",
            Sign::Changed => "changed",
        };
        format!("{verb} {}", self.what)
    }
}

impl fmt::Display for Line {
    /// For the dry run: `+`, `-` or `~` and the object.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.sign {
            Sign::Added => '+',
            Sign::Removed => '-',
            Sign::Changed => '~',
        };
        write!(f, "{sign} {}", self.what)
    }
}
