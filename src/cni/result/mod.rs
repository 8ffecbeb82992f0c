//! Pure. Results: the reply to ADD, and `prevResult` of later calls.

mod read;
mod write;

use std::net::IpAddr;

use crate::cni::dns::Dns;
use crate::cni::route::CniRoute;
use crate::net::Family;
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
    /// With the interfaces of `other`, a result for the same container: those on the host that both have count
    /// once.
    pub fn and(mut self, other: CniResult) -> CniResult {
        let mut places = Vec::new();
        for interface in other.interfaces {
            let known = self.interfaces.iter().position(|known| {
                known.sandbox.is_none()
                    && (&known.name, &known.sandbox) == (&interface.name, &interface.sandbox)
            });
            places.push(known.unwrap_or(self.interfaces.len()));
            if known.is_none() {
                self.interfaces.push(interface);
            }
        }
        let placed = |ip: IpConfig| IpConfig { interface: ip.interface.map(|it| places[it]), ..ip };
        self.ips.extend(other.ips.into_iter().map(placed));
        self.routes.extend(other.routes);
        if self.dns == Dns::default() {
            self.dns = other.dns;
        }
        self
    }

    /// Each route with a gateway: without one of its own, that of the first address of its family.
    pub fn with_gateways(mut self) -> CniResult {
        let gateway = |route: &CniRoute| {
            let of_family = |ip: &&IpConfig| Family::of(ip.address.ip()) == route.family();
            self.ips.iter().filter(of_family).find_map(|ip| ip.gateway)
        };
        let gateways: Vec<Option<IpAddr>> = self.routes.iter().map(gateway).collect();
        for (route, gateway) in self.routes.iter_mut().zip(gateways) {
            route.gw = route.gw.or(gateway);
        }
        self
    }

    /// What of it is about the container's interface `ifname`: without the addresses of its other interfaces, and
    /// the routes through their gateways.
    pub fn of_interface(&self, ifname: &str) -> CniResult {
        let own: Vec<IpConfig> = self.container_addresses(ifname).copied().collect();
        let is_other = |ip: &&IpConfig| !own.contains(ip);
        let gateways: Vec<IpAddr> =
            self.ips.iter().filter(is_other).filter_map(|ip| ip.gateway).collect();
        let is_own =
            |gw: &IpAddr| own.iter().any(|ip| ip.gateway == Some(*gw)) || !gateways.contains(gw);
        let mut result = self.clone();
        result.routes.retain(|route| route.gw.as_ref().is_none_or(is_own));
        result.ips = own;
        result
    }

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
