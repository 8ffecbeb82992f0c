//! Pure. Generic netlink: families by name, and the header of their messages. Source: linux/genetlink.h.

use neli::consts::nl::NlmF;

use crate::netlink::error::NetlinkError;
use crate::netlink::{AttributeList, Attributes, Message, Reply};

/// GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME.
const CONTROL: GenericFamily = GenericFamily(0x10);
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Bytes of `struct genlmsghdr`: command, version, two reserved.
const HEADER: usize = 4;

/// `genlmsghdr.version`, the same for all families in use.
const VERSION: u8 = 1;

/// The number that the kernel gave a family; another one after the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenericFamily(u16);

/// Asks for the number of a family; `ENOENT` if the kernel has no such family, and no module for it.
pub(super) fn family(name: &str) -> Message {
    let attributes = Attributes::new().text(FAMILY_NAME, name);
    message(CONTROL, GET_FAMILY, format!("find generic netlink family {name}"), attributes)
}

/// The number in the answer to [`family`].
pub(super) fn parse_family(reply: &Reply<'_>) -> Result<GenericFamily, NetlinkError> {
    let missing = || NetlinkError::Malformed("a generic netlink family without number".to_owned());
    let id = attributes(reply)?.array(FAMILY_ID).map(u16::from_ne_bytes);
    id.map(GenericFamily).ok_or_else(missing)
}

/// A request of a family; `what` it asks for.
pub(super) fn message(
    family: GenericFamily,
    command: u8,
    what: String,
    attributes: Attributes,
) -> Message {
    let header = u32::from_ne_bytes([command, VERSION, 0, 0]);
    Message::new(what, family.0, NlmF::empty(), &header, attributes)
}

/// The attributes of an answer.
pub(super) fn attributes<'a>(reply: &Reply<'a>) -> Result<AttributeList<'a>, NetlinkError> {
    let short = || NetlinkError::Malformed("a generic netlink message without header".to_owned());
    AttributeList::parse(reply.body().get(HEADER..).ok_or_else(short)?)
}

#[cfg(test)]
impl GenericFamily {
    /// As a test knows it.
    pub(super) fn numbered(number: u16) -> GenericFamily {
        GenericFamily(number)
    }
}
