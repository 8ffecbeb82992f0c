//! Pure. What a change or a problem concerns: as data, and as the text that names it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::net::node_name::NodeName;
use crate::net::{IfName, PortForward};

/// What a change or a problem concerns. In JSON its text, which is read back as [`Object::Named`]; of a
/// [`Problem`](crate::net::Problem), hosts and pods as data, too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// The bridge of the pods.
    Bridge(IfName),
    /// An address of that bridge.
    BridgeAddress(IfName, IpNetwork),
    /// The device of a tunnel.
    Tunnel(IfName),
    /// An address of such a device.
    TunnelAddress(IfName, IpNetwork),
    /// Where a tunnel sends the frames of a host: the address of that host.
    Destination(IpAddr),
    /// The MAC of an address behind a tunnel.
    Neighbour(IpAddr),
    /// The route to pods of another host.
    Route(IpNetwork),
    /// A link of another kind: the kind, as the kernel calls it, and the name.
    Link(String, IfName),
    /// A table of ours in nftables.
    Table(String),
    /// The guard at a pod's port: the name of its link.
    Guard(String),
    /// A bridge that a table with host ports knows: bridge and table.
    TableBridge(IfName, &'static str),
    /// A port of this host that leads to a pod.
    HostPort(PortForward),
    /// A rule of ours in a chain of another program.
    Rule {
        /// `iptables chain FORWARD`.
        chain: String,
        /// `-i` (from pods) or `-o` (to pods).
        option: &'static str,
        bridge: IfName,
    },
    /// A chain of another program: `iptables chain FORWARD`.
    Chain(String),
    /// A sysctl, with slashes.
    Sysctl(String),
    /// The sysctl that lets packets from 127.0.0.1 through a bridge.
    Loopback(IfName),
    /// The configuration for the runtimes.
    Configuration(PathBuf),
    /// A copy of this executable.
    Plugin(PathBuf),
    /// A link to that copy.
    PluginLink(PathBuf),
    /// Another file or folder, and what it is.
    File(&'static str, PathBuf),
    /// A key in etcd.
    Key(String),
    /// All keys of a host in etcd.
    Keys(NodeName),
    /// The lease of a host that has none.
    Lease(NodeName),
    Host(NodeName),
    /// A pod: `namespace/name`, or the start of its container id.
    Pod(String),
    /// A pod subnet or pool.
    Subnet(IpNetwork),
    /// A variable of the settings and its value; empty if it has none, or it does not matter.
    Setting(&'static str, String),
    /// Anything else, by the words that name it.
    Named(String),
}

impl Object {
    pub fn named(name: impl Into<String>) -> Object {
        Object::Named(name.into())
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Object, D::Error> {
        String::deserialize(reader).map(Object::Named)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Bridge(name) => write!(f, "bridge {name}"),
            Object::BridgeAddress(name, address) => write!(f, "address {address} on bridge {name}"),
            Object::Tunnel(name) => write!(f, "tunnel {name}"),
            Object::TunnelAddress(name, address) => write!(f, "address {address} on tunnel {name}"),
            Object::Destination(host) => write!(f, "tunnel to {host}"),
            Object::Neighbour(address) => write!(f, "neighbour {address}"),
            Object::Route(destination) => write!(f, "route {destination}"),
            Object::Link(kind, name) => write!(f, "{kind} {name}"),
            Object::Table(name) => write!(f, "nft table inet {name}"),
            Object::Guard(name) => write!(f, "guard of {name}"),
            Object::TableBridge(name, table) => write!(f, "bridge {name} to table inet {table}"),
            Object::HostPort(forward) => forward.fmt(f),
            Object::Rule { chain, option, bridge } => {
                write!(f, "rule {option} {bridge} -j ACCEPT in {chain}")
            }
            Object::Chain(name) | Object::Named(name) => f.write_str(name),
            Object::Setting(variable, value) if value.is_empty() => f.write_str(variable),
            Object::Setting(variable, value) => write!(f, "{variable}={value}"),
            Object::Sysctl(key) => write!(f, "sysctl {}", key.replace('/', ".")),
            Object::Loopback(name) => write!(f, "sysctl net.ipv4.conf.{name}.route_localnet"),
            Object::Configuration(path) => write!(f, "CNI configuration {}", path.display()),
            Object::Plugin(path) => write!(f, "plugin {}", path.display()),
            Object::PluginLink(path) => write!(f, "link {}", path.display()),
            Object::File(what, path) => write!(f, "{what} {}", path.display()),
            Object::Key(key) => write!(f, "etcd key {key}"),
            Object::Keys(host) => write!(f, "etcd keys of host {host}"),
            Object::Lease(host) => write!(f, "lease of a free subnet for host {host}"),
            Object::Host(name) => write!(f, "host {name}"),
            Object::Pod(name) => write!(f, "pod {name}"),
            Object::Subnet(subnet) => write!(f, "subnet {subnet}"),
        }
    }
}
