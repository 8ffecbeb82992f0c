//! Pure. Every change of a plan as a line for people.

use std::collections::BTreeSet;
use std::fmt;

use crate::net::{IfName, Object};
use crate::netlink::fdb::Destination;
use crate::netlink::neighbour::Neighbour;
use crate::netlink::route::Route;
use crate::nft::{Chain, Element, ElementChange, Flowtable};
use crate::plan::bridge::BridgeChange;
use crate::plan::bridge_ports::{Reattach, SetPortUp};
use crate::plan::encryption::{EncryptionChange, PeerChange};
use crate::plan::firewall::{TableChange, TableDifference};
use crate::plan::host_ports::{HostPortChange, PortElement, TABLE};
use crate::plan::line::{Describe, Line};
use crate::plan::local_macs::LostMac;
use crate::plan::routes::{FoundRoute, NextHop, RouteChange};
use crate::plan::tunnel::{ALIAS, EntryChange, TunnelChange};

/// A line lists this many elements of a set, and counts more.
const ELEMENTS_SHOWN: usize = 8;

impl Describe for BridgeChange {
    fn line(&self) -> Line {
        use BridgeChange::*;
        let (name, what) = match self {
            Create(made) => {
                return Line::added(Object::Bridge(made.name.clone()))
                    .with(format!(" (mac {}, mtu {})", made.mac, made.mtu));
            }
            RemoveAddress(name, address) => {
                return Line::removed(Object::BridgeAddress(name.clone(), *address));
            }
            AddAddress(name, address) => {
                return Line::added(Object::BridgeAddress(name.clone(), *address));
            }
            Rename(from, name) => (name, format!("renamed from {from}")),
            SetMac(name, mac) => (name, format!("mac {mac}")),
            SetMtu(name, mtu) => (name, format!("mtu {mtu}")),
            StopDelays(name) => (name, "spanning tree off".to_owned()),
            SetUp(name) => (name, "up".to_owned()),
        };
        Line::changed(Object::Bridge(name.clone())).with(format!(": {what}"))
    }
}

impl Describe for Reattach {
    fn line(&self) -> Line {
        let Reattach { link, bridge, owner, .. } = self;
        Line::changed(Object::Bridge(bridge.clone())).with(format!(": port {link} ({owner})"))
    }
}

impl Describe for SetPortUp {
    fn line(&self) -> Line {
        let SetPortUp { link, owner, .. } = self;
        let link = Object::Link("interface".to_owned(), link.clone());
        Line::changed(link).with(format!(": up ({owner})"))
    }
}

impl Describe for LostMac {
    fn line(&self) -> Line {
        let LostMac { link, mac, taken_by, .. } = self;
        let before = match taken_by {
            Some(port) => format!("they went to {port}"),
            None => "no port got them".to_owned(),
        };
        let link = Object::Link("interface".to_owned(), link.clone());
        Line::changed(link).with(format!(": takes in frames for its MAC {mac} again ({before})"))
    }
}

impl Describe for RouteChange {
    fn line(&self) -> Line {
        let via = |hop: &NextHop| format!(" via {}", hop.via);
        let mtu = |to: &Route| format!(" (mtu {})", to.mtu.unwrap_or_default());
        match self {
            RouteChange::Add(to, hop) => Line::added(Object::Route(*to)).with(via(hop)),
            RouteChange::Replace(to, hop) => Line::changed(Object::Route(*to)).with(via(hop)),
            RouteChange::Remove(FoundRoute { destination, next_hop, .. }) => {
                let via = next_hop.as_ref().map(via).unwrap_or_default();
                Line::removed(Object::Route(*destination)).with(via)
            }
            RouteChange::AddBlock(to) => Line::added(Object::Route(to.destination)).with(mtu(to)),
            RouteChange::RemoveBlock(to) => {
                Line::removed(Object::Route(to.destination)).with(mtu(to))
            }
        }
    }
}

impl Describe for TunnelChange {
    fn line(&self) -> Line {
        use TunnelChange::*;
        let (name, what) = match self {
            Delete(_, name) => return Line::removed(Object::Tunnel(name.clone())),
            Create(device) => {
                return Line::added(Object::Tunnel(device.name.clone())).with(format!(
                    " (vni {}, port {}, local {}, mac {}, mtu {})",
                    device.vni, device.port, device.local, device.mac, device.mtu_bytes
                ));
            }
            RemoveAddress(name, address) => {
                return Line::removed(Object::TunnelAddress(name.clone(), *address));
            }
            AddAddress(name, address) => {
                return Line::added(Object::TunnelAddress(name.clone(), *address));
            }
            Mark(name) => (name, format!("alias {ALIAS:?}")),
            Detach(name) => (name, "nomaster".to_owned()),
            Set(name, local) => (name, format!("local {local}, no learning")),
            SetMac(name, mac) => (name, format!("mac {mac}")),
            SetMtu(name, mtu) => (name, format!("mtu {mtu}")),
            SetUp(device) => (&device.name, "up".to_owned()),
        };
        Line::changed(Object::Tunnel(name.clone())).with(format!(": {what}"))
    }
}

impl Describe for (&IfName, &EncryptionChange) {
    /// Without the key.
    fn line(&self) -> Line {
        use EncryptionChange::*;
        let (name, change) = (self.0.clone(), self.1);
        let what = match change {
            Delete(_, name) => return Line::removed(Object::Tunnel(name.clone())),
            Create(mtu) => {
                let values = format!(" (encrypted, mtu {mtu})");
                return Line::added(Object::Tunnel(name)).with(values);
            }
            RemoveAddress(address) => {
                return Line::removed(Object::TunnelAddress(name, *address));
            }
            AddAddress(address) => return Line::added(Object::TunnelAddress(name, *address)),
            Mark => format!("alias {ALIAS:?}"),
            Detach => "nomaster".to_owned(),
            SetMtu(mtu) => format!("mtu {mtu}"),
            Configure(port) => format!("key and port {port}"),
            SetUp => "up".to_owned(),
        };
        Line::changed(Object::Tunnel(name)).with(format!(": {what}"))
    }
}

impl Describe for PeerChange {
    fn line(&self) -> Line {
        match self {
            PeerChange::Set(address, peer) => {
                let subnets: Vec<String> = peer.allowed.iter().map(ToString::to_string).collect();
                Line::added(Object::Destination(*address)).with(format!(": {}", subnets.join(", ")))
            }
            PeerChange::Remove(Some(endpoint), _) => {
                Line::removed(Object::Destination(endpoint.ip()))
            }
            PeerChange::Remove(None, key) => Line::removed(Object::named(format!("peer {key}"))),
        }
    }
}

impl Describe for EntryChange {
    fn line(&self) -> Line {
        match self {
            EntryChange::SetDestination(entry) => destination(Line::added, entry),
            EntryChange::RemoveDestination(entry) => destination(Line::removed, entry),
            EntryChange::SetNeighbour(entry) => neighbour(Line::added, entry),
            EntryChange::RemoveNeighbour(entry) => neighbour(Line::removed, entry),
        }
    }
}

fn destination(line: fn(Object) -> Line, entry: &Destination) -> Line {
    let port = entry.port.map(|port| format!(" port {port}")).unwrap_or_default();
    line(Object::Destination(entry.address)).with(format!("{port} (mac {})", entry.mac))
}

fn neighbour(line: fn(Object) -> Line, entry: &Neighbour) -> Line {
    line(Object::Neighbour(entry.address)).with(format!(" (mac {}) of the tunnel", entry.mac))
}

impl Describe for HostPortChange {
    fn line(&self) -> Line {
        match self {
            HostPortChange::Table => Line::changed(Object::Table(TABLE.to_owned())),
            HostPortChange::Bridge(name) => Line::added(Object::TableBridge(name.clone(), TABLE)),
            HostPortChange::Add(element) => host_port(Line::added, element),
            HostPortChange::Replace(element) => host_port(Line::changed, element),
            HostPortChange::Remove(found) => host_port(Line::removed, found),
        }
    }
}

fn host_port(line: fn(Object) -> Line, element: &PortElement) -> Line {
    let comment = element.comment.as_deref().unwrap_or("no comment");
    line(Object::HostPort(element.forward)).with(format!(" ({comment})"))
}

impl Describe for TableChange {
    fn line(&self) -> Line {
        let table = Object::Table(self.table.clone());
        match &self.difference {
            TableDifference::Missing => Line::added(table),
            TableDifference::Unwanted => Line::removed(table),
            difference => Line::changed(table).with(format!(": {difference}")),
        }
    }
}

impl fmt::Display for TableDifference {
    /// As in `chain forward missing`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableDifference::Missing => f.write_str("missing"),
            TableDifference::Unwanted => f.write_str("not wanted"),
            TableDifference::Dormant => f.write_str("dormant"),
            TableDifference::ChainMissing(name) => write!(f, "chain {name} missing"),
            TableDifference::ChainForeign(name) => write!(f, "chain {name} not ours"),
            TableDifference::ChainDiffers(name, found, wanted) => {
                write!(f, "chain {name} is \"{found}\" and not \"{wanted}\"")
            }
            TableDifference::RuleMissing(chain, rule) => {
                write!(f, "rule missing in chain {chain}: {rule}")
            }
            TableDifference::RuleForeign(chain, handle, comment) => {
                write!(f, "rule not ours in chain {chain}: handle {handle}")?;
                comment.iter().try_for_each(|comment| write!(f, ", {comment:?}"))
            }
            TableDifference::RulesLacking(Chain { name, rules, .. }) => {
                let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
                write!(f, "rules missing in chain {name}: {}", rules.join("; "))
            }
            TableDifference::RulesDisordered(chain) => {
                write!(f, "rules out of order in chain {chain}")
            }
            TableDifference::SetMissing(name) => write!(f, "set {name} missing"),
            TableDifference::SetForeign(name) => write!(f, "set {name} not ours"),
            TableDifference::SetDiffers(name) => write!(f, "set {name} is of another type"),
            TableDifference::Flowtable(found, wanted) => {
                let (found, wanted) = (flowtables(found), flowtables(wanted.as_slice()));
                write!(f, "flow table is {found} and not {wanted}")
            }
            TableDifference::Elements(ElementChange { set, added, removed, .. }) => {
                write!(f, "set {set}:{}{}", elements('+', added), elements('-', removed))
            }
        }
    }
}

/// `pods (br0 eth0)`; `none` for none.
fn flowtables(flowtables: &[Flowtable]) -> String {
    let text = |flowtable: &Flowtable| {
        let devices: Vec<_> = flowtable.devices.iter().map(ToString::to_string).collect();
        format!("{} ({})", flowtable.name, devices.join(" "))
    };
    let texts: Vec<_> = flowtables.iter().map(text).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

/// ` +192.0.2.1 +192.0.2.2`, or ` +300 elements`; nothing for nothing.
fn elements(sign: char, all: &BTreeSet<Element>) -> String {
    match all.len() {
        0..=ELEMENTS_SHOWN => all.iter().map(|element| format!(" {sign}{element}")).collect(),
        count => format!(" {sign}{count} elements"),
    }
}
