//! Pure. Sysctls that a pod may request in its own network namespace.

use std::fmt;
use std::str::FromStr;

use crate::net::IfName;

/// The placeholder for the name of the container's interface.
const IFNAME: &str = "IFNAME";

/// Families of sysctls below `net` that each network namespace has.
const FAMILIES: [&str; 7] = ["core", "ipv4", "ipv6", "mptcp", "netfilter", "sctp", "unix"];

/// Sysctls of these families that are global: kernels before 5.13 let any namespace write them.
///
/// Source: net/netfilter/nf_conntrack_standalone.c; net/sysctl_net.c, `ensure_safe_net_sysctl`.
const OF_THE_HOST: [&str; 5] = [
    "net/netfilter/nf_conntrack_buckets",
    "net/netfilter/nf_conntrack_expect_max",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_hooks_lwtunnel",
    "net/netfilter/nf_log_all_netns",
];

/// The longest value, bytes: the kernel accepts at most a page.
const LONGEST_VALUE: usize = 4095;

/// A key below `/proc/sys/net`; it may contain `IFNAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SysctlKey(String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    pub key: SysctlKey,
    /// One line.
    pub value: String,
}

/// A key or value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAllowed(String);

impl SysctlKey {
    /// The name as sysctl(8) prints it: `net.ipv4.conf.eth0/100.rp_filter`.
    pub fn dotted(&self) -> String {
        self.0.chars().map(swapped).collect()
    }

    /// The path below `/proc/sys` for a container's interface.
    pub fn path(&self, ifname: &IfName) -> String {
        let part = |part| if part == IFNAME { ifname.as_str() } else { part };
        self.0.split('/').map(part).collect::<Vec<_>>().join("/")
    }
}

impl FromStr for SysctlKey {
    type Err = NotAllowed;

    /// A key as in sysctl(8): if the first separator is a dot, dots separate and slashes mean dots
    /// (`net.ipv4.conf.eth0/100.rp_filter`); else slashes separate.
    fn from_str(text: &str) -> Result<SysctlKey, NotAllowed> {
        let path: String = match text.find(['.', '/']) {
            Some(at) if text[at..].starts_with('.') => text.chars().map(swapped).collect(),
            _ => text.to_owned(),
        };
        let mut parts = path.split('/');
        let is_net = parts.next() == Some("net");
        let allowed = is_net && parts.next().is_some_and(|family| FAMILIES.contains(&family));
        if !allowed {
            let families = FAMILIES.join(", net.");
            return Err(NotAllowed(format!(
                "{text:?} is not a sysctl of a pod's network; allowed are those below net.{families}"
            )));
        }
        let rest: Vec<&str> = parts.collect();
        let good = |part: &str| {
            !matches!(part, "" | "." | "..") && !part.contains(|c: char| c.is_control())
        };
        if rest.is_empty() || !rest.iter().all(|part| good(part)) {
            return Err(NotAllowed(format!("{text:?} is not the name of a sysctl")));
        }
        if OF_THE_HOST.contains(&path.as_str()) {
            return Err(NotAllowed(format!("{text:?} is global, not of a pod")));
        }
        Ok(SysctlKey(path))
    }
}

impl fmt::Display for SysctlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What stands for `c` where the other separator is used.
fn swapped(c: char) -> char {
    match c {
        '.' => '/',
        '/' => '.',
        c => c,
    }
}

/// `text` as a value: one line, not empty.
///
/// # Errors
/// [`NotAllowed`].
pub(super) fn value(text: &str) -> Result<String, NotAllowed> {
    let refused = |why: &str| Err(NotAllowed(format!("the value {why}")));
    match text {
        _ if text.trim().is_empty() => refused("is empty"),
        _ if text.len() > LONGEST_VALUE => refused("is too long"),
        _ if text.contains(|c: char| c.is_control() && c != '\t') => refused("is not one line"),
        _ => Ok(text.trim().to_owned()),
    }
}

/// Two values are the same: the kernel separates numbers with tabs, people with spaces.
pub fn is_same_value(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(key: &str) -> String {
        key.parse::<SysctlKey>().unwrap().path(&"eth0.100".parse().unwrap())
    }

    #[test]
    fn dots_and_slashes_are_swapped_if_a_dot_comes_first() {
        assert_eq!(path("net.core.somaxconn"), "net/core/somaxconn");
        assert_eq!(path("net/core/somaxconn"), "net/core/somaxconn");
        assert_eq!(path("net.ipv4.conf.eth0/1.rp_filter"), "net/ipv4/conf/eth0.1/rp_filter");
        assert_eq!(path("net/ipv4/conf/eth0.1/rp_filter"), "net/ipv4/conf/eth0.1/rp_filter");
    }

    #[test]
    fn the_placeholder_is_replaced_also_by_a_name_with_a_dot() {
        assert_eq!(path("net.ipv6.conf.IFNAME.accept_ra"), "net/ipv6/conf/eth0.100/accept_ra");
        assert_eq!(path("net/ipv4/conf/IFNAMES/x"), "net/ipv4/conf/IFNAMES/x");
    }

    #[test]
    fn only_sysctls_of_the_pods_network_are_allowed() {
        for (bad, why) in [
            ("kernel.core_pattern", "not a sysctl of a pod's network"),
            ("vm.overcommit_memory", "not a sysctl of a pod's network"),
            ("/net/core/somaxconn", "not a sysctl of a pod's network"),
            ("net", "not a sysctl of a pod's network"),
            ("", "not a sysctl of a pod's network"),
            ("net.nf_conntrack_max", "not a sysctl of a pod's network"),
            ("net.bridge.bridge-nf-call-iptables", "not a sysctl of a pod's network"),
            ("net/ipv4/../../kernel/core_pattern", "not the name of a sysctl"),
            ("net.ipv4.//.//.kernel", "not the name of a sysctl"),
            ("net/core", "not the name of a sysctl"),
            ("net/core/", "not the name of a sysctl"),
            ("net/core//somaxconn", "not the name of a sysctl"),
            ("net/core/a\nb", "not the name of a sysctl"),
            ("net/core/a\0b", "not the name of a sysctl"),
            ("net.netfilter.nf_conntrack_max", "is global"),
        ] {
            let error = bad.parse::<SysctlKey>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad:?}: {error}");
        }
    }

    #[test]
    fn a_value_is_one_line() {
        assert_eq!(value(" 1024\t65535\n".trim_end()), Ok("1024\t65535".to_owned()));
        for bad in ["", "  ", "1\n2", "1\0", &"1".repeat(4096)] {
            assert!(value(bad).is_err(), "{bad:?}");
        }
    }
}
