//! Pure. Chains at the ingress of devices, where frames pass before any bridge, as they are wanted and
//! found.
//!
//! Frames have no address family there, so that rules compare bytes of their headers. `Display` is
//! nft's own syntax for raw bytes.

use std::collections::BTreeMap;
use std::fmt;

use crate::net::{IfName, Mac, hash};
use crate::nft::userdata::Userdata;

/// Raised when the same rule is encoded in another way than before.
const SHAPE: &str = "1";

/// A chain of the policy `drop` at the ingress of one device; it bears the device's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChain {
    pub device: IfName,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameAction {
    Accept,
    /// The frame goes on to this MAC, one of this host's, instead of the one that it was sent to.
    AcceptTo(Mac),
    /// Counted.
    Drop,
}

/// A rule as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFrameRule {
    /// `None` for a rule of others.
    pub fingerprint: Option<u64>,
    pub comment: Option<String>,
    /// Frames that it counted.
    pub packets: u64,
}

/// What a table of the family `netdev` has: rules in order, by chain.
pub type FoundChains = BTreeMap<String, Vec<FoundFrameRule>>;

impl DeviceChain {
    /// The fingerprints of its rules, in order.
    pub fn fingerprints(&self) -> Vec<u64> {
        self.rules.iter().map(FrameRule::fingerprint).collect()
    }
}

impl FrameRule {
    /// A number that differs when the rule differs.
    pub fn fingerprint(&self) -> u64 {
        hash::stable(&[SHAPE, &self.comment, &self.to_string()])
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
        match self.action {
            FrameAction::Accept => f.write_str("accept"),
            FrameAction::AcceptTo(mac) => {
                write!(f, "ether daddr set {mac} meta pkttype set host accept")
            }
            FrameAction::Drop => f.write_str("counter drop"),
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
                let base = match header {
                    Header::Link => "ll",
                    Header::Network => "nh",
                    Header::Transport => "th",
                };
                write!(f, "@{base},{},{} ", offset * 8, value.len() * 8)?;
                if let Some(mask) = mask {
                    f.write_str("& ")?;
                    hex(f, mask)?;
                    f.write_str(if *compare == Compare::Equal { " == " } else { " " })?;
                }
                f.write_str(compare.sign())?;
                hex(f, value)
            }
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
        let rule = FrameRule {
            comment: String::new(),
            matches: vec![
                bytes(Header::Link, 12, None, Compare::Equal, &[8, 0]),
                bytes(Header::Network, 16, Some(&[255, 0]), Compare::NotEqual, &[127, 0]),
                bytes(Header::Link, 0, Some(&[1]), Compare::Equal, &[0]),
                FrameMatch::Protocol(Compare::NotEqual, 58),
            ],
            action: FrameAction::AcceptTo(Mac([0x0a, 0x58, 0, 0, 0, 1])),
        };
        let text = "@ll,96,16 0x0800 @nh,128,16 & 0xff00 != 0x7f00 @ll,0,8 & 0x01 == 0x00 \
                    meta l4proto != 58 ether daddr set 0a:58:00:00:00:01 meta pkttype set host accept";
        assert_eq!(rule.to_string(), text);
    }
}
