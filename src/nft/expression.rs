//! Pure. Rules as the kernel's expressions: small instructions over registers.
//!
//! The shapes are those that nft itself writes (`nft --debug=netlink`), so that it lists the rules
//! in its own syntax.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, subnet};
use crate::netlink::Attributes;
use crate::netlink::wire::octets;
use crate::nft::expression::list::{ExpressionList, lookup, register};
use crate::nft::inner;
use crate::nft::numbers::{expression as n, family, object};
use crate::nft::ruleset::{Action, Field, Match, NftRule};
use crate::nft::set::value::{padded, value};
use crate::nft::verdict::Verdict;

mod field;
pub mod frame;
mod list;

/// The list of a rule's expressions.
pub fn of_rule(rule: &NftRule) -> Attributes {
    let list = rule.matches.iter().fold(ExpressionList::default(), ExpressionList::condition);
    let list = if rule.is_counted() { list.counter() } else { list };
    list.action(&rule.action).expressions
}

/// `meta iifname` or `oifname` (by its number) equal to `name`, the verdict `accept`, as
/// iptables-nft writes it: the name with its final zero and without padding.
pub fn accept_like_iptables(meta_key: u32, name: &IfName) -> Attributes {
    let name = [name.as_str().as_bytes(), &[0]].concat();
    let list = ExpressionList::default().meta(meta_key).compare(n::EQUAL, &name);
    list.counter().verdict(&Verdict::Accept).expressions
}

impl ExpressionList {
    fn condition(self, condition: &Match) -> ExpressionList {
        match condition {
            Match::Source(network) => self.network(*network, Field::Source),
            Match::Destination(network) => self.network(*network, Field::Destination),
            Match::Within(field, network) => self.load(*field).within(network),
            Match::InputInterface(name) => {
                self.load(Field::InputInterface).compare(n::EQUAL, &padded(name))
            }
            Match::OutputInterface(name) => {
                self.load(Field::OutputInterface).compare(n::EQUAL, &padded(name))
            }
            Match::OutputInterfaceNot(name) => {
                self.load(Field::OutputInterface).compare(n::NOT_EQUAL, &padded(name))
            }
            Match::Is(field, value) => self.load(*field).between(&value.first(), &value.last()),
            Match::In(field, set) => self.load(*field).then("lookup", lookup(set)),
            Match::NotIn(field, set) => self.load(*field).then("lookup", not_in(set)),
            Match::AllIn(fields, set) => self.load_key(fields).then("lookup", lookup(set)),
            Match::NotLocal => self.not_local(n::FIB_OF_DESTINATION),
            Match::SourceNotLocal => self.not_local(n::FIB_OF_SOURCE),
            // The rule does not match what has no such socket.
            Match::FromProgram => self.meta(n::SOCKET_USER).compare(n::AT_LEAST, &[0; 4]),
            Match::BridgedNdp => self.bridged_ndp(),
            Match::UdpTo(port) => self.udp_to(*port),
            Match::Vxlan(vni) => self.vxlan(*vni),
            Match::Wireguard => self.wireguard(),
            Match::VniNot(vni) => self.vni(n::NOT_EQUAL, *vni),
            Match::Inner(family) => self.inner(*family),
            Match::InnerDestination(network) => self.inner_destination(*network),
            Match::Marked(bits) => {
                let bits = bits.to_ne_bytes();
                self.meta(n::MARK).mask(&bits).compare(n::EQUAL, &bits)
            }
            Match::ConnectionMark(bits, mark) => {
                let list = self.connection(n::REGISTER_1, n::CONNECTION_MARK, None);
                list.mask(&bits.to_ne_bytes()).compare(n::EQUAL, &mark.to_ne_bytes())
            }
            Match::Established => self.state(n::ESTABLISHED),
            Match::NoConnection => self.state(n::NO_CONNECTION),
            Match::Invalid => self.state(n::INVALID),
            Match::RelatedOrInvalid => self.state(n::RELATED | n::INVALID),
            Match::RelatedOrNoConnection => self.state(n::RELATED | n::NO_CONNECTION),
            Match::Translated => {
                let list = self.connection(n::REGISTER_1, n::CONNECTION_STATUS, None);
                list.mask(&n::DESTINATION_TRANSLATED.to_ne_bytes()).compare(n::NOT_EQUAL, &[0; 4])
            }
            Match::Reply => self.reply(),
            Match::ReplyAsks => self.reply().asks(n::EQUAL),
            Match::PickedUp => self.asks(n::NOT_EQUAL).state(n::NEW),
            Match::Limit { rate, burst } => self.then("limit", limit(*rate, *burst)),
        }
    }

    fn network(self, network: IpNetwork, field: fn(Family) -> Field) -> ExpressionList {
        self.load(field(subnet::family(network))).within(&network)
    }

    /// What the loaded address lies in.
    fn within(self, network: &IpNetwork) -> ExpressionList {
        self.mask(&octets(network.mask())).compare(n::EQUAL, &octets(network.network()))
    }

    fn between(self, first: &[u8], last: &[u8]) -> ExpressionList {
        if first == last {
            return self.compare(n::EQUAL, first);
        }
        self.compare(n::AT_LEAST, first).compare(n::AT_MOST, last)
    }

    /// A neighbour message that no router has passed on (RFC 4861 §6.1, §7.1).
    fn bridged_ndp(self) -> ExpressionList {
        let list = self.load(Field::Protocol).compare(n::EQUAL, &[n::ICMPV6]);
        let list = list.of_family(Family::V6);
        let hop_limit = (n::HOP_LIMIT_OFFSET, 1);
        list.payload_into(n::REGISTER_1, n::NETWORK_HEADER, hop_limit).compare(n::EQUAL, &[255])
    }

    /// A UDP packet whose payload begins as RFC 7348 §5 says: the flag that there is an identifier,
    /// 24 bits that are zero, the identifier.
    fn vxlan(self, vni: u32) -> ExpressionList {
        const HAS_VNI: [u8; 4] = [0x08, 0, 0, 0];
        self.udp().payload_is(inner::VXLAN, &HAS_VNI).vni(n::EQUAL, vni)
    }

    /// A UDP packet whose payload begins with a type of message, 1 to 4, and three zeros (WireGuard: Next
    /// Generation Kernel Network Tunnel, §5.4).
    fn wireguard(self) -> ExpressionList {
        const UDP_PAYLOAD: u32 = 8;
        let list = self.udp().payload_into(n::REGISTER_1, n::TRANSPORT_HEADER, (UDP_PAYLOAD, 1));
        list.between(&[1], &[4]).payload_is(UDP_PAYLOAD + 1, &[0; 3])
    }

    fn vni(self, operation: u32, vni: u32) -> ExpressionList {
        let [_, identifier @ ..] = vni.to_be_bytes();
        let place = (inner::VNI, identifier.len() as u32);
        let list = self.payload_into(n::REGISTER_1, n::TRANSPORT_HEADER, place);
        list.compare(operation, &identifier)
    }

    fn reply(self) -> ExpressionList {
        self.connection(n::REGISTER_1, n::CONNECTION_DIRECTION, None).compare(n::EQUAL, &[1])
    }

    /// Of TCP, SYN without ACK or anything else (RFC 9293 §3.1: the flags are byte 13).
    fn asks(self, operation: u32) -> ExpressionList {
        const TCP: u8 = 6;
        const FLAGS: u32 = 13;
        const SYN: u8 = 0x02;
        const SYN_OR_ACK: u8 = 0x12;
        let list = self.meta(n::L4_PROTOCOL).compare(n::EQUAL, &[TCP]);
        let list = list.payload_into(n::REGISTER_1, n::TRANSPORT_HEADER, (FLAGS, 1));
        list.mask(&[SYN_OR_ACK]).compare(operation, &[SYN])
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
        list.within(&network)
    }

    /// The destination or the source, as `flags` say, is no address of this host.
    fn not_local(self, flags: u32) -> ExpressionList {
        let load = Attributes::new()
            .be32(n::FIB_REGISTER, n::REGISTER_1)
            .be32(n::FIB_RESULT, n::FIB_ADDRESS_TYPE)
            .be32(n::FIB_FLAGS, flags);
        self.then("fib", load).compare(n::NOT_EQUAL, &n::LOCAL.to_ne_bytes())
    }

    /// The destination becomes what the map holds, address and port, if it holds anything.
    fn dnat(self, family: Family, key: &[Field], map: &str) -> ExpressionList {
        let lookup = lookup(map).be32(n::LOOKUP_DESTINATION, n::REGISTER_1);
        let nat = Attributes::new()
            .be32(n::NAT_KIND, n::DESTINATION_NAT)
            .be32(n::NAT_FAMILY, u32::from(family::number(family)))
            .be32(n::NAT_ADDRESS, n::REGISTER_1)
            .be32(n::NAT_PORT, register(u32::from(family.bits() / 8)));
        self.of_family(family).load_key(key).then("lookup", lookup).then("nat", nat)
    }

    fn snat(self, address: IpAddr) -> ExpressionList {
        let family = u32::from(family::number(Family::of(address)));
        let load = Attributes::new()
            .be32(n::IMMEDIATE_REGISTER, n::REGISTER_1)
            .nest(n::IMMEDIATE_DATA, value(&octets(address)));
        let nat = Attributes::new()
            .be32(n::NAT_KIND, n::SOURCE_NAT)
            .be32(n::NAT_FAMILY, family)
            .be32(n::NAT_ADDRESS, n::REGISTER_1)
            .be32(n::NAT_FLAGS, n::FULLY_RANDOM);
        self.then("immediate", load).then("nat", nat)
    }

    fn counted_by(self, counter: &str) -> ExpressionList {
        let reference =
            Attributes::new().be32(n::OBJECT_TYPE, object::COUNTER).text(n::OBJECT_NAME, counter);
        self.then("objref", reference)
    }

    /// These bits of the connection's mark become those of `value`.
    fn mark_connection(self, bits: u32, value: u32) -> ExpressionList {
        let list = self.connection(n::REGISTER_1, n::CONNECTION_MARK, None);
        let store = Attributes::new()
            .be32(n::CONNECTION_KEY, n::CONNECTION_MARK)
            .be32(n::CONNECTION_SOURCE, n::REGISTER_1);
        list.bitwise(&(!bits).to_ne_bytes(), &value.to_ne_bytes()).then("ct", store)
    }

    fn action(self, action: &Action) -> ExpressionList {
        match action {
            Action::Verdict(verdict) => self.verdict(verdict),
            Action::Masquerade => {
                self.then("masq", Attributes::new().be32(n::MASQUERADE_FLAGS, n::FULLY_RANDOM))
            }
            Action::Snat(address) => self.snat(*address),
            Action::Mark(bits) => {
                let list = self.meta(n::MARK).bitwise(&(!bits).to_ne_bytes(), &bits.to_ne_bytes());
                let store = Attributes::new()
                    .be32(n::META_KEY, n::MARK)
                    .be32(n::META_SOURCE, n::REGISTER_1);
                list.then("meta", store)
            }
            Action::Count(counter, verdict) => self.counted_by(counter).verdict(verdict),
            Action::Deny(bits, counter) => {
                self.mark_connection(*bits, 0).counted_by(counter).verdict(&Verdict::Drop)
            }
            Action::MarkConnection(bits, value) => self.mark_connection(*bits, *value),
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
}

fn not_in(set: &str) -> Attributes {
    lookup(set).be32(n::LOOKUP_FLAGS, n::LOOKUP_INVERTED)
}

/// So many packets a second.
fn limit(rate: u64, burst: u32) -> Attributes {
    Attributes::new()
        .be64(n::LIMIT_RATE, rate)
        .be64(n::LIMIT_UNIT, 1)
        .be32(n::LIMIT_BURST, burst)
        .be32(n::LIMIT_TYPE, 0)
        .be32(n::LIMIT_FLAGS, 0)
}
