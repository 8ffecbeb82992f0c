//! Pure. The forms that rules of the table have.

use crate::nft::{Action, Match, NftRule, Verdict};
use crate::policy::compile::name;
use crate::policy::rule as policy;

/// Reports of drops: at most so many a second for each rule.
const LOGS_PER_SECOND: u64 = 10;
const LOGS_AT_ONCE: u32 = 20;

/// What reports begin with.
const DENIED: &str = "humanz";
const AUDITED: &str = "humanz audit";

/// The rule of pods in quarantine.
pub const QUARANTINE: &str = "unknown pod";

/// The rule of packets that belong to no connection.
pub const NO_CONNECTION: &str = "no connection";

/// The rule of errors about connections of others.
pub const FOREIGN_ERROR: &str = "error about others";

/// The longest prefix of a report (NF_LOG_PREFIXLEN less the final zero).
const PREFIX_MAX_BYTES: usize = 127;

/// A report, if there were not too many, and the drop.
pub fn drop_all(comment: &str, group: u16, counter: String) -> [NftRule; 2] {
    reported((DENIED, comment), group, Vec::new(), Action::Count(counter, Verdict::Drop))
}

/// The same of a connection, which is not judged any more: numbers of epochs come again, and who is denied and goes on
/// to send would keep the mark of one.
pub fn denial(
    comment: &str,
    (group, mark_bits): (u16, u32),
    matches: Vec<Match>,
    counter: String,
) -> [NftRule; 2] {
    reported((DENIED, comment), group, matches, Action::Deny(mark_bits, counter))
}

/// The same of a rule that decides nothing: the report, and the end of the audit.
pub fn audited_denial(
    comment: &str,
    group: u16,
    matches: Vec<Match>,
    counter: String,
) -> [NftRule; 2] {
    reported((AUDITED, comment), group, matches, Action::Count(counter, Verdict::Return))
}

fn reported(
    (kind, comment): (&str, &str),
    group: u16,
    matches: Vec<Match>,
    then: Action,
) -> [NftRule; 2] {
    let limit = Match::Limit { rate: LOGS_PER_SECOND, burst: LOGS_AT_ONCE };
    let limited = [matches.clone(), vec![limit]].concat();
    let prefix = prefix(kind, comment);
    [plain(comment, limited, Action::Log(group, prefix)), plain(comment, matches, then)]
}

/// The prefix of the reports of a rule that denies. It may be cut, and then be that of others, too.
pub fn log_prefix(rule: &policy::Rule) -> String {
    prefix(if rule.audit { AUDITED } else { DENIED }, &rule.to_string())
}

/// That of the reports of pods in quarantine.
pub fn quarantine_prefix() -> String {
    prefix(DENIED, QUARANTINE)
}

/// That of the reports of packets that belong to no connection.
pub fn no_connection_prefix() -> String {
    prefix(DENIED, NO_CONNECTION)
}

/// That of the reports of errors about connections of others.
pub fn foreign_error_prefix() -> String {
    prefix(DENIED, FOREIGN_ERROR)
}

fn prefix(kind: &str, comment: &str) -> String {
    name::cut(&format!("{kind}: {comment} "), PREFIX_MAX_BYTES).to_owned()
}

pub fn plain(comment: &str, matches: Vec<Match>, action: Action) -> NftRule {
    NftRule { comment: comment.to_owned(), matches, action }
}
