//! Pure. What was read: rules, and what is wrong with their objects.

use std::collections::BTreeSet;

use crate::net::{Object, Problem, ProblemKind};
use crate::policy::read::fields::Fault;
use crate::policy::rule::{Origin, Rule};

/// What objects say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    pub rules: Vec<Rule>,
    pub problems: Vec<Problem>,
    /// Objects that are not understood as a whole.
    pub unread: BTreeSet<Origin>,
}

/// Problems of one object that are listed; there may be thousands in one that means harm.
const PROBLEMS_LIMIT: usize = 8;

impl Parsed {
    /// The rules, with a problem for each of `faults`.
    pub fn new(origin: &Origin, rules: Vec<Rule>, faults: &[Fault]) -> Parsed {
        Parsed { rules, problems: problems(&origin.subject(), faults), ..Parsed::default() }
    }

    /// Nothing but a problem: the object has no name to go by.
    pub fn nameless(kind: &str, fault: Fault) -> Parsed {
        Parsed { problems: problems(kind, &[fault]), ..Parsed::default() }
    }

    pub fn append(&mut self, mut other: Parsed) {
        self.rules.append(&mut other.rules);
        self.problems.append(&mut other.problems);
        self.unread.append(&mut other.unread);
    }
}

fn problems(subject: &str, faults: &[Fault]) -> Vec<Problem> {
    let problem =
        |what: String| Problem::in_object(ProblemKind::Policy, Object::named(subject), what);
    let listed = faults.iter().take(PROBLEMS_LIMIT);
    let mut problems: Vec<Problem> = listed.map(|fault| problem(fault.to_string())).collect();
    if let more @ 1.. = faults.len().saturating_sub(PROBLEMS_LIMIT) {
        problems.push(problem(format!("{more} further faults")));
    }
    problems
}
