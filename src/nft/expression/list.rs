//! Pure. The smallest instructions of a rule: load, compare, mask, look up, in the kernel's form.

use crate::net::Family;
use crate::netlink::Attributes;
use crate::nft::numbers::{expression as n, family};
use crate::nft::set::value::value;
use crate::nft::verdict::Verdict;

/// A list of expressions that grows.
#[derive(Default)]
pub(super) struct ExpressionList {
    pub(super) expressions: Attributes,
    /// The family that an expression before has made sure of.
    family: Option<Family>,
}

impl ExpressionList {
    /// The packet is of `family`: a table `inet` sees both.
    pub(super) fn of_family(self, family: Family) -> ExpressionList {
        if self.family == Some(family) {
            return self;
        }
        let list = self.meta(n::NF_PROTOCOL).compare(n::EQUAL, &[family::number(family)]);
        ExpressionList { family: Some(family), ..list }
    }

    pub(super) fn mask(self, mask: &[u8]) -> ExpressionList {
        self.mask_in(n::REGISTER_1, mask)
    }

    pub(super) fn mask_in(self, register: u32, mask: &[u8]) -> ExpressionList {
        let zeros = vec![0; mask.len()];
        self.bitwise_in(register, mask, &zeros)
    }

    pub(super) fn bitwise(self, mask: &[u8], xor: &[u8]) -> ExpressionList {
        self.bitwise_in(n::REGISTER_1, mask, xor)
    }

    /// Keeps the bits of `mask`, then turns those of `xor` over.
    pub(super) fn bitwise_in(self, register: u32, mask: &[u8], xor: &[u8]) -> ExpressionList {
        let and = Attributes::new()
            .be32(n::BITWISE_SOURCE, register)
            .be32(n::BITWISE_DESTINATION, register)
            .be32(n::BITWISE_LENGTH, mask.len() as u32)
            .nest(n::BITWISE_MASK, value(mask))
            .nest(n::BITWISE_XOR, value(xor));
        self.then("bitwise", and)
    }

    pub(super) fn meta(self, key: u32) -> ExpressionList {
        self.meta_into(n::REGISTER_1, key)
    }

    pub(super) fn meta_into(self, register: u32, key: u32) -> ExpressionList {
        let load = Attributes::new().be32(n::META_REGISTER, register).be32(n::META_KEY, key);
        self.then("meta", load)
    }

    /// These bytes are so far behind the begin of the transport header.
    pub(super) fn payload_is(self, offset: u32, bytes: &[u8]) -> ExpressionList {
        let place = (offset, bytes.len() as u32);
        self.payload_into(n::REGISTER_1, n::TRANSPORT_HEADER, place).compare(n::EQUAL, bytes)
    }

    /// Loads bytes of the packet: from where in the header, and how many.
    pub(super) fn payload_into(
        self,
        register: u32,
        base: u32,
        (offset, length): (u32, u32),
    ) -> ExpressionList {
        let load = Attributes::new()
            .be32(n::PAYLOAD_REGISTER, register)
            .be32(n::PAYLOAD_BASE, base)
            .be32(n::PAYLOAD_OFFSET, offset)
            .be32(n::PAYLOAD_LENGTH, length);
        self.then("payload", load)
    }

    /// The connection's state has one of these bits.
    pub(super) fn state(self, bits: u32) -> ExpressionList {
        let list = self.connection(n::REGISTER_1, n::CONNECTION_STATE, None);
        list.mask(&bits.to_ne_bytes()).compare(n::NOT_EQUAL, &[0; 4])
    }

    /// Loads what connection tracking knows; `way`: of the packets in this direction.
    pub(super) fn connection(self, register: u32, key: u32, way: Option<u8>) -> ExpressionList {
        let load = Attributes::new()
            .be32(n::CONNECTION_REGISTER, register)
            .be32(n::CONNECTION_KEY, key)
            .put_some(n::CONNECTION_WAY, way.map(|way| [way]));
        self.then("ct", load)
    }

    pub(super) fn compare(self, operation: u32, data: &[u8]) -> ExpressionList {
        let compare = Attributes::new()
            .be32(n::COMPARE_REGISTER, n::REGISTER_1)
            .be32(n::COMPARE_OPERATION, operation)
            .nest(n::COMPARE_DATA, value(data));
        self.then("cmp", compare)
    }

    pub(super) fn counter(self) -> ExpressionList {
        let zero = Attributes::new().be64(n::COUNTER_BYTES, 0).be64(n::COUNTER_PACKETS, 0);
        self.then("counter", zero)
    }

    pub(super) fn verdict(self, verdict: &Verdict) -> ExpressionList {
        let immediate = Attributes::new()
            .be32(n::IMMEDIATE_REGISTER, n::REGISTER_VERDICT)
            .nest(n::IMMEDIATE_DATA, verdict.encode());
        self.then("immediate", immediate)
    }

    pub(super) fn then(self, name: &str, data: Attributes) -> ExpressionList {
        let expression = Attributes::new().text(n::NAME, name).nest(n::DATA, data);
        ExpressionList { expressions: self.expressions.nest(n::LIST_ELEMENT, expression), ..self }
    }
}

/// Looks up register 1 and those that follow.
pub(super) fn lookup(set: &str) -> Attributes {
    Attributes::new().text(n::LOOKUP_SET, set).be32(n::LOOKUP_REGISTER, n::REGISTER_1)
}

/// The register that begins so many bytes behind the begin of register 1; as nft, by 16 bytes where
/// possible.
pub(super) fn register(at: u32) -> u32 {
    match at % 16 {
        0 => n::REGISTER_1 + at / 16,
        _ => n::REGISTER_4_BYTES + at / 4,
    }
}
