//! Pure. Rules as the kernel's expressions: small instructions over registers.
//!
//! The shapes are those that nft itself writes (`nft --debug=netlink`), so that it lists the rules
//! in its own syntax.

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, subnet};
use crate::netlink::Attributes;
use crate::netlink::wire::octets;
use crate::nft::host_port_maps::PortMap;
use crate::nft::numbers::{expression as n, family};
use crate::nft::ruleset::{Match, Rule, Verdict};

/// Bytes of an interface's name in a register: IFNAMSIZ.
const IFNAMSIZ: usize = 16;

/// The list of a rule's expressions.
pub fn of_rule(rule: &Rule) -> Attributes {
    let mut list = List::default();
    for condition in &rule.matches {
        list = list.condition(condition);
    }
    let counted = !matches!(rule.verdict, Verdict::Forward(_));
    let list = if counted { list.counter() } else { list };
    list.verdict(rule.verdict).expressions
}

/// `meta iifname` or `oifname` (by its number) equal to `name`, the verdict `accept`, as
/// iptables-nft writes it: the name with its final zero and without padding.
pub fn accept_like_iptables(meta_key: u32, name: &IfName) -> Attributes {
    let name = [name.as_str().as_bytes(), &[0]].concat();
    let list = List::default().meta(meta_key).compare(n::EQUAL, &name);
    list.counter().verdict(Verdict::Accept).expressions
}

/// A list of expressions that grows.
#[derive(Default)]
struct List {
    expressions: Attributes,
    /// The family that an expression before has made sure of.
    family: Option<Family>,
}

impl List {
    fn condition(self, condition: &Match) -> List {
        match condition {
            Match::DestinationOutside(family, set) => {
                self.of_family(*family).address(*family, End::Destination).outside(set)
            }
            Match::Input(name) => self.meta(n::INPUT_NAME).compare(n::EQUAL, &padded(name)),
            Match::Output(name) => self.meta(n::OUTPUT_NAME).compare(n::EQUAL, &padded(name)),
            Match::OutputNot(name) => {
                self.meta(n::OUTPUT_NAME).compare(n::NOT_EQUAL, &padded(name))
            }
            Match::Established => self.established(),
            Match::Vxlan(vni) => self.vxlan(*vni),
            Match::Source(network) => self.network(*network, End::Source),
            Match::Destination(network) => self.network(*network, End::Destination),
            Match::NotLocal => {
                self.destination_type().compare(n::NOT_EQUAL, &n::LOCAL.to_ne_bytes())
            }
            Match::InputIn(set) => self.meta(n::INPUT_NAME).inside(set),
            Match::OutputIn(set) => self.meta(n::OUTPUT_NAME).inside(set),
            Match::Marked(bits) => {
                let bits = bits.to_ne_bytes();
                self.meta(n::MARK).bitwise(&bits, &[0; 4]).compare(n::EQUAL, &bits)
            }
        }
    }

    fn network(self, network: IpNetwork, end: End) -> List {
        let family = subnet::family(network);
        let list = self.of_family(family).address(family, end);
        list.mask(&octets(network.mask())).compare(n::EQUAL, &octets(network.network()))
    }

    /// The packet is of `family`: a table `inet` sees both.
    fn of_family(self, family: Family) -> List {
        if self.family == Some(family) {
            return self;
        }
        let list = self.meta(n::NF_PROTOCOL).compare(n::EQUAL, &[family_number(family)]);
        List { family: Some(family), ..list }
    }

    /// Loads the source or destination address.
    fn address(self, family: Family, end: End) -> List {
        let (offset, length) = match (family, end) {
            (Family::V4, End::Source) => (12, 4),
            (Family::V4, End::Destination) => (16, 4),
            (Family::V6, End::Source) => (8, 16),
            (Family::V6, End::Destination) => (24, 16),
        };
        self.payload(n::NETWORK_HEADER, offset, length)
    }

    fn mask(self, mask: &[u8]) -> List {
        let zeros = vec![0; mask.len()];
        self.bitwise(mask, &zeros)
    }

    /// Keeps the bits of `mask`, then turns those of `xor` over.
    fn bitwise(self, mask: &[u8], xor: &[u8]) -> List {
        let and = Attributes::new()
            .be32(n::BITWISE_SOURCE, n::REGISTER_1)
            .be32(n::BITWISE_DESTINATION, n::REGISTER_1)
            .be32(n::BITWISE_LENGTH, mask.len() as u32)
            .nest(n::BITWISE_MASK, value(mask))
            .nest(n::BITWISE_XOR, value(xor));
        self.then("bitwise", and)
    }

    fn meta(self, key: u32) -> List {
        self.meta_into(n::REGISTER_1, key)
    }

    fn meta_into(self, register: u32, key: u32) -> List {
        let load = Attributes::new().be32(n::META_REGISTER, register).be32(n::META_KEY, key);
        self.then("meta", load)
    }

    /// A UDP packet whose payload begins as RFC 7348 §5 says: the flag that there is an identifier,
    /// 24 bits that are zero, the identifier.
    fn vxlan(self, vni: u32) -> List {
        const UDP: u8 = 17;
        const UDP_HEADER: u32 = 8;
        const HAS_VNI: [u8; 4] = [0x08, 0, 0, 0];
        let [_, a, b, c] = vni.to_be_bytes();
        let list = self.meta(n::L4_PROTOCOL).compare(n::EQUAL, &[UDP]);
        let list = list.payload(n::TRANSPORT_HEADER, UDP_HEADER, 4).compare(n::EQUAL, &HAS_VNI);
        list.payload(n::TRANSPORT_HEADER, UDP_HEADER + 4, 3).compare(n::EQUAL, &[a, b, c])
    }

    /// Loads bytes of the packet.
    fn payload(self, base: u32, offset: u32, length: u32) -> List {
        let load = Attributes::new()
            .be32(n::PAYLOAD_REGISTER, n::REGISTER_1)
            .be32(n::PAYLOAD_BASE, base)
            .be32(n::PAYLOAD_OFFSET, offset)
            .be32(n::PAYLOAD_LENGTH, length);
        self.then("payload", load)
    }

    /// The state is one bit of several.
    fn established(self) -> List {
        let load = Attributes::new()
            .be32(n::CONNECTION_REGISTER, n::REGISTER_1)
            .be32(n::CONNECTION_KEY, n::CONNECTION_STATE);
        let list = self.then("ct", load).mask(&n::ESTABLISHED.to_ne_bytes());
        list.compare(n::NOT_EQUAL, &[0; 4])
    }

    /// Loads what kind of address the destination is to this host.
    fn destination_type(self) -> List {
        let load = Attributes::new()
            .be32(n::FIB_REGISTER, n::REGISTER_1)
            .be32(n::FIB_RESULT, n::FIB_ADDRESS_TYPE)
            .be32(n::FIB_FLAGS, n::FIB_OF_DESTINATION);
        self.then("fib", load)
    }

    /// The destination becomes what `map` says of it, if it says anything.
    ///
    /// The map's key is put together in register 1 and those that follow, each part in whole
    /// groups of 4 bytes; its answer, address and port, comes to the same place.
    fn forward(self, map: PortMap) -> List {
        let family = map.family();
        let number = family_number(family);
        let behind_address = match family {
            Family::V4 => n::REGISTER_4_BYTES + 1,
            Family::V6 => n::REGISTER_2,
        };
        let (list, protocol, port) = match map.has_address() {
            true => {
                let list = self.of_family(family).address(family, End::Destination);
                let port = match family {
                    Family::V4 => n::REGISTER_4_BYTES + 2,
                    Family::V6 => n::REGISTER_4_BYTES + 5,
                };
                (list, behind_address, port)
            }
            false => (self.of_family(family), n::REGISTER_1, n::REGISTER_4_BYTES + 1),
        };
        let lookup = Attributes::new()
            .text(n::LOOKUP_SET, map.name())
            .be32(n::LOOKUP_REGISTER, n::REGISTER_1)
            .be32(n::LOOKUP_DESTINATION, n::REGISTER_1);
        let nat = Attributes::new()
            .be32(n::NAT_KIND, n::DESTINATION_NAT)
            .be32(n::NAT_FAMILY, u32::from(number))
            .be32(n::NAT_ADDRESS, n::REGISTER_1)
            .be32(n::NAT_PORT, behind_address);
        let list = list.meta_into(protocol, n::L4_PROTOCOL).destination_port_into(port);
        list.then("lookup", lookup).then("nat", nat)
    }

    fn destination_port_into(self, register: u32) -> List {
        let load = Attributes::new()
            .be32(n::PAYLOAD_REGISTER, register)
            .be32(n::PAYLOAD_BASE, n::TRANSPORT_HEADER)
            .be32(n::PAYLOAD_OFFSET, 2)
            .be32(n::PAYLOAD_LENGTH, 2);
        self.then("payload", load)
    }

    fn compare(self, operation: u32, data: &[u8]) -> List {
        let compare = Attributes::new()
            .be32(n::COMPARE_REGISTER, n::REGISTER_1)
            .be32(n::COMPARE_OPERATION, operation)
            .nest(n::COMPARE_DATA, value(data));
        self.then("cmp", compare)
    }

    /// What was loaded is in the set.
    fn inside(self, set: &str) -> List {
        let lookup =
            Attributes::new().text(n::LOOKUP_SET, set).be32(n::LOOKUP_REGISTER, n::REGISTER_1);
        self.then("lookup", lookup)
    }

    /// What was loaded is not in the set.
    fn outside(self, set: &str) -> List {
        let lookup = Attributes::new()
            .text(n::LOOKUP_SET, set)
            .be32(n::LOOKUP_REGISTER, n::REGISTER_1)
            .be32(n::LOOKUP_FLAGS, n::LOOKUP_INVERTED);
        self.then("lookup", lookup)
    }

    fn counter(self) -> List {
        let zero = Attributes::new().be64(n::COUNTER_BYTES, 0).be64(n::COUNTER_PACKETS, 0);
        self.then("counter", zero)
    }

    fn verdict(self, verdict: Verdict) -> List {
        match verdict {
            Verdict::Masquerade => {
                self.then("masq", Attributes::new().be32(n::MASQUERADE_FLAGS, n::FULLY_RANDOM))
            }
            Verdict::Accept => self.decide(n::ACCEPT),
            Verdict::Drop => self.decide(n::DROP),
            Verdict::Return => self.decide(n::RETURN),
            Verdict::Mark(bits) => {
                let list = self.meta(n::MARK).bitwise(&(!bits).to_ne_bytes(), &bits.to_ne_bytes());
                let store = Attributes::new()
                    .be32(n::META_KEY, n::MARK)
                    .be32(n::META_SOURCE, n::REGISTER_1);
                list.then("meta", store)
            }
            Verdict::Untracked => self.then("notrack", Attributes::new()),
            Verdict::Offload(flowtable) => {
                self.then("flow_offload", Attributes::new().text(n::OFFLOAD_TABLE, flowtable))
            }
            Verdict::Forward(map) => self.forward(map),
        }
    }

    fn decide(self, code: u32) -> List {
        let code = Attributes::new().be32(n::VERDICT_CODE, code);
        let data = Attributes::new().nest(n::DATA_VERDICT, code);
        let immediate = Attributes::new()
            .be32(n::IMMEDIATE_REGISTER, n::REGISTER_VERDICT)
            .nest(n::IMMEDIATE_DATA, data);
        self.then("immediate", immediate)
    }

    fn then(self, name: &str, data: Attributes) -> List {
        let expression = Attributes::new().text(n::NAME, name).nest(n::DATA, data);
        List { expressions: self.expressions.nest(n::LIST_ELEMENT, expression), ..self }
    }
}

/// Which address of a packet.
#[derive(Clone, Copy)]
enum End {
    Source,
    Destination,
}

fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => family::IPV4,
        Family::V6 => family::IPV6,
    }
}

fn value(bytes: &[u8]) -> Attributes {
    Attributes::new().put(n::DATA_VALUE, bytes)
}

/// An interface's name as nft compares it: filled up with zeros.
fn padded(name: &IfName) -> [u8; IFNAMSIZ] {
    let mut bytes = [0; IFNAMSIZ];
    bytes[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
    bytes
}
