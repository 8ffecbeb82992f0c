//! Pure. Chains that frames pass at the ingress of devices, before any bridge, as they are wanted and
//! found.
//!
//! Frames have no address family there, so that rules compare bytes of their headers. `Display` is
//! nft's own syntax for raw bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::net::{Family, IfName, hash};
use crate::nft::set::{Element, Set};
use crate::nft::userdata::Userdata;

pub mod edit;
pub mod notice;

/// Raised when the same rule is encoded in another way than before.
const SHAPE: &str = "1";

/// What is to be in a table of the family `netdev`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameTable {
    /// Without what rules put into them.
    pub sets: Vec<Set>,
    /// Each leads to earlier ones only.
    pub chains: Vec<FrameChain>,
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameChain {
    pub name: String,
    /// The device at whose ingress it is, with the policy `drop`. `None`: others lead to it.
    pub device: Option<IfName>,
    pub rules: Vec<FrameRule>,
}

/// One rule: if all `matches` hold, `action` is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRule {
    /// At most 127 bytes.
    pub comment: String,
    /// Evaluated from left to right. Bytes that a frame does not have match nothing.
    pub matches: Vec<FrameMatch>,
    pub action: FrameAction,
}

/// A condition on a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameMatch {
    /// The bytes from `offset` on, as many as `value` has.
    Bytes { header: Header, offset: u32, mask: Option<Vec<u8>>, compare: Compare, value: Vec<u8> },
    /// The transport protocol, behind all IPv6 extension headers.
    Protocol(Compare, u8),
    /// The set of this name has, or has not, an element of the device's index and bytes of the frame:
    /// from where, and how many.
    Listed { set: &'static str, fields: Vec<(Header, u32, u32)>, inside: bool },
}

/// Where bytes are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    Link,
    Network,
    /// Only in packets that are no later fragments.
    Transport,
}

/// How bytes compare with a value, in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    AtLeast,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameAction {
    Accept,
    /// The frame goes on to the MAC that this map has for the device's index, one of this host's,
    /// instead of the one that it was sent to.
    AcceptTo(&'static str),
    /// As [`FrameAction::AcceptTo`] the first map, but by way of a device, with a priority: both are what the
    /// second map has for the device's index.
    AcceptThrough(&'static str, &'static str),
    /// The frame is counted in this set, by the device's index; the next rule follows, be there room
    /// or not.
    Count(String),
    /// The packet of this family gets this DSCP, 0 to 63; the next rule follows.
    SetDscp(Family, u8),
    Drop,
    Goto(String),
}

/// A rule as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFrameRule {
    /// `None` for a rule of others.
    pub fingerprint: Option<u64>,
    pub comment: Option<String>,
}

/// A chain as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundFrameChain {
    /// It is at a hook.
    pub is_base: bool,
    /// So many rules lead to it.
    pub references: usize,
    pub rules: Vec<FoundFrameRule>,
}

/// What a table of the family `netdev` has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundFrames {
    /// It is there and does nothing.
    pub is_dormant: bool,
    pub chains: BTreeMap<String, FoundFrameChain>,
    /// By set, of those that are there.
    pub elements: BTreeMap<String, BTreeSet<Element>>,
}

impl FrameChain {
    /// The rules of the kernel are its own.
    pub fn is_whole(&self, found: Option<&FoundFrameChain>) -> bool {
        found.is_some_and(|found| {
            let own = self.rules.iter().map(|rule| Some(rule.fingerprint()));
            found.is_base == self.device.is_some()
                && own.eq(found.rules.iter().map(|rule| rule.fingerprint))
        })
    }
}

impl FrameRule {
    /// A number that differs when the rule differs.
    pub fn fingerprint(&self) -> u64 {
        hash::stable_texts(&[&SHAPE, &self.comment, self])
    }

    pub(super) fn userdata(&self) -> Vec<u8> {
        let fingerprint = Some(self.fingerprint());
        Userdata { fingerprint, ..Userdata::comment(&self.comment) }.bytes()
    }
}

impl fmt::Display for FrameRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.matches {
            write!(f, "{condition} ")?;
        }
        match &self.action {
            FrameAction::Accept => f.write_str("accept"),
            FrameAction::AcceptTo(map) => {
                write!(f, "ether daddr set iif map @{map} meta pkttype set host accept")
            }
            FrameAction::AcceptThrough(map, through) => write!(
                f,
                "ether daddr set iif map @{map} meta pkttype set host meta priority fwd to iif map @{through}"
            ),
            FrameAction::Count(set) => write!(f, "add @{set} {{ iif counter }}"),
            FrameAction::SetDscp(Family::V4, dscp) => write!(f, "ip dscp set {dscp}"),
            FrameAction::SetDscp(Family::V6, dscp) => write!(f, "ip6 dscp set {dscp}"),
            FrameAction::Drop => f.write_str("drop"),
            FrameAction::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

impl fmt::Display for FrameMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            f.write_str("0x")?;
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        match self {
            FrameMatch::Protocol(compare, protocol) => {
                write!(f, "meta l4proto {}{protocol}", compare.sign())
            }
            FrameMatch::Bytes { header, offset, mask, compare, value } => {
                write!(f, "@{},{},{} ", header.name(), offset * 8, value.len() * 8)?;
                if let Some(mask) = mask {
                    f.write_str("& ")?;
                    hex(f, mask)?;
                    f.write_str(if *compare == Compare::Equal { " == " } else { " " })?;
                }
                f.write_str(compare.sign())?;
                hex(f, value)
            }
            FrameMatch::Listed { set, fields, inside } => {
                f.write_str("iif")?;
                for (header, offset, length) in fields {
                    write!(f, " . @{},{},{}", header.name(), offset * 8, length * 8)?;
                }
                write!(f, " {}@{set}", if *inside { "" } else { "!= " })
            }
        }
    }
}

impl Header {
    fn name(self) -> &'static str {
        match self {
            Header::Link => "ll",
            Header::Network => "nh",
            Header::Transport => "th",
        }
    }
}

impl Compare {
    fn sign(self) -> &'static str {
        match self {
            Compare::Equal => "",
            Compare::NotEqual => "!= ",
            Compare::Less => "< ",
            Compare::AtLeast => ">= ",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_reads_as_nft_writes_it() {
        let bytes = |header, offset, mask: Option<&[u8]>, compare, value: &[u8]| {
            let (mask, value) = (mask.map(<[u8]>::to_vec), value.to_vec());
            FrameMatch::Bytes { header, offset, mask, compare, value }
        };
        let fields = vec![(Header::Link, 6, 6), (Header::Network, 12, 4)];
        let rule = FrameRule {
            comment: String::new(),
            matches: vec![
                bytes(Header::Link, 12, None, Compare::Equal, &[8, 0]),
                bytes(Header::Network, 16, Some(&[255, 0]), Compare::NotEqual, &[127, 0]),
                bytes(Header::Link, 0, Some(&[1]), Compare::Equal, &[0]),
                FrameMatch::Protocol(Compare::NotEqual, 58),
                FrameMatch::Listed { set: "own4", fields, inside: true },
            ],
            action: FrameAction::AcceptTo("port"),
        };
        let text = "@ll,96,16 0x0800 @nh,128,16 & 0xff00 != 0x7f00 @ll,0,8 & 0x01 == 0x00 \
                    meta l4proto != 58 iif . @ll,48,48 . @nh,96,32 @own4 \
                    ether daddr set iif map @port meta pkttype set host accept";
        assert_eq!(rule.to_string(), text);
    }
}
