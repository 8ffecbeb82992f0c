//! Pure. Results: the reply to ADD, and `prevResult` of later calls.

mod read;
mod write;

use std::net::IpAddr;

use crate::cni::dns::Dns;
use crate::cni::route::CniRoute;
use ipnetwork::IpNetwork;

/// A result in the format of 1.1.0, whatever version it is read from or written in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// Every interface that was created or used, also on the host.
    pub interfaces: Vec<Interface>,
    pub ips: Vec<IpConfig>,
    pub routes: Vec<CniRoute>,
    pub dns: Dns,
}

/// One interface of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Text: a loopback interface has an all-zero one, and foreign values are not changed.
    pub mac: Option<String>,
    /// Bytes; at least 1.
    pub mtu: Option<u32>,
    /// `CNI_NETNS` of its namespace; absent: the host's.
    pub sandbox: Option<String>,
    /// vhost-user.
    pub socket_path: Option<String>,
    pub pci_id: Option<String>,
}

/// One address of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// With its subnet's length.
    pub address: IpNetwork,
    pub gateway: Option<IpAddr>,
    /// Index in [`CniResult::interfaces`].
    pub interface: Option<usize>,
}

impl CniResult {
    /// The interfaces on the host.
    pub fn host_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| interface.sandbox.is_none())
    }

    /// The container's interface `ifname`: the first one of that name that is in a sandbox.
    pub fn container_interface(&self, ifname: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| is_container(interface, ifname))
    }

    /// The addresses of the container's interface `ifname`, in order, and those without an interface.
    pub fn container_addresses(&self, ifname: &str) -> impl Iterator<Item = &IpConfig> {
        self.ips.iter().filter(move |ip| match ip.interface {
            Some(place) => {
                self.interfaces.get(place).is_some_and(|found| is_container(found, ifname))
            }
            None => true,
        })
    }
}

fn is_container(interface: &Interface, ifname: &str) -> bool {
    interface.name == ifname && interface.sandbox.is_some()
}

#[cfg(test)]
mod tests;
