//! Pure. Rules as the kernel's expressions: small instructions over registers.
//!
//! The shapes are those that nft itself writes (`nft --debug=netlink`), so that it lists the rules
//! in its own syntax.

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, subnet};
use crate::netlink::Attributes;
use crate::netlink::wire::octets;
use crate::nft::frame::{Compare, FrameAction, FrameMatch, FrameRule, Header};
use crate::nft::inner;
use crate::nft::numbers::{expression as n, family, object};
use crate::nft::ruleset::{Action, Field, Match, NftRule};
use crate::nft::set::value::{padded, value};
use crate::nft::verdict::Verdict;

/// The list of a rule's expressions.
pub fn of_rule(rule: &NftRule) -> Attributes {
    let list = rule.matches.iter().fold(ExpressionList::default(), ExpressionList::condition);
    let list = if rule.is_counted() { list.counter() } else { list };
    list.action(&rule.action).expressions
}

/// The list of the expressions of a rule at a device's ingress.
pub fn of_frame_rule(rule: &FrameRule) -> Attributes {
    let list = rule.matches.iter().fold(ExpressionList::default(), ExpressionList::frame_condition);
    match &rule.action {
        FrameAction::Accept => list.verdict(&Verdict::Accept),
        FrameAction::AcceptTo(map) => list.send_to(map).verdict(&Verdict::Accept),
        FrameAction::Count(set) => list.count_in(set),
        FrameAction::Drop => list.verdict(&Verdict::Drop),
        FrameAction::Goto(chain) => list.verdict(&Verdict::Goto(chain.clone())),
    }
    .expressions
}

/// `meta iifname` or `oifname` (by its number) equal to `name`, the verdict `accept`, as
/// iptables-nft writes it: the name with its final zero and without padding.
pub fn accept_like_iptables(meta_key: u32, name: &IfName) -> Attributes {
    let name = [name.as_str().as_bytes(), &[0]].concat();
    let list = ExpressionList::default().meta(meta_key).compare(n::EQUAL, &name);
    list.counter().verdict(&Verdict::Accept).expressions
}

/// A list of expressions that grows.
#[derive(Default)]
struct ExpressionList {
    expressions: Attributes,
    /// The family that an expression before has made sure of.
    family: Option<Family>,
}

impl ExpressionList {
    fn condition(self, condition: &Match) -> ExpressionList {
        match condition {
            Match::Source(network) => self.network(*network, Field::Source),
            Match::Destination(network) => self.network(*network, Field::Destination),
            Match::InputInterface(name) => {
                self.load(Field::InputInterface).compare(n::EQUAL, &padded(name))
            }
            Match::OutputInterface(name) => {
                self.load(Field::OutputInterface).compare(n::EQUAL, &padded(name))
            }
            Match::OutputInterfaceNot(name) => {
                self.load(Field::OutputInterface).compare(n::NOT_EQUAL, &padded(name))
            }
            Match::In(field, set) => self.load(*field).then("lookup", lookup(set)),
            Match::NotIn(field, set) => {
                let lookup = lookup(set).be32(n::LOOKUP_FLAGS, n::LOOKUP_INVERTED);
                self.load(*field).then("lookup", lookup)
            }
            Match::BridgedNdp => {
                let place = (n::HOP_LIMIT_OFFSET, 1);
                let list = self.load(Field::Protocol).compare(n::EQUAL, &[n::ICMPV6]);
                let list = list.of_family(Family::V6);
                list.payload_into(n::REGISTER_1, n::NETWORK_HEADER, place).compare(n::EQUAL, &[255])
            }
            Match::Established => self.state(n::ESTABLISHED),
            Match::Vxlan(vni) => self.vxlan(*vni),
            Match::NotLocal => {
                self.destination_type().compare(n::NOT_EQUAL, &n::LOCAL.to_ne_bytes())
            }
            Match::Marked(bits) => {
                let bits = bits.to_ne_bytes();
                self.meta(n::MARK).bitwise(&bits, &[0; 4]).compare(n::EQUAL, &bits)
            }
            Match::UdpTo(port) => self.udp_to(*port),
            Match::VniNot(vni) => {
                let place = (inner::VNI, vni_bytes(*vni).len() as u32);
                let list = self.payload_into(n::REGISTER_1, n::TRANSPORT_HEADER, place);
                list.compare(n::NOT_EQUAL, &vni_bytes(*vni))
            }
            Match::Inner(family) => self.inner(*family),
            Match::InnerDestination(network) => self.inner_destination(*network),
            Match::Within(field, network) => {
                let list = self.load(*field).mask(&octets(network.mask()));
                list.compare(n::EQUAL, &octets(network.network()))
            }
            Match::Is(field, value) => match (value.first(), value.last()) {
                (first, last) if first == last => self.load(*field).compare(n::EQUAL, &first),
                (first, last) => {
                    self.load(*field).compare(n::AT_LEAST, &first).compare(n::AT_MOST, &last)
                }
            },
            Match::AllIn(fields, set) => self.load_key(fields).then("lookup", lookup(set)),
            Match::ConnectionMarkIn(bits, set) => {
                let list = self.connection(n::REGISTER_1, n::CONNECTION_MARK, None);
                list.mask(&bits.to_ne_bytes()).then("lookup", lookup(set))
            }
            Match::NoConnection => self.state(n::NO_CONNECTION),
            Match::Invalid => self.state(n::INVALID),
            Match::Reply => {
                let list = self.connection(n::REGISTER_1, n::CONNECTION_DIRECTION, None);
                list.compare(n::EQUAL, &[1])
            }
            Match::Limit { rate, burst } => {
                let limit = Attributes::new()
                    .be64(n::LIMIT_RATE, *rate)
                    .be64(n::LIMIT_UNIT, 1)
                    .be32(n::LIMIT_BURST, *burst)
                    .be32(n::LIMIT_TYPE, 0)
                    .be32(n::LIMIT_FLAGS, 0);
                self.then("limit", limit)
            }
        }
    }

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

    fn network(self, network: IpNetwork, field: fn(Family) -> Field) -> ExpressionList {
        let list = self.load(field(subnet::family(network))).mask(&octets(network.mask()));
        list.compare(n::EQUAL, &octets(network.network()))
    }

    /// The packet is of `family`: a table `inet` sees both.
    fn of_family(self, family: Family) -> ExpressionList {
        if self.family == Some(family) {
            return self;
        }
        let list = self.meta(n::NF_PROTOCOL).compare(n::EQUAL, &[family_number(family)]);
        ExpressionList { family: Some(family), ..list }
    }

    /// Loads a field into register 1.
    fn load(self, field: Field) -> ExpressionList {
        let list = field.family().into_iter().fold(self, ExpressionList::of_family);
        list.load_into(n::REGISTER_1, field)
    }

    fn load_into(self, register: u32, field: Field) -> ExpressionList {
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
    fn load_key(self, fields: &[Field]) -> ExpressionList {
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
                | Field::ConnectionIcmp => 4,
                Field::InputInterface | Field::OutputInterface => 16,
            };
        }
        list
    }

    fn mask(self, mask: &[u8]) -> ExpressionList {
        self.mask_in(n::REGISTER_1, mask)
    }

    fn mask_in(self, register: u32, mask: &[u8]) -> ExpressionList {
        let zeros = vec![0; mask.len()];
        self.bitwise_in(register, mask, &zeros)
    }

    fn bitwise(self, mask: &[u8], xor: &[u8]) -> ExpressionList {
        self.bitwise_in(n::REGISTER_1, mask, xor)
    }

    /// Keeps the bits of `mask`, then turns those of `xor` over.
    fn bitwise_in(self, register: u32, mask: &[u8], xor: &[u8]) -> ExpressionList {
        let and = Attributes::new()
            .be32(n::BITWISE_SOURCE, register)
            .be32(n::BITWISE_DESTINATION, register)
            .be32(n::BITWISE_LENGTH, mask.len() as u32)
            .nest(n::BITWISE_MASK, value(mask))
            .nest(n::BITWISE_XOR, value(xor));
        self.then("bitwise", and)
    }

    fn meta(self, key: u32) -> ExpressionList {
        self.meta_into(n::REGISTER_1, key)
    }

    fn meta_into(self, register: u32, key: u32) -> ExpressionList {
        let load = Attributes::new().be32(n::META_REGISTER, register).be32(n::META_KEY, key);
        self.then("meta", load)
    }

    /// A UDP packet whose payload begins as RFC 7348 §5 says: the flag that there is an identifier,
    /// 24 bits that are zero, the identifier.
    fn vxlan(self, vni: u32) -> ExpressionList {
        const HAS_VNI: [u8; 4] = [0x08, 0, 0, 0];
        self.udp().payload_is(inner::VXLAN, &HAS_VNI).payload_is(inner::VNI, &vni_bytes(vni))
    }

    fn udp(self) -> ExpressionList {
        const UDP: u8 = 17;
        self.meta(n::L4_PROTOCOL).compare(n::EQUAL, &[UDP])
    }

    fn udp_to(self, port: u16) -> ExpressionList {
        self.udp().payload_is(n::PORT_OFFSET, &port.to_be_bytes())
    }

    fn inner(self, family: Family) -> ExpressionList {
        let ether_type: u16 = match family {
            Family::V4 => 0x0800,
            Family::V6 => 0x86dd,
        };
        self.payload_is(inner::ETHER_TYPE, &ether_type.to_be_bytes())
    }

    fn inner_destination(self, network: IpNetwork) -> ExpressionList {
        let family = subnet::family(network);
        let place = (inner::destination(family), u32::from(family.bits() / 8));
        let list = self.payload_into(n::REGISTER_1, n::TRANSPORT_HEADER, place);
        list.mask(&octets(network.mask())).compare(n::EQUAL, &octets(network.network()))
    }

    /// These bytes are so far behind the begin of the transport header.
    fn payload_is(self, offset: u32, bytes: &[u8]) -> ExpressionList {
        let place = (offset, bytes.len() as u32);
        self.payload_into(n::REGISTER_1, n::TRANSPORT_HEADER, place).compare(n::EQUAL, bytes)
    }

    /// Loads bytes of the packet: from where in the header, and how many.
    fn payload_into(
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
    fn state(self, bits: u32) -> ExpressionList {
        let list = self.connection(n::REGISTER_1, n::CONNECTION_STATE, None);
        list.mask(&bits.to_ne_bytes()).compare(n::NOT_EQUAL, &[0; 4])
    }

    /// Loads what connection tracking knows; `way`: of the packets in this direction.
    fn connection(self, register: u32, key: u32, way: Option<u8>) -> ExpressionList {
        let load = Attributes::new()
            .be32(n::CONNECTION_REGISTER, register)
            .be32(n::CONNECTION_KEY, key)
            .put_some(n::CONNECTION_WAY, way.map(|way| [way]));
        self.then("ct", load)
    }

    /// Loads what kind of address the destination is to this host.
    fn destination_type(self) -> ExpressionList {
        let load = Attributes::new()
            .be32(n::FIB_REGISTER, n::REGISTER_1)
            .be32(n::FIB_RESULT, n::FIB_ADDRESS_TYPE)
            .be32(n::FIB_FLAGS, n::FIB_OF_DESTINATION);
        self.then("fib", load)
    }

    /// The destination becomes what the map holds, address and port, if it holds anything.
    fn dnat(self, family: Family, key: &[Field], map: &str) -> ExpressionList {
        let lookup = lookup(map).be32(n::LOOKUP_DESTINATION, n::REGISTER_1);
        let nat = Attributes::new()
            .be32(n::NAT_KIND, n::DESTINATION_NAT)
            .be32(n::NAT_FAMILY, u32::from(family_number(family)))
            .be32(n::NAT_ADDRESS, n::REGISTER_1)
            .be32(n::NAT_PORT, register(u32::from(family.bits() / 8)));
        self.of_family(family).load_key(key).then("lookup", lookup).then("nat", nat)
    }

    fn compare(self, operation: u32, data: &[u8]) -> ExpressionList {
        let compare = Attributes::new()
            .be32(n::COMPARE_REGISTER, n::REGISTER_1)
            .be32(n::COMPARE_OPERATION, operation)
            .nest(n::COMPARE_DATA, value(data));
        self.then("cmp", compare)
    }

    fn counter(self) -> ExpressionList {
        let zero = Attributes::new().be64(n::COUNTER_BYTES, 0).be64(n::COUNTER_PACKETS, 0);
        self.then("counter", zero)
    }

    fn action(self, action: &Action) -> ExpressionList {
        match action {
            Action::Verdict(verdict) => self.verdict(verdict),
            Action::Masquerade => {
                self.then("masq", Attributes::new().be32(n::MASQUERADE_FLAGS, n::FULLY_RANDOM))
            }
            Action::Mark(bits) => {
                let list = self.meta(n::MARK).bitwise(&(!bits).to_ne_bytes(), &bits.to_ne_bytes());
                let store = Attributes::new()
                    .be32(n::META_KEY, n::MARK)
                    .be32(n::META_SOURCE, n::REGISTER_1);
                list.then("meta", store)
            }
            Action::Count(counter, verdict) => {
                let reference = Attributes::new()
                    .be32(n::OBJECT_TYPE, object::COUNTER)
                    .text(n::OBJECT_NAME, counter);
                self.then("objref", reference).verdict(verdict)
            }
            Action::MarkConnection(bits, value) => {
                let list = self.connection(n::REGISTER_1, n::CONNECTION_MARK, None);
                let store = Attributes::new()
                    .be32(n::CONNECTION_KEY, n::CONNECTION_MARK)
                    .be32(n::CONNECTION_SOURCE, n::REGISTER_1);
                list.bitwise(&(!bits).to_ne_bytes(), &value.to_ne_bytes()).then("ct", store)
            }
            Action::Log(group, prefix) => {
                let report = Attributes::new().put(n::LOG_GROUP, group.to_be_bytes());
                self.then("log", report.text(n::LOG_PREFIX, prefix))
            }
            Action::Untracked => self.then("notrack", Attributes::new()),
            Action::Offload(flowtable) => {
                self.then("flow_offload", Attributes::new().text(n::OFFLOAD_TABLE, flowtable))
            }
            Action::Dnat(family, key, map) => self.dnat(*family, key, map),
            Action::VerdictMap(key, map) => {
                let lookup = lookup(map).be32(n::LOOKUP_DESTINATION, n::REGISTER_VERDICT);
                self.load_key(key).then("lookup", lookup)
            }
        }
    }

    fn verdict(self, verdict: &Verdict) -> ExpressionList {
        let immediate = Attributes::new()
            .be32(n::IMMEDIATE_REGISTER, n::REGISTER_VERDICT)
            .nest(n::IMMEDIATE_DATA, verdict.encode());
        self.then("immediate", immediate)
    }

    fn then(self, name: &str, data: Attributes) -> ExpressionList {
        let expression = Attributes::new().text(n::NAME, name).nest(n::DATA, data);
        ExpressionList { expressions: self.expressions.nest(n::LIST_ELEMENT, expression), ..self }
    }
}

fn vni_bytes(vni: u32) -> [u8; 3] {
    let [_, a, b, c] = vni.to_be_bytes();
    [a, b, c]
}

/// Looks up register 1 and those that follow.
fn lookup(set: &str) -> Attributes {
    Attributes::new().text(n::LOOKUP_SET, set).be32(n::LOOKUP_REGISTER, n::REGISTER_1)
}

/// The register that begins so many bytes behind the begin of register 1; as nft, by 16 bytes where
/// possible.
fn register(at: u32) -> u32 {
    match at % 16 {
        0 => n::REGISTER_1 + at / 16,
        _ => n::REGISTER_4_BYTES + at / 4,
    }
}

fn header_number(header: Header) -> u32 {
    match header {
        Header::Link => n::LINK_HEADER,
        Header::Network => n::NETWORK_HEADER,
        Header::Transport => n::TRANSPORT_HEADER,
    }
}

/// The key of connection tracking for a source address.
fn source_key(family: Family) -> u32 {
    match family {
        Family::V4 => n::CONNECTION_SOURCE_IPV4,
        Family::V6 => n::CONNECTION_SOURCE_IPV6,
    }
}

pub fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => family::IPV4,
        Family::V6 => family::IPV6,
    }
}
