//! Pure. What holds of an object that is not understood: the rules that were understood last.

use std::collections::BTreeSet;

use crate::net::gather::Gather;
use crate::policy::rule::{Origin, Rule, Rules};

/// Rules, and the objects among theirs that are not understood as a whole: of those they are what is left, and
/// closes, or there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnderstoodRules {
    pub rules: Rules,
    pub unread: BTreeSet<Origin>,
}

impl UnderstoodRules {
    /// Of objects that are not understood now, the rules of `before`, if they were understood then.
    pub fn or_of(self, before: &UnderstoodRules) -> UnderstoodRules {
        let UnderstoodRules { rules, mut unread } = self;
        // What stands beside a rule for pods of unknown namespaces is found anew.
        let is_kept = |rule: &&Rule| {
            let object = rule.origin.object();
            unread.contains(&object) && !before.unread.contains(&object) && !rule.is_doubtful()
        };
        let kept: Vec<Rule> = match unread.is_empty() {
            true => Vec::new(),
            false => before.rules.iter().filter(is_kept).cloned().collect(),
        };
        if kept.is_empty() {
            return UnderstoodRules { rules, unread };
        }
        let objects: BTreeSet<Origin> = kept.iter().map(|rule| rule.origin.object()).gather();
        unread.retain(|object| !objects.contains(object));
        let others = rules.iter().filter(|rule| !objects.contains(&rule.origin.object())).cloned();
        UnderstoodRules { rules: Rules::new(others.chain(kept).collect()), unread }
    }
}
