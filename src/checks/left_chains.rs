//! Pure. Chains of iptables that a reference plugin has left in the table `nat`: as they are listed, and removed.

use crate::net::Family;

/// Chains that a text lists; the command that removes them has all.
const LISTED: usize = 3;

/// `iptables` or `ip6tables`.
pub fn program(family: Family) -> &'static str {
    if family == Family::V4 { "iptables" } else { "ip6tables" }
}

/// The first of `names`, and how many more there are.
pub fn list(names: &[&str]) -> String {
    let listed = names[..names.len().min(LISTED)].join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

/// The command that removes the chains `names`, and rules that lead to them. A name is of letters, digits and `-`.
pub fn removal(family: Family, names: &[&str]) -> String {
    let program = program(family);
    let all: String = names.iter().map(|name| format!(" -e {name}")).collect();
    format!("{program}-save -t nat | grep -v{all} | {program}-restore")
}
