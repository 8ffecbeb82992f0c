//! Pure. The pod traffic that firewalls must let through.

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, PerFamily};

/// The traffic that must get through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The bridge that the pods are plugged into.
    pub bridge: IfName,
    /// The interface that leads to the other hosts; none on a host without a network.
    pub uplink: Option<IfName>,
    /// Where packets of other hosts' pods come in, and go out to them: that, or tunnels.
    pub pods_come_by: Vec<IfName>,
    /// Where this host's pods have their addresses.
    pub subnets: PerFamily<IpNetwork>,
    /// Where the pods of all hosts have them.
    pub pools: PerFamily<IpNetwork>,
    /// Families whose packets from pod to pod on the bridge are shown to firewalls
    /// (`bridge-nf-call-iptables`).
    pub bridged: Vec<Family>,
}
