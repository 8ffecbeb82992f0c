//! Rules that choose a routing table (`ip rule`). Source: linux/fib_rules.h.

use std::fmt;

use ipnetwork::IpNetwork;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::Rtm;
use neli::types::Buffer;

use crate::net::{Family, subnet};
use crate::netlink::wire;
use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// Bytes of `struct fib_rule_hdr`.
const HEADER: usize = 12;

/// FRA_* of linux/fib_rules.h.
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const INPUT: u16 = 3;
const PRIORITY: u16 = 6;
const MARK: u16 = 10;
const SUPPRESS: u16 = 14;
const TABLE: u16 = 15;
const OUTPUT: u16 = 17;
const VRF: u16 = 19;
const USERS: u16 = 20;
const IP_PROTOCOL: u16 = 22;
const SOURCE_PORTS: u16 = 23;
const DESTINATION_PORTS: u16 = 24;

/// FIB_RULE_INVERT.
const INVERT: u32 = 2;

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// The routes of that table, but for those whose prefix is no longer than `suppress`.
    Lookup { table: u32, suppress: Option<u32> },
    /// No packet leaves: `blackhole`, `unreachable`, `prohibit`.
    Refuse(&'static str),
    /// `goto`, `nop`.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingRule {
    pub family: Family,
    /// Lower comes first.
    pub priority: u32,
    pub source: Option<IpNetwork>,
    pub destination: Option<IpNetwork>,
    pub input: Option<String>,
    /// It says `not`.
    pub inverted: bool,
    pub marked: bool,
    /// It has conditions that are not read: an output device, a user, a port, a VRF.
    pub narrow: bool,
    pub action: RuleAction,
}

/// Asks for the rules of a family.
pub fn list(family: Family) -> Message {
    let mut header = [0; HEADER];
    header[0] = u8::from(wire::family_number(family));
    let header = Buffer::from(header.to_vec());
    Message::new("list rules", Rtm::Getrule, NlmF::empty(), &header, Attributes::new())
}

/// The rule in an answer; `None` for other families.
pub fn parse(reply: &Reply<'_>) -> Result<Option<RoutingRule>, NetlinkError> {
    let (header, attributes) = reply.parse::<Buffer>(HEADER)?;
    let &[family, to, from, tos, table, _, _, action, f0, f1, f2, f3] = header.as_ref() else {
        return Ok(None);
    };
    let Some(family) = wire::family_of(family.into()) else { return Ok(None) };
    let network = |kind: u16, prefix: u8| {
        let address = attributes.get(kind).and_then(wire::address)?;
        Some(subnet::with_prefix(address, prefix))
    };
    let has = |kind: u16| attributes.get(kind).is_some();
    let others = [OUTPUT, USERS, IP_PROTOCOL, SOURCE_PORTS, DESTINATION_PORTS];
    let is_vrf = attributes.get(VRF).is_some_and(|value| value != [0]);
    // -1: none.
    let suppress = attributes.u32(SUPPRESS).filter(|length| *length != u32::MAX);
    Ok(Some(RoutingRule {
        family,
        priority: attributes.u32(PRIORITY).unwrap_or(0),
        source: network(SOURCE, from),
        destination: network(DESTINATION, to),
        input: attributes.text(INPUT),
        inverted: u32::from_ne_bytes([f0, f1, f2, f3]) & INVERT != 0,
        marked: attributes.u32(MARK).is_some_and(|mark| mark != 0),
        narrow: tos != 0 || is_vrf || others.into_iter().any(has),
        action: match action {
            1 => {
                let table = attributes.u32(TABLE).unwrap_or(table.into());
                RuleAction::Lookup { table, suppress }
            }
            6 => RuleAction::Refuse("blackhole"),
            7 => RuleAction::Refuse("unreachable"),
            8 => RuleAction::Refuse("prohibit"),
            _ => RuleAction::Other,
        },
    }))
}

impl fmt::Display for RoutingRule {
    /// As `ip rule` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.priority)?;
        if self.inverted {
            f.write_str(" not")?;
        }
        match &self.source {
            Some(source) => write!(f, " from {source}")?,
            None => f.write_str(" from all")?,
        }
        if let Some(destination) = &self.destination {
            write!(f, " to {destination}")?;
        }
        if self.marked {
            f.write_str(" fwmark …")?;
        }
        if let Some(input) = &self.input {
            write!(f, " iif {input}")?;
        }
        match self.action {
            RuleAction::Lookup { table, .. } => write!(f, " lookup {table}"),
            RuleAction::Refuse(what) => write!(f, " {what}"),
            RuleAction::Other => Ok(()),
        }
    }
}
