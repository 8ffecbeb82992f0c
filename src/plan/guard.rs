//! Pure. The guard at each pod's port: what a pod may send, as a chain at the ingress of the host's
//! end of its veth, where frames pass before the bridge sees them.
//!
//! A pod sends as itself only: with its MAC, its addresses and what the network allows besides, in
//! IP, ARP and NDP. It does not play router (RA, redirect), DHCP server or switch (BPDU, tags).
//! Unicast IP goes to the MAC of the host's end, which the bridge takes for its own, whatever MAC the
//! pod sent it to. So the host routes it: also a packet to a pod of the same host passes the hooks of
//! netfilter. (The bridge's MAC would do as well, but somebody may change it.)
//!
//! The rules are the same for all pods with the same rights, and are there once; what differs from pod to
//! pod are elements of sets. (With rules of its own for each pod an ADD beside 250 pods took 1 ms longer:
//! the kernel walks all rules of a table whenever one is added.)

mod added;
mod changes;
mod layout;
mod ports;
mod reason;
mod rules;
mod sets;
#[cfg(test)]
mod tests;

use crate::net::IfName;

pub use added::Transactions;
pub use changes::{
    GuardChange, GuardTable, LEFTOVERS, all_sets, changes, left, leftovers, of_device,
};
pub use layout::{COMMENT, Guard, TABLE, shared_edits};
pub use ports::{FoundPorts, PodPort, ports};
pub use reason::DropReason;

/// What goes with guards: the bridge ignores router advertisements and redirects, and sends none to
/// pods whose packets leave as they came in, by the bridge. Of `all` and the bridge's own setting it
/// is enough that one wants redirects to be sent (kernel: Documentation/networking/ip-sysctl.rst);
/// other links have settings of their own.
pub fn guard_sysctls(bridge: &IfName) -> [(String, &'static str); 5] {
    let of = |family: &str, name: &str, key: &str| (format!("net/{family}/conf/{name}/{key}"), "0");
    [
        of("ipv6", bridge.as_str(), "accept_ra"),
        of("ipv6", bridge.as_str(), "accept_redirects"),
        of("ipv4", bridge.as_str(), "accept_redirects"),
        of("ipv4", bridge.as_str(), "send_redirects"),
        of("ipv4", "all", "send_redirects"),
    ]
}
