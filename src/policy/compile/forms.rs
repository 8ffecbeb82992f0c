//! Pure. The forms that rules of the table have.

use crate::nft::{Action, Match, Rule, Verdict};
use crate::policy::compile::name;

/// Reports of drops: at most so many a second for each rule.
const LOGS_PER_SECOND: u64 = 10;
const LOGS_AT_ONCE: u32 = 20;

/// The longest prefix of a report (NF_LOG_PREFIXLEN less the final zero).
const PREFIX_MAX_BYTES: usize = 127;

/// A report, if there were not too many, and the drop.
pub fn denial(comment: &str, group: u16, matches: Vec<Match>, counter: String) -> [Rule; 2] {
    reported(("humanz", comment), group, matches, Action::Count(counter, Verdict::Drop))
}

/// The same of a rule that decides nothing: the report, and the end of the audit.
pub fn audited_denial(
    comment: &str,
    group: u16,
    matches: Vec<Match>,
    counter: String,
) -> [Rule; 2] {
    reported(("humanz audit", comment), group, matches, Action::Count(counter, Verdict::Return))
}

fn reported(
    (kind, comment): (&str, &str),
    group: u16,
    matches: Vec<Match>,
    then: Action,
) -> [Rule; 2] {
    let limit = Match::Limit { rate: LOGS_PER_SECOND, burst: LOGS_AT_ONCE };
    let limited = [matches.clone(), vec![limit]].concat();
    let prefix = name::cut(&format!("{kind}: {comment} "), PREFIX_MAX_BYTES).to_owned();
    [plain(comment, limited, Action::Log(group, prefix)), plain(comment, matches, then)]
}

pub fn plain(comment: &str, matches: Vec<Match>, action: Action) -> Rule {
    Rule { comment: comment.to_owned(), matches, action }
}
