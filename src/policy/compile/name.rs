//! Pure. Names of counters and sets.

use crate::net::{Family, hash};
use crate::policy::rule::{Direction, PolicyKind, Rule};

/// The agent's table for policies.
pub const POLICY_TABLE: &str = "humanz-policy";

/// The chains that the kernel calls.
pub const FORWARD_CHAIN: &str = "forward";
pub const INPUT_CHAIN: &str = "input";
pub const OUTPUT_CHAIN: &str = "output";

/// The chain that sets the conntrack mark of the current epoch: connections with the mark of an earlier one are checked again.
pub const STAMP_CHAIN: &str = "stamp";

/// The chain that accepts packets of connections with that mark.
pub const JUDGED_CHAIN: &str = "judged";

/// The chains that are others in each epoch.
pub const EPOCH_CHAINS: [&str; 2] = [JUDGED_CHAIN, STAMP_CHAIN];

/// The chain of pods in quarantine, and its counter.
pub const UNKNOWN: &str = "unknown";

/// Counts packets of no connection.
pub const UNTRACKED: &str = "untracked";

/// The chain of packets that connection tracking takes for the begin of a connection, or for part of one, and that
/// are neither.
pub const MISTAKEN: &str = "mistaken";

/// The chain of forwarded packets that begin no connection and continue none: so that all others ask once.
pub const APART: &str = "apart";

/// The chain of those of no connection.
pub const ALONE: &str = "alone";

/// What pods send about connections.
pub const ERROR_CHAIN: &str = "error";

/// Counts errors of pods about connections that they are no end of.
pub const FOREIGN: &str = "foreign";

/// The set that holds the mark of the present epoch, for those who ask: a look into it would take a settled packet 60 ns
/// more than the constant in the rule.
pub const EPOCH_SET: &str = "epoch";

/// Longer names are cut and get a hash.
const NAME_MAX_BYTES: usize = 128;

/// The counter of a rule: `np/shop/db/in/0`, `cnp/isolate/out/2`, `np/shop/db/in/deny`; of one that is
/// audited, `audit/np/shop/db/in/deny`; of one beside `cnp/isolate/in/2` for those that may be its peers,
/// `cnp/isolate/in/2/doubtful`.
pub fn counter(rule: &Rule) -> String {
    let origin = &rule.origin;
    let source = match origin.source {
        PolicyKind::AdminNetworkPolicy => "anp",
        PolicyKind::ClusterNetworkPolicy => "cnp",
        PolicyKind::GroupPolicy => "policy",
        PolicyKind::Group => "group",
        PolicyKind::NetworkPolicy => "np",
        PolicyKind::BaselineAdminNetworkPolicy => "banp",
        PolicyKind::Network => "net",
    };
    let namespace = origin.namespace.iter().map(|name| format!("{name}/"));
    let direction = match rule.direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    let place = origin.index.map_or_else(|| rule.verdict.to_string(), |index| index.to_string());
    let namespace: String = namespace.collect();
    let audit = if rule.audit { "audit/" } else { "" };
    let doubt = if rule.is_doubtful() { "/doubtful" } else { "" };
    short(&format!("{audit}{source}/{namespace}{}/{direction}/{place}{doubt}", origin.name))
}

/// The name of a set, which changes with the hash of its content `text`: `net4_0123456789abcdef`.
pub fn set(kind: &str, family: Option<Family>, text: &str) -> String {
    let kind = family.map_or_else(|| kind.to_owned(), |family| numbered(kind, family));
    format!("{kind}_{:016x}", hash::stable(&[text]))
}

/// `in4`, `in6`.
pub fn numbered(name: &str, family: Family) -> String {
    match family {
        Family::V4 => format!("{name}4"),
        Family::V6 => format!("{name}6"),
    }
}

/// The longest prefix of `text` that has at most so many bytes.
pub fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn short(name: &str) -> String {
    match name.len() <= NAME_MAX_BYTES {
        true => name.to_owned(),
        false => format!("{}_{:016x}", cut(name, NAME_MAX_BYTES - 17), hash::stable(&[name])),
    }
}
