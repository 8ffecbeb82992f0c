//! Pure. A pod's attachment as it should be.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{IfName, Mac};
use crate::netlink::link::PortFlags;
use crate::netlink::route::Route;
use crate::plan::pod::requested::RequestedSettings;

/// An address of a pod, with the subnet's length, and its gateway on the same link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    pub address: IpNetwork,
    pub gateway: Option<IpAddr>,
}

/// One interface of one pod, as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInterface {
    pub host_ifname: IfName,
    /// `None`: any.
    pub host_mac: Option<Mac>,
    /// Of the host's end, in bytes; `None`: any.
    pub host_mtu: Option<u32>,
    pub port: PortFlags,
    /// Name of the pod's end.
    pub ifname: IfName,
    /// `None`: any.
    pub mac: Option<Mac>,
    /// Of the pod's end, in bytes; `None`: any.
    pub mtu: Option<u32>,
    pub addresses: Vec<IpNetwork>,
    /// Their device is the pod's end.
    pub routes: Vec<Route>,
    /// Default routes, each of them left out if the pod has one already.
    pub defaults: Vec<Route>,
    /// Those to the network's addresses, each where the default route of its family is left out.
    pub instead: Vec<Route>,
    pub requested: RequestedSettings,
}
