//! Pure. What else is on the host and gets in the way of pods, and is not ours to mend.

mod address_conflicts;
mod configurations;
mod sysctls;

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use crate::net::{IfName, PerFamily};

/// What was found on the host, beside what humanz made.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Names of the files beside our CNI configuration, and its own.
    pub configurations: Vec<String>,
    /// Addresses of links that are not ours.
    pub addresses: Vec<(IfName, IpNetwork)>,
    /// Routes that somebody made by hand or by a program of his own, but none through our bridge.
    pub routes: Vec<IpNetwork>,
    /// A kube-proxy has made chains here.
    pub kube_proxy: bool,
    /// Values of the sysctls in [`SYSCTLS`] that are there, in their order.
    pub sysctls: [Option<String>; SYSCTLS.len()],
}

/// What they are held against.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The name of our CNI configuration.
    pub configuration: String,
    /// Where pods have their addresses.
    pub pools: PerFamily<IpNetwork>,
    /// Which families this host's pods have.
    pub subnets: PerFamily<IpNetwork>,
    /// Somebody else sees to forwarding.
    pub forwarding_is_others: bool,
}

/// The sysctls that are looked at, below /proc/sys.
pub const SYSCTLS: [&str; 7] = [
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
];

/// What is in the way, a line each.
pub fn obstacles(wanted: &Wanted, found: &Surroundings) -> BTreeSet<String> {
    let configurations = configurations::before(&wanted.configuration, &found.configurations);
    let overlaps = address_conflicts::inside(&wanted.pools, &found.addresses, &found.routes);
    let value = |key: &str| {
        let at = SYSCTLS.iter().position(|sysctl| *sysctl == key)?;
        found.sysctls[at].as_deref()
    };
    let forwarding = match wanted.forwarding_is_others {
        true => sysctls::forwarding(&wanted.subnets, &value),
        false => Vec::new(),
    };
    let settings = sysctls::obstacles(&wanted.subnets, found.kube_proxy, &value);
    configurations.into_iter().chain(overlaps).chain(forwarding).chain(settings).collect()
}
