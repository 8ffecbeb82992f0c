//! Pure. What a guard is in nftables: a chain at the port that leads to rules that pods share, and the
//! pod's elements of their sets. A frame that finds no element, or no rules, is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::cni::config::NetConf;
use crate::net::gather::Gather;
use crate::net::{Family, IfName, Mac, hash};
use crate::netlink::shaper::priority;
use crate::nft::frame::edit::FrameEdit;
use crate::nft::frame::{FrameAction, FrameChain, FrameRule, FrameTable};
use crate::nft::{Data, Element, ElementChange, Set, Value};
use crate::plan::guard::reason::DropReason;
use crate::plan::guard::rules::{UnicastWay, dscp_rules, rules, sources};
use crate::plan::guard::sets::{MAC, ND6, OWN4, OWN6, PORT, SHAPED, sets, shaped};
use crate::plan::profiles::{PortProfile, Shaped};
use crate::policy::Dscp;

/// The table of the family `netdev` with the guards of all networks of a host.
pub const TABLE: &str = "humanz";

/// What an operator reads at its head.
pub const COMMENT: &str = "humanz: what each pod may send";

/// Raised when the shared rules change: chains of both releases are there until the agent has led the
/// running pods to its own.
const VERSION: u32 = 2;

/// What one pod may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The host's end of its veth.
    pub device: IfName,
    pub mac: Mac,
    pub addresses: Vec<IpAddr>,
    /// Further sources; those that are multicast are destinations instead.
    pub allowed: Vec<IpNetwork>,
    /// The MAC of the device if the host routes what the pod sends; `None`: it is bridged.
    pub routed_by: Option<Mac>,
    /// Of every IP packet that the pod sends; `None`: as the pod says.
    pub dscp: Option<Dscp>,
    /// What it sends unicast passes at the rate of a class; only where the host routes it.
    pub shaped: Option<Shaped>,
}

/// The elements of one device, by set.
pub type Elements = BTreeMap<String, BTreeSet<Element>>;

impl Guard {
    /// That of a pod of the network `conf`, if there is to be one. Isolated ports stay apart: what
    /// the host routes between them would pass.
    pub fn of(
        conf: &NetConf,
        device: &IfName,
        mac: Mac,
        addresses: &[IpAddr],
        host_mac: Option<Mac>,
    ) -> Option<Guard> {
        let routes = conf.guard.routes && conf.is_gateway && !conf.port_isolation;
        conf.guard.is_on.then(|| Guard {
            device: device.clone(),
            mac,
            addresses: addresses.to_vec(),
            allowed: conf.guard.allowed.clone(),
            routed_by: host_mac.filter(|_| routes),
            dscp: None,
            shaped: None,
        })
    }

    /// Its pod has this profile.
    pub fn with_profile(self, profile: Option<&PortProfile>) -> Guard {
        let dscp = profile.and_then(|it| it.profile.dscp);
        let shaped = profile.and_then(|it| it.shaped).filter(|_| self.routed_by.is_some());
        Guard { dscp, shaped, ..self }
    }

    fn way(&self) -> UnicastWay {
        match (self.routed_by, self.shaped) {
            (None, _) => UnicastWay::Bridged,
            (Some(_), None) => UnicastWay::Routed,
            (Some(_), Some(_)) => UnicastWay::Shaped,
        }
    }

    /// The chain at its port.
    pub fn chain(&self) -> FrameChain {
        let rules = vec![leads_to(self.entry_name())];
        FrameChain { name: self.device.to_string(), device: Some(self.device.clone()), rules }
    }

    /// The rules about what passes: pods with the same rights have the same.
    pub fn shared_chain(&self) -> FrameChain {
        let way = self.way();
        FrameChain {
            name: shared_name(way, &self.allowed),
            device: None,
            rules: rules(way, &self.allowed),
        }
    }

    /// What its rules need, which other pods have as well.
    pub fn shared(&self) -> FrameTable {
        let drops = DropReason::ALL.map(DropReason::chain);
        let counters = DropReason::ALL.map(DropReason::counters);
        FrameTable {
            sets: sets().into_iter().chain(counters).chain(self.shaped.map(|_| shaped())).collect(),
            chains: drops
                .into_iter()
                .chain([self.shared_chain()])
                .chain(self.marking_chain())
                .collect(),
        }
    }

    /// Where the chain at its port leads.
    fn entry_name(&self) -> String {
        let shared = shared_name(self.way(), &self.allowed);
        match self.dscp {
            Some(dscp) => format!("{MARKING}{dscp}-{shared}"),
            None => shared,
        }
    }

    /// Marks packets before they are judged.
    fn marking_chain(&self) -> Option<FrameChain> {
        let mut rules = dscp_rules(self.dscp?);
        rules.push(leads_to(shared_name(self.way(), &self.allowed)));
        Some(FrameChain { name: self.entry_name(), device: None, rules })
    }

    /// Its elements, if `index` is that of its device.
    pub fn elements(&self, index: u32) -> Elements {
        let port = || Value::InterfaceIndex(index);
        let own =
            |address: IpAddr| Element::key([port(), Value::Mac(self.mac), Value::address(address)]);
        let of = |family| {
            let of_family = move |address: &IpAddr| Family::of(*address) == family;
            self.addresses.iter().copied().filter(of_family)
        };
        let speaks_ndp =
            of(Family::V6).next().is_some() || sources(&self.allowed, Family::V6).next().is_some();
        let link_local = speaks_ndp.then(|| self.mac.link_local().into());
        let host_mac = |mac| Element {
            data: Some(Data::Values(vec![Value::Mac(mac)])),
            ..Element::key([port()])
        };
        let limit = self.shaped.map(|Shaped { class, device }| Element {
            data: Some(Data::Values(vec![
                Value::Bits(priority(class)),
                Value::InterfaceIndex(device),
            ])),
            ..Element::key([port()])
        });
        let elements: [(&str, BTreeSet<Element>); 6] = [
            (OWN4, of(Family::V4).map(own).gather()),
            (OWN6, of(Family::V6).map(own).gather()),
            (ND6, of(Family::V6).chain(link_local).map(own).gather()),
            (MAC, [Element::key([port(), Value::Mac(self.mac)])].into()),
            (PORT, self.routed_by.into_iter().map(host_mac).gather()),
            (SHAPED, limit.into_iter().gather()),
        ];
        let elements =
            elements.into_iter().filter(|(set, _)| *set != SHAPED || self.shaped.is_some());
        elements.map(|(set, elements)| (set.to_owned(), elements)).gather()
    }

    /// A chain of this name is at the port of a pod.
    pub fn is_device(name: &str) -> bool {
        name.starts_with("hz")
    }

    /// Its chain leads to the one of this name.
    pub fn leads_to(&self, name: &str) -> bool {
        self.entry_name() == name
    }

    /// The changes of the table that make it, of a device that has the elements `found`.
    pub fn edits(&self, index: u32, found: &Elements) -> Vec<FrameEdit> {
        let mut edits = element_edits(found, &self.elements(index));
        edits.push(FrameEdit::Chain(self.chain()));
        edits
    }
}

/// The rule of a port's chain: the rest is in the chain of that name.
pub(super) fn leads_to(chain: String) -> FrameRule {
    let action = FrameAction::Goto(chain);
    FrameRule { comment: "guard".to_owned(), matches: Vec::new(), action }
}

/// The beginning of the names of chains that mark packets.
const MARKING: &str = "dscp-";

/// Pods share the chain of this name, and it marks packets, is of a former release, or for certain
/// `allowedAddresses`: of no use when no other chain leads to it.
pub(super) fn is_dispensable(name: &str) -> bool {
    let is_shared =
        ["routed-", "bridged-", "shaped-", MARKING].iter().any(|begin| name.starts_with(begin));
    let usual = [UnicastWay::Routed, UnicastWay::Bridged];
    is_shared && usual.iter().all(|way| shared_name(*way, &[]) != name)
}

/// The changes of the table that make what guards share, once for all of them.
pub fn shared_edits(shared: &FrameTable) -> Vec<FrameEdit> {
    let table = FrameEdit::Table(COMMENT.to_owned());
    let sets = shared.sets.iter().cloned().map(FrameEdit::Set);
    [table]
        .into_iter()
        .chain(sets)
        .chain(shared.chains.iter().cloned().map(FrameEdit::Chain))
        .collect()
}

/// The changes of elements that turn `found` into `wanted`.
pub fn element_edits(found: &Elements, wanted: &Elements) -> Vec<FrameEdit> {
    let none = BTreeSet::new();
    let change =
        |set: Set| {
            let (found, wanted) =
                (found.get(&set.name).unwrap_or(&none), wanted.get(&set.name).unwrap_or(&none));
            let added: BTreeSet<Element> = wanted.difference(found).cloned().gather();
            let removed: BTreeSet<Element> = found.difference(wanted).cloned().gather();
            (!added.is_empty() || !removed.is_empty()).then_some(FrameEdit::Elements(
                ElementChange { set: set.name, shape: set.shape, added, removed },
            ))
        };
    sets().into_iter().chain([shaped()]).filter_map(change).collect()
}

/// The name of the chain that pods with these rights share.
fn shared_name(way: UnicastWay, allowed: &[IpNetwork]) -> String {
    let kind = match way {
        UnicastWay::Bridged => "bridged",
        UnicastWay::Routed => "routed",
        UnicastWay::Shaped => "shaped",
    };
    if allowed.is_empty() {
        return format!("{kind}-{VERSION}");
    }
    let texts: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    format!("{kind}-{VERSION}-{:016x}", hash::stable(&texts))
}
