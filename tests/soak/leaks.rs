//! Everything on a host that could leak.

use std::collections::BTreeMap;

use crate::support::{Node, Place};

/// How much there is, and how much more there may be without being a leak.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub value: u64,
    pub spare: u64,
}

/// The counted objects on a host, with the command that counts them.
const KERNEL: [(&str, &str); 8] = [
    ("links", "ip -o link | wc -l"),
    ("addresses", "ip -o address | wc -l"),
    ("namespaces", "ip netns list | wc -l"),
    ("routes", "ip route show table all proto 104 | wc -l"),
    (
        "lines of nftables but for guards",
        "nft list ruleset | awk '/^table/ {of_guards = $2 == \"netdev\"} !of_guards' | wc -l",
    ),
    ("files of the store", "find /run/humanz/ipam -type f | grep -v -e cursor -e /.calls/ | wc -l"),
    // Two logs, their sum, a new one and the lock, as soon as there were some thousand calls.
    (
        "files of the counter of calls beyond five",
        "find /run/humanz/ipam/.calls | tail -n +7 | wc -l",
    ),
    ("files of the state", "find /var/lib/humanz -type f | wc -l"),
];

/// What up to 256 pods have left in their guards stays until the next full check (`LEFTOVERS`): a chain and some
/// elements of sets for each.
const GUARDS: (&str, &str, u64) =
    ("lines of guards", "nft list table netdev humanz | wc -l", 256 * 12);

/// The agent's process; memory in KiB, in pages that only it has.
const AGENT: [(&str, &str, u64); 3] = [
    ("descriptors of the agent", "ls /proc/$(pgrep -o humanz-agent)/fd | wc -l", 4),
    ("threads of the agent", "ls /proc/$(pgrep -o humanz-agent)/task | wc -l", 1),
    (
        "memory of the agent",
        "awk '/^RssAnon/ {print $2}' /proc/$(pgrep -o humanz-agent)/status",
        4096,
    ),
];

/// Counts all of it; the agent's memory only where it has run from the beginning.
pub fn count(host: &Node, agent: bool, counts: &mut BTreeMap<String, Count>) {
    let mut number = |what: &str, script: &str, spare: u64| {
        let text = host.shell(script).stdout;
        let value = text.trim().parse().unwrap_or_else(|_| panic!("{what}: {text:?}"));
        counts.insert(format!("{}: {what}", host.name()), Count { value, spare });
    };
    for (what, script) in KERNEL {
        number(what, script, 0);
    }
    let of_agent = AGENT.into_iter().filter(|_| agent);
    for (what, script, spare) in of_agent.chain([GUARDS]) {
        number(what, script, spare);
    }
}

/// Counts that have grown.
pub fn grown(name: &str, before: Count, now: Count) -> Option<String> {
    let more = now.value > before.value + before.spare;
    more.then(|| format!("{name}: {} instead of {}", now.value, before.value))
}
