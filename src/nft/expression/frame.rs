//! Pure. Rules at a device's ingress as expressions: frames, before there is a connection.

use crate::net::Family;
use crate::netlink::Attributes;
use crate::nft::expression::list::{ExpressionList, lookup, register};
use crate::nft::frame::{Compare, FrameAction, FrameMatch, FrameRule, Header};
use crate::nft::numbers::expression as n;
use crate::nft::set::value::value;
use crate::nft::verdict::Verdict;

/// The list of the expressions of a rule at a device's ingress.
pub fn of_frame_rule(rule: &FrameRule) -> Attributes {
    let list = rule.matches.iter().fold(ExpressionList::default(), ExpressionList::frame_condition);
    match &rule.action {
        FrameAction::Accept => list.verdict(&Verdict::Accept),
        FrameAction::AcceptTo(map) => list.send_to(map).verdict(&Verdict::Accept),
        FrameAction::AcceptThrough(map, through) => list.send_to(map).forward(through),
        FrameAction::Count(set) => list.count_in(set),
        FrameAction::SetDscp(family, dscp) => list.set_dscp(*family, *dscp),
        FrameAction::Drop => list.verdict(&Verdict::Drop),
        FrameAction::Goto(chain) => list.verdict(&Verdict::Goto(chain.clone())),
    }
    .expressions
}

impl ExpressionList {
    fn frame_condition(self, condition: &FrameMatch) -> ExpressionList {
        let operation = |compare: &Compare| match compare {
            Compare::Equal => n::EQUAL,
            Compare::NotEqual => n::NOT_EQUAL,
            Compare::Less => n::LESS,
            Compare::AtLeast => n::AT_LEAST,
        };
        match condition {
            FrameMatch::Protocol(compare, protocol) => {
                self.meta(n::L4_PROTOCOL).compare(operation(compare), &[*protocol])
            }
            FrameMatch::Bytes { header, offset, mask, compare, value } => {
                let place = (*offset, value.len() as u32);
                let list = self.payload_into(n::REGISTER_1, header_number(*header), place);
                let list = mask.iter().fold(list, |list, mask| list.mask(mask));
                list.compare(operation(compare), value)
            }
            FrameMatch::Listed { set, fields, inside } => {
                let mut at = 4;
                let mut list = self.meta(n::INPUT_INDEX);
                for (header, offset, length) in fields {
                    let place = (*offset, *length);
                    list = list.payload_into(register(at), header_number(*header), place);
                    at += length.next_multiple_of(4);
                }
                let inverted = (!inside).then(|| n::LOOKUP_INVERTED.to_be_bytes());
                list.then("lookup", lookup(set).put_some(n::LOOKUP_FLAGS, inverted))
            }
        }
    }

    /// Writes the destination of the frame, from a map of devices' indexes, and that it is one of this
    /// host's.
    fn send_to(self, map: &str) -> ExpressionList {
        let store = Attributes::new()
            .be32(n::PAYLOAD_SOURCE, n::REGISTER_1)
            .be32(n::PAYLOAD_BASE, n::LINK_HEADER)
            .be32(n::PAYLOAD_OFFSET, 0)
            .be32(n::PAYLOAD_LENGTH, 6);
        let load = Attributes::new()
            .be32(n::IMMEDIATE_REGISTER, n::REGISTER_1)
            .nest(n::IMMEDIATE_DATA, value(&[n::FOR_THIS_HOST]));
        let mark =
            Attributes::new().be32(n::META_KEY, n::PACKET_TYPE).be32(n::META_SOURCE, n::REGISTER_1);
        let found = lookup(map).be32(n::LOOKUP_DESTINATION, n::REGISTER_1);
        let list = self.meta(n::INPUT_INDEX).then("lookup", found).then("payload", store);
        list.then("immediate", load).then("meta", mark)
    }

    /// Gives the frame to the device, with the priority, that a map has for its own device.
    fn forward(self, through: &str) -> ExpressionList {
        let found = lookup(through).be32(n::LOOKUP_DESTINATION, n::REGISTER_1);
        let priority =
            Attributes::new().be32(n::META_KEY, n::PRIORITY).be32(n::META_SOURCE, n::REGISTER_1);
        let device = Attributes::new().be32(n::FORWARD_DEVICE, register(4));
        let list = self.meta(n::INPUT_INDEX).then("lookup", found).then("meta", priority);
        list.then("fwd", device)
    }

    /// Writes the upper six bits of TOS or traffic class, which are in the first two bytes of the header, and
    /// leaves ECN as it is. The header of IPv4 has a checksum.
    fn set_dscp(self, family: Family, dscp: u8) -> ExpressionList {
        let (mask, bits) = match family {
            Family::V4 => ([0xff, 0x03], [0, dscp << 2]),
            Family::V6 => ([0xf0, 0x3f], [dscp >> 2, dscp << 6]),
        };
        let store = Attributes::new()
            .be32(n::PAYLOAD_SOURCE, n::REGISTER_1)
            .be32(n::PAYLOAD_BASE, n::NETWORK_HEADER)
            .be32(n::PAYLOAD_OFFSET, 0)
            .be32(n::PAYLOAD_LENGTH, 2);
        let store = match family {
            Family::V4 => store
                .be32(n::PAYLOAD_CHECKSUM_TYPE, n::CHECKSUM_INET)
                .be32(n::PAYLOAD_CHECKSUM_OFFSET, 10),
            Family::V6 => store,
        };
        let list = self.payload_into(n::REGISTER_1, n::NETWORK_HEADER, (0, 2));
        list.bitwise(&mask, &bits).then("payload", store)
    }

    /// Adds the device's index to a set, unless it is there, and counts the frame.
    fn count_in(self, set: &str) -> ExpressionList {
        let zero = Attributes::new().be64(n::COUNTER_BYTES, 0).be64(n::COUNTER_PACKETS, 0);
        let counter = Attributes::new().text(n::NAME, "counter").nest(n::DATA, zero);
        let add = Attributes::new()
            .text(n::DYNSET_SET, set)
            .be32(n::DYNSET_OPERATION, n::ADD)
            .be32(n::DYNSET_KEY, n::REGISTER_1)
            .nest(n::DYNSET_EXPRESSION, counter);
        self.meta(n::INPUT_INDEX).then("dynset", add)
    }
}

fn header_number(header: Header) -> u32 {
    match header {
        Header::Link => n::LINK_HEADER,
        Header::Network => n::NETWORK_HEADER,
        Header::Transport => n::TRANSPORT_HEADER,
    }
}
