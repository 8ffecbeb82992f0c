//! Pure. What the kernel says of a change of a table of the family `netdev`.

use crate::netlink::AttributeList;
use crate::nft::numbers::{chain, expression as list, message as kind, rule, set};
use crate::nft::set::entry::{Entry, entries};
use crate::nft::userdata::Userdata;

/// One message of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameNotice {
    /// A chain with the policy `drop` came or was confirmed, at the device of its name.
    DeviceChain { table: String, name: String },
    /// A rule came; without a fingerprint it is one of others.
    Rule { table: String, chain: String, fingerprint: Option<u64> },
    /// Elements of a set came, whose keys begin with these numbers.
    Elements { table: String, set: String, indexes: Vec<u32> },
    /// Something else: also all that went.
    Other,
}

impl FrameNotice {
    /// Of a message of this kind. `body`: from its `struct nfgenmsg` on.
    pub fn read(number: u16, body: &[u8]) -> FrameNotice {
        let attributes = body.get(4..).map(AttributeList::parse);
        let Some(Ok(attributes)) = attributes else { return FrameNotice::Other };
        let notice = match number {
            kind::NEW_CHAIN => device_chain(&attributes),
            kind::NEW_RULE => rule_of(&attributes),
            kind::NEW_ELEMENT => elements(&attributes),
            _ => None,
        };
        notice.unwrap_or(FrameNotice::Other)
    }
}

fn device_chain(attributes: &AttributeList<'_>) -> Option<FrameNotice> {
    let (table, name) = (attributes.text(chain::TABLE)?, attributes.text(chain::NAME)?);
    let device = attributes.nested(chain::HOOK).ok()??.text(chain::HOOK_DEVICE)?;
    let drops = attributes.be32(chain::POLICY) == Some(list::DROP);
    (drops && device == name).then_some(FrameNotice::DeviceChain { table, name })
}

fn rule_of(attributes: &AttributeList<'_>) -> Option<FrameNotice> {
    let (table, chain) = (attributes.text(rule::TABLE)?, attributes.text(rule::CHAIN)?);
    let userdata = Userdata::read(attributes.get(rule::USERDATA).unwrap_or_default());
    Some(FrameNotice::Rule { table, chain, fingerprint: userdata.fingerprint })
}

fn elements(attributes: &AttributeList<'_>) -> Option<FrameNotice> {
    let (table, set) = (attributes.text(set::LIST_TABLE)?, attributes.text(set::LIST_SET)?);
    let index = |entry: &Entry| {
        let bytes = entry.key().first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let indexes = entries(attributes).ok()?.iter().map(index).collect::<Option<Vec<u32>>>()?;
    Some(FrameNotice::Elements { table, set, indexes })
}
