//! Pure. Fields of a packet and of its connection, loaded into registers.

use crate::net::Family;
use crate::netlink::wire::octets;
use crate::nft::expression::list::{ExpressionList, register};
use crate::nft::inner;
use crate::nft::numbers::expression as n;
use crate::nft::ruleset::Field;

impl ExpressionList {
    /// Loads a field into register 1.
    pub(super) fn load(self, field: Field) -> ExpressionList {
        let list = field.family().into_iter().fold(self, ExpressionList::of_family);
        list.load_into(n::REGISTER_1, field)
    }

    pub(super) fn load_into(self, register: u32, field: Field) -> ExpressionList {
        let (offset, length) = match field {
            Field::Source(Family::V4) => (12, 4),
            Field::Destination(Family::V4) => (16, 4),
            Field::Source(Family::V6) => (8, 16),
            Field::Destination(Family::V6) => (24, 16),
            Field::Protocol => return self.meta_into(register, n::L4_PROTOCOL),
            Field::InputInterface => return self.meta_into(register, n::INPUT_NAME),
            Field::OutputInterface => return self.meta_into(register, n::OUTPUT_NAME),
            Field::ConnectionSource(family) => {
                return self.connection(register, source_key(family), Some(n::ORIGINAL));
            }
            Field::ConnectionDestination(family) => {
                return self.connection(register, source_key(family), Some(n::REPLY));
            }
            Field::ConnectionProtocol => {
                return self.connection(register, n::CONNECTION_PROTOCOL, Some(n::ORIGINAL));
            }
            Field::ConnectionPort => {
                return self.connection(register, n::CONNECTION_SOURCE_PORT, Some(n::REPLY));
            }
            Field::ConnectionIcmp => {
                let key = n::CONNECTION_DESTINATION_PORT;
                return self.connection(register, key, Some(n::ORIGINAL));
            }
            Field::Icmp => return self.payload_into(register, n::TRANSPORT_HEADER, (0, 2)),
            Field::DestinationPort => {
                return self.payload_into(register, n::TRANSPORT_HEADER, (n::PORT_OFFSET, 2));
            }
            Field::InnerSource(family, prefix) => {
                let network = inner::network(family, prefix);
                let place = (inner::source(family), u32::from(family.bits() / 8));
                let list = self.payload_into(register, n::TRANSPORT_HEADER, place);
                return list.mask_in(register, &octets(network.mask()));
            }
        };
        self.payload_into(register, n::NETWORK_HEADER, (offset, length))
    }

    /// Puts a map's key together in register 1 and those that follow, each field in whole groups
    /// of 4 bytes.
    pub(super) fn load_key(self, fields: &[Field]) -> ExpressionList {
        let families = fields.iter().filter_map(|field| field.family());
        let mut list = families.fold(self, ExpressionList::of_family);
        let mut at = 0;
        for field in fields {
            list = list.load_into(register(at), *field);
            at += match field {
                Field::Source(family)
                | Field::Destination(family)
                | Field::ConnectionSource(family)
                | Field::ConnectionDestination(family)
                | Field::InnerSource(family, _) => u32::from(family.bits() / 8),
                Field::Protocol
                | Field::DestinationPort
                | Field::ConnectionProtocol
                | Field::ConnectionPort
                | Field::ConnectionIcmp
                | Field::Icmp => 4,
                Field::InputInterface | Field::OutputInterface => 16,
            };
        }
        list
    }
}

/// The key of connection tracking for a source address.
fn source_key(family: Family) -> u32 {
    match family {
        Family::V4 => n::CONNECTION_SOURCE_IPV4,
        Family::V6 => n::CONNECTION_SOURCE_IPV6,
    }
}
