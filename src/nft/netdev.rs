//! Chains at the ingress of devices: the family `netdev`, where frames pass before any bridge.
//!
//! Frames have no address family there, so that rules compare bytes of their headers. `Display` is
//! nft's own syntax for raw bytes.

use std::collections::BTreeMap;
use std::fmt;

use neli::consts::nl::NlmF;
use nix::errno::Errno;

use crate::net::{IfName, Mac, hash};
use crate::netlink::{Attributes, Message, NetlinkError};
use crate::nft::expression;
use crate::nft::found;
use crate::nft::handle::Nft;
use crate::nft::message;
use crate::nft::numbers::{chain, expression as list, family, message as kind, rule, table};
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

    fn userdata(&self) -> Vec<u8> {
        let fingerprint = Some(self.fingerprint());
        Userdata { fingerprint, ..Userdata::comment(&self.comment) }.bytes()
    }
}

impl Nft {
    /// Makes the table and these chains, with these rules and no others, in one transaction.
    ///
    /// # Errors
    /// [`NetlinkError`]; `ENOENT` if a device is not there, or the kernel has no nftables for devices.
    pub fn set_device_chains(
        &self,
        table: &str,
        comment: &str,
        chains: &[&DeviceChain],
    ) -> Result<(), NetlinkError> {
        let mut messages = vec![add_table(table, Some(comment))];
        for wanted in chains {
            messages.push(add_chain(table, &wanted.device));
            messages.push(flush_chain(table, wanted.device.as_str()));
            messages.extend(wanted.rules.iter().map(|rule| add_rule(table, &wanted.device, rule)));
        }
        self.transact(messages)
    }

    /// Removes chains of these names, be they there or not. A device that goes takes its chain with
    /// it up to Linux 6.15; later ones keep the chain, and give it to the next device of that name.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete_device_chains<'a>(
        &self,
        table: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), NetlinkError> {
        for name in names {
            let attributes = Attributes::new().text(chain::TABLE, table).text(chain::NAME, name);
            let what = format!("delete chain {name} of table netdev {table}");
            let delete = netdev(what, kind::DELETE_CHAIN, NlmF::empty(), attributes);
            // Before Linux 6.2 or so a chain is refused as busy while it has rules.
            match self.transact(vec![flush_chain(table, name), delete]) {
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Removes a table of the family `netdev`, be it there or not.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete_device_table(&self, table: &str) -> Result<(), NetlinkError> {
        let name = Attributes::new().text(table::NAME, table);
        let what = format!("delete table netdev {table}");
        let delete = netdev(what, kind::DELETE_TABLE, NlmF::empty(), name);
        self.transact(vec![add_table(table, None), delete])
    }

    /// All chains of a table of the family `netdev`; `None` if the table is not there or dormant.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn device_chains(&self, table: &str) -> Result<Option<FoundChains>, NetlinkError> {
        let name = Attributes::new().text(table::NAME, table);
        let request = get(table, kind::GET_TABLE, name);
        match self.socket().ask(&request, found::dormant) {
            Ok(true) => return Ok(None),
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            outcome => outcome?,
        };
        let sizes = self.device_chain_sizes(table)?;
        let mut found: FoundChains = sizes.into_keys().map(|name| (name, Vec::new())).collect();
        let name = Attributes::new().text(rule::TABLE, table);
        for (chain, rule) in self.socket().dump(&get(table, kind::GET_RULE, name), frame_rule)? {
            found.entry(chain).or_default().push(rule);
        }
        Ok(Some(found))
    }

    /// How many rules each chain of a table has; none if the table is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn device_chain_sizes(&self, table: &str) -> Result<BTreeMap<String, u32>, NetlinkError> {
        let chains =
            self.socket().dump(&get(table, kind::GET_CHAIN, Attributes::new()), |reply| {
                let (_, attributes) = found::parts(reply)?;
                // One that is at no hook guards nothing.
                let hooked = attributes.get(chain::HOOK).is_some();
                let place = attributes.text(chain::TABLE).zip(attributes.text(chain::NAME));
                let size = attributes.be32(chain::USE).unwrap_or(0);
                Ok(place.filter(|(of, _)| hooked && of == table).map(|(_, name)| (name, size)))
            })?;
        Ok(chains.into_iter().collect())
    }

    /// The rules of one chain, in order; `None` if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn device_chain(
        &self,
        table: &str,
        device: &IfName,
    ) -> Result<Option<Vec<FoundFrameRule>>, NetlinkError> {
        let place = || Attributes::new().text(chain::TABLE, table);
        let asked = get(table, kind::GET_CHAIN, place().text(chain::NAME, device.as_str()));
        match self.socket().ask(&asked, |_| Ok(())) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            outcome => outcome?,
        }
        let asked = get(table, kind::GET_RULE, place().text(rule::CHAIN, device.as_str()));
        let rules = self.socket().dump(&asked, frame_rule)?.into_iter();
        let own = rules.filter(|(chain, _)| chain == device.as_str());
        Ok(Some(own.map(|(_, rule)| rule).collect()))
    }
}

fn frame_rule(
    reply: &crate::netlink::Reply<'_>,
) -> Result<Option<(String, FoundFrameRule)>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let Some(chain) = attributes.text(rule::CHAIN) else { return Ok(None) };
    let userdata = Userdata::read(attributes.get(rule::USERDATA).unwrap_or_default());
    let mut packets = 0;
    if let Some(expressions) = attributes.nested(rule::EXPRESSIONS)? {
        for (_, bytes) in expressions.iter() {
            let expression = crate::netlink::AttributeList::parse(bytes)?;
            if expression.text(list::NAME).as_deref() == Some("counter")
                && let Some(counter) = expression.nested(list::DATA)?
            {
                packets = counter.be64(list::COUNTER_PACKETS).unwrap_or(0);
            }
        }
    }
    let Userdata { comment, fingerprint, .. } = userdata;
    Ok(Some((chain, FoundFrameRule { fingerprint, comment, packets })))
}

fn netdev(what: String, kind: u16, flags: NlmF, attributes: Attributes) -> Message {
    Message::new(what, kind, flags, &message::header(family::NETDEV), attributes)
}

/// A request about a table of the family `netdev`.
fn get(table: &str, kind: u16, attributes: Attributes) -> Message {
    netdev(format!("list table netdev {table}"), kind, NlmF::empty(), attributes)
}

fn add_table(table: &str, comment: Option<&str>) -> Message {
    let userdata = comment.map(|comment| Userdata::comment(comment).bytes());
    let attributes = Attributes::new().text(table::NAME, table).put_some(table::USERDATA, userdata);
    netdev(format!("add table netdev {table}"), kind::NEW_TABLE, NlmF::CREATE, attributes)
}

fn add_chain(table: &str, device: &IfName) -> Message {
    let hook = Attributes::new()
        .be32(chain::HOOK_NUMBER, chain::INGRESS)
        .put(chain::HOOK_PRIORITY, 0i32.to_be_bytes())
        .text(chain::HOOK_DEVICE, device.as_str());
    let attributes = Attributes::new()
        .text(chain::TABLE, table)
        .text(chain::NAME, device.as_str())
        .nest(chain::HOOK, hook)
        .be32(chain::POLICY, list::DROP)
        .text(chain::TYPE, "filter");
    let what = format!("add chain {device} to table netdev {table}");
    netdev(what, kind::NEW_CHAIN, NlmF::CREATE, attributes)
}

fn flush_chain(table: &str, name: &str) -> Message {
    let attributes = Attributes::new().text(rule::TABLE, table).text(rule::CHAIN, name);
    let what = format!("empty chain {name} of table netdev {table}");
    netdev(what, kind::DELETE_RULE, NlmF::empty(), attributes)
}

fn add_rule(table: &str, device: &IfName, wanted: &FrameRule) -> Message {
    let attributes = Attributes::new()
        .text(rule::TABLE, table)
        .text(rule::CHAIN, device.as_str())
        .nest(rule::EXPRESSIONS, expression::of_frame_rule(wanted))
        .put(rule::USERDATA, wanted.userdata());
    let what = format!("add rule \"{wanted}\" to chain {device} of table netdev {table}");
    netdev(what, kind::NEW_RULE, NlmF::CREATE | NlmF::APPEND, attributes)
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
