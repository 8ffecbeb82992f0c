//! Pure. One line that describes a change.

use std::fmt;

use crate::net::Object;

/// What a change does to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Added,
    Removed,
    Changed,
}

/// One change: `+ route 10.1.2.0/24 via 192.0.2.7` in a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub sign: Sign,
    pub object: Object,
    /// What follows the object: ` via 192.0.2.7`.
    values: String,
}

/// A change that has a line.
pub trait Describe {
    fn line(&self) -> Line;
}

impl Describe for Line {
    fn line(&self) -> Line {
        self.clone()
    }
}

impl Line {
    pub fn added(object: Object) -> Line {
        Line { sign: Sign::Added, object, values: String::new() }
    }

    pub fn removed(object: Object) -> Line {
        Line { sign: Sign::Removed, object, values: String::new() }
    }

    pub fn changed(object: Object) -> Line {
        Line { sign: Sign::Changed, object, values: String::new() }
    }

    /// The same with what follows the object: ` via 192.0.2.7`.
    pub fn with(self, values: impl Into<String>) -> Line {
        Line { values: values.into(), ..self }
    }

    /// The object and the values: `route 10.1.2.0/24 via 192.0.2.7`.
    pub fn what(&self) -> String {
        format!("{}{}", self.object, self.values)
    }

    /// For an error: `add route 10.1.2.0/24 via 192.0.2.7`.
    pub fn attempt(&self) -> String {
        let verb = match self.sign {
            Sign::Added => "add",
            Sign::Removed => "remove",
            Sign::Changed => "change",
        };
        format!("{verb} {}", self.what())
    }

    /// For the log: `added route 10.1.2.0/24 via 192.0.2.7`.
    pub fn past(&self) -> String {
        let verb = match self.sign {
            Sign::Added => "added",
            Sign::Removed => "removed",
            Sign::Changed => "changed",
        };
        format!("{verb} {}", self.what())
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
        write!(f, "{sign} {}", self.what())
    }
}
