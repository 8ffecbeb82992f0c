//! Pure. Why frames are dropped: for each reason a chain that counts and drops.

use std::fmt;

use crate::nft::frame::{FrameAction, FrameChain, FrameRule};
use crate::nft::{Set, Shape, Type};

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Another source MAC than the pod's.
    Mac,
    /// A server's answer to a client.
    Dhcp,
    /// Neither IP nor ARP, or tagged.
    Protocol,
    /// Somebody else's address in ARP, or not ARP for IPv4.
    Arp,
    /// Router advertisement or solicitation, redirect, or somebody else's address.
    Ndp,
    /// To many, and neither ARP nor NDP.
    Multicast,
    /// To a loopback address of the host.
    Loopback,
    /// Another source address than the pod's.
    Source,
}

impl DropReason {
    pub const ALL: [DropReason; 8] = [
        DropReason::Mac,
        DropReason::Dhcp,
        DropReason::Protocol,
        DropReason::Arp,
        DropReason::Ndp,
        DropReason::Multicast,
        DropReason::Loopback,
        DropReason::Source,
    ];

    /// One word, for metrics.
    pub fn word(self) -> &'static str {
        match self {
            DropReason::Mac => "mac",
            DropReason::Dhcp => "dhcp",
            DropReason::Protocol => "protocol",
            DropReason::Arp => "arp",
            DropReason::Ndp => "ndp",
            DropReason::Multicast => "multicast",
            DropReason::Loopback => "loopback",
            DropReason::Source => "source",
        }
    }

    /// The chain that leads to it.
    pub(super) fn chain_name(self) -> String {
        format!("drop-{self}")
    }

    /// Counts, and drops also what cannot be counted.
    pub(super) fn chain(self) -> FrameChain {
        let rule = |action| FrameRule { comment: self.to_string(), matches: Vec::new(), action };
        let rules = vec![rule(FrameAction::Count(self.counters().name)), rule(FrameAction::Drop)];
        FrameChain { name: self.chain_name(), device: None, rules }
    }

    /// Frames dropped for it, by the index of the device.
    pub fn counters(self) -> Set {
        let shape = Shape::counters(Type::InterfaceIndex);
        Set { name: format!("dropped-{self}"), shape, elements: Default::default() }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
