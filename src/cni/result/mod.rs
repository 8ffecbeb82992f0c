//! Pure. Results: what ADD answers, and what later calls get back as `prevResult`.

mod read;
mod write;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::cni::dns::Dns;
use crate::cni::error::CniError;
use crate::cni::json::{Field, FieldError, FieldErrors};
use crate::cni::route::Route;
use crate::cni::version::Version;

/// A result in the shape of 1.1.0, whatever version it came from or goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// Every interface that was made or used, the host's too.
    pub interfaces: Vec<Interface>,
    /// The addresses.
    pub ips: Vec<IpConfig>,
    /// The container's routes.
    pub routes: Vec<Route>,
    /// Name service settings.
    pub dns: Dns,
}

/// One interface of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC. Text: a loopback interface has an all-zero one, and others' words stay as given.
    pub mac: Option<String>,
    /// Bytes; at least 1.
    pub mtu: Option<u32>,
    /// The namespace it is in, as `CNI_NETNS` gave it; absent: the host's.
    pub sandbox: Option<String>,
    /// The socket that stands for it (vhost-user).
    pub socket_path: Option<String>,
    /// Its place on the PCI bus.
    pub pci_id: Option<String>,
}

/// One address of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// The address with its subnet's length.
    pub address: IpNetwork,
    /// The gateway of that subnet.
    pub gateway: Option<IpAddr>,
    /// Its place in [`CniResult::interfaces`].
    pub interface: Option<usize>,
}

impl CniResult {
    /// The result that stands in `document`, in the words of `version`: the network's. A result
    /// that tells its own version must tell that one.
    ///
    /// # Errors
    /// Code 6, with every fault.
    ///
    /// Source: CNI SPEC, section 5 "Result types", of each version.
    pub fn from_json(document: &Value, version: Version) -> Result<CniResult, CniError> {
        let faults = FieldErrors::default();
        let result = read::result(&Field::root(document, &faults), version);
        let faults: Vec<String> = faults.into_vec().iter().map(FieldError::to_string).collect();
        match result {
            Some(result) if faults.is_empty() => Ok(result),
            _ => Err(CniError::decode(format!("invalid result: {}", faults.join("; ")))),
        }
    }

    /// The same as a part of a configuration; `None` after a fault.
    pub(super) fn read(field: &Field, version: Version) -> Option<CniResult> {
        let own = FieldErrors::default();
        let result = read::result(&field.reporting_to(&own), version);
        let own = own.into_vec();
        if own.is_empty() { result } else { field.report(own) }
    }

    /// The result in the words of `version`. What a version has no word for is left out: 0.3.0 to
    /// 0.4.0 know a route's `dst` and `gw` and an interface's `name`, `mac` and `sandbox`; before
    /// 0.3.0 there are only the first address of each family and the routes of those families.
    ///
    /// # Errors
    /// Code 1: no address at all, in a version before 0.3.0.
    pub fn to_json(&self, version: Version) -> Result<Value, CniError> {
        write::result(self, version)
    }

    /// The interfaces on the host.
    pub fn host_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| interface.sandbox.is_none())
    }

    /// The container's interface `ifname`: the first one of that name that is in a sandbox.
    pub fn container_interface(&self, ifname: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| is_container(interface, ifname))
    }

    /// The addresses on the container's interface `ifname`, in order. An address that names no
    /// interface counts.
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
