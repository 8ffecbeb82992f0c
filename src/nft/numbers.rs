//! Pure. Numbers of nftables' netlink messages: linux/netfilter/nf_tables.h, nfnetlink.h.

/// NFNL_SUBSYS_NFTABLES, in the upper byte of every message type.
const SUBSYSTEM: u16 = 10 << 8;

/// Message types.
pub mod message {
    use crate::nft::numbers::SUBSYSTEM;

    pub const BATCH_BEGIN: u16 = 16;
    pub const BATCH_END: u16 = 17;
    /// An attribute of the beginning: NFNL_BATCH_GENID.
    pub const BATCH_GENERATION: u16 = 1;
    pub const NEW_TABLE: u16 = SUBSYSTEM;
    pub const GET_TABLE: u16 = SUBSYSTEM | 1;
    pub const DELETE_TABLE: u16 = SUBSYSTEM | 2;
    pub const NEW_CHAIN: u16 = SUBSYSTEM | 3;
    pub const GET_CHAIN: u16 = SUBSYSTEM | 4;
    pub const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
    pub const NEW_RULE: u16 = SUBSYSTEM | 6;
    pub const GET_RULE: u16 = SUBSYSTEM | 7;
    pub const DELETE_RULE: u16 = SUBSYSTEM | 8;
    pub const NEW_SET: u16 = SUBSYSTEM | 9;
    pub const GET_SET: u16 = SUBSYSTEM | 10;
    pub const DELETE_SET: u16 = SUBSYSTEM | 11;
    pub const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
    pub const GET_ELEMENT: u16 = SUBSYSTEM | 13;
    pub const DELETE_ELEMENT: u16 = SUBSYSTEM | 14;
    pub const GET_GENERATION: u16 = SUBSYSTEM | 16;
    pub const NEW_OBJECT: u16 = SUBSYSTEM | 18;
    pub const GET_OBJECT: u16 = SUBSYSTEM | 19;
    pub const DELETE_OBJECT: u16 = SUBSYSTEM | 20;
    pub const NEW_FLOWTABLE: u16 = SUBSYSTEM | 22;
    pub const GET_FLOWTABLE: u16 = SUBSYSTEM | 23;
    pub const DELETE_FLOWTABLE: u16 = SUBSYSTEM | 24;
}

/// Attribute of the generation of all rules.
pub mod generation {
    pub const ID: u16 = 1;
}

/// Attributes of a table.
pub mod table {
    pub const NAME: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const USERDATA: u16 = 6;
    /// Flag: the table is there and does nothing.
    pub const DORMANT: u32 = 1;
    /// Flags: only the socket that says so may change it; and it stays when that socket is closed.
    pub const OWNER: u32 = 2;
    pub const PERSIST: u32 = 4;
}

/// Attributes of a chain and of its hook.
pub mod chain {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const POLICY: u16 = 5;
    /// How many rules it has and how many lead to it, together.
    pub const USE: u16 = 6;
    pub const TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const HOOK_DEVICE: u16 = 3;
    /// NF_NETDEV_INGRESS of linux/netfilter.h.
    pub const INGRESS: u32 = 0;
}

/// Attributes of a rule.
pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const HANDLE: u16 = 3;
    pub const EXPRESSIONS: u16 = 4;
    pub const USERDATA: u16 = 7;
}

/// Attributes of a set, of a list of elements, and of an element.
pub mod set {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const KEY_TYPE: u16 = 4;
    pub const KEY_LENGTH: u16 = 5;
    pub const DESCRIPTION: u16 = 9;
    pub const ID: u16 = 10;
    pub const USERDATA: u16 = 13;
    pub const LIST_TABLE: u16 = 1;
    pub const LIST_SET: u16 = 2;
    pub const LIST_ELEMENTS: u16 = 3;
    pub const SIZE: u16 = 1;
    pub const DATA_TYPE: u16 = 6;
    pub const DATA_LENGTH: u16 = 7;
    pub const ELEMENT_KEY: u16 = 1;
    pub const ELEMENT_DATA: u16 = 2;
    pub const ELEMENT_FLAGS: u16 = 3;
    pub const ELEMENT_USERDATA: u16 = 6;
    pub const ELEMENT_EXPRESSION: u16 = 7;
    /// Flags of a set: it is part of a rule; it never changes.
    pub const ANONYMOUS: u32 = 1;
    pub const CONSTANT: u32 = 2;
    /// Flag of a set: its elements are ranges.
    pub const INTERVAL: u32 = 4;
    /// Flag of a set: its elements have data.
    pub const MAP: u32 = 8;
    /// Flag of a set: rules add its elements.
    pub const DYNAMIC: u32 = 0x20;
    /// Flag of an element: it is the first address behind a range.
    pub const INTERVAL_END: u32 = 1;
    /// NFT_DATA_VERDICT of linux/netfilter/nf_tables.h as the type of data.
    pub const TYPE_VERDICT: u32 = 0xffff_ff00;
    /// Of a concatenation: the types of its parts, so many bits each, the last one lowest.
    pub const TYPE_BITS: u32 = 6;
}

/// Attributes of a flow table, of its hook, and of the list of devices that are hooked.
pub mod flowtable {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const HOOK: u16 = 3;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const DEVICES: u16 = 3;
    pub const DEVICE: u16 = 1;
    /// NF_NETDEV_INGRESS of linux/netfilter.h.
    pub const INGRESS: u32 = 0;
}

/// Attributes of a stateful object.
pub mod object {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const TYPE: u16 = 3;
    pub const DATA: u16 = 4;
    /// NFT_OBJECT_COUNTER.
    pub const COUNTER: u32 = 1;
}

/// Attributes of expressions, and what they hold.
pub mod expression {
    /// An element of a list, whatever the list.
    pub const LIST_ELEMENT: u16 = 1;
    pub const NAME: u16 = 1;
    pub const DATA: u16 = 2;
    pub const DATA_VALUE: u16 = 1;
    pub const DATA_VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
    pub const IMMEDIATE_REGISTER: u16 = 1;
    pub const IMMEDIATE_DATA: u16 = 2;
    pub const BITWISE_SOURCE: u16 = 1;
    pub const BITWISE_DESTINATION: u16 = 2;
    pub const BITWISE_LENGTH: u16 = 3;
    pub const BITWISE_MASK: u16 = 4;
    pub const BITWISE_XOR: u16 = 5;
    pub const COMPARE_REGISTER: u16 = 1;
    pub const COMPARE_OPERATION: u16 = 2;
    pub const COMPARE_DATA: u16 = 3;
    pub const LOOKUP_SET: u16 = 1;
    pub const LOOKUP_REGISTER: u16 = 2;
    pub const LOOKUP_DESTINATION: u16 = 3;
    pub const LOOKUP_FLAGS: u16 = 5;
    pub const PAYLOAD_REGISTER: u16 = 1;
    pub const PAYLOAD_BASE: u16 = 2;
    pub const PAYLOAD_OFFSET: u16 = 3;
    pub const PAYLOAD_LENGTH: u16 = 4;
    pub const PAYLOAD_SOURCE: u16 = 5;
    pub const PAYLOAD_CHECKSUM_TYPE: u16 = 6;
    pub const PAYLOAD_CHECKSUM_OFFSET: u16 = 7;
    /// NFT_PAYLOAD_CSUM_INET: the checksum of RFC 1071.
    pub const CHECKSUM_INET: u32 = 1;
    pub const META_REGISTER: u16 = 1;
    pub const META_KEY: u16 = 2;
    pub const CONNECTION_REGISTER: u16 = 1;
    pub const CONNECTION_KEY: u16 = 2;
    pub const CONNECTION_WAY: u16 = 3;
    pub const CONNECTION_SOURCE: u16 = 4;
    pub const OBJECT_TYPE: u16 = 1;
    pub const OBJECT_NAME: u16 = 2;
    pub const LIMIT_RATE: u16 = 1;
    pub const LIMIT_UNIT: u16 = 2;
    pub const LIMIT_BURST: u16 = 3;
    pub const LIMIT_TYPE: u16 = 4;
    pub const LIMIT_FLAGS: u16 = 5;
    pub const LOG_GROUP: u16 = 1;
    pub const LOG_PREFIX: u16 = 2;
    pub const OFFLOAD_TABLE: u16 = 1;
    pub const META_SOURCE: u16 = 3;
    pub const DYNSET_SET: u16 = 1;
    pub const DYNSET_OPERATION: u16 = 3;
    pub const DYNSET_KEY: u16 = 4;
    pub const DYNSET_EXPRESSION: u16 = 7;
    pub const FIB_REGISTER: u16 = 1;
    pub const FIB_RESULT: u16 = 2;
    pub const FIB_FLAGS: u16 = 3;
    pub const NAT_KIND: u16 = 1;
    pub const NAT_FAMILY: u16 = 2;
    pub const NAT_ADDRESS: u16 = 3;
    pub const NAT_PORT: u16 = 5;
    pub const NAT_FLAGS: u16 = 7;
    pub const COUNTER_BYTES: u16 = 1;
    pub const COUNTER_PACKETS: u16 = 2;
    pub const MASQUERADE_FLAGS: u16 = 1;
    /// Of `match` and `target`: extensions of iptables.
    pub const XT_NAME: u16 = 1;
    pub const XT_INFO: u16 = 3;

    pub const EQUAL: u32 = 0;
    pub const NOT_EQUAL: u32 = 1;
    pub const LESS: u32 = 2;
    pub const AT_MOST: u32 = 3;
    pub const AT_LEAST: u32 = 5;
    pub const LOOKUP_INVERTED: u32 = 1;
    /// NFT_DYNSET_OP_ADD.
    pub const ADD: u32 = 0;
    pub const LINK_HEADER: u32 = 0;
    pub const NETWORK_HEADER: u32 = 1;
    pub const TRANSPORT_HEADER: u32 = 2;
    /// Where TCP, UDP and SCTP have the destination port.
    pub const PORT_OFFSET: u32 = 2;
    /// Of IPv6.
    pub const HOP_LIMIT_OFFSET: u32 = 7;
    /// IPPROTO_ICMPV6.
    pub const ICMPV6: u8 = 58;
    pub const MARK: u32 = 3;
    pub const SOCKET_USER: u32 = 10;
    pub const INPUT_INDEX: u32 = 4;
    pub const OUTPUT_INDEX: u32 = 5;
    pub const INPUT_NAME: u32 = 6;
    pub const OUTPUT_NAME: u32 = 7;
    pub const NF_PROTOCOL: u32 = 15;
    /// NFT_CT_STATE, and the bit of `established`: both directions were seen.
    pub const CONNECTION_STATE: u32 = 0;
    pub const CONNECTION_DIRECTION: u32 = 1;
    pub const CONNECTION_STATUS: u32 = 2;
    /// IPS_DST_NAT.
    pub const DESTINATION_TRANSLATED: u32 = 1 << 5;
    pub const CONNECTION_MARK: u32 = 3;
    pub const ESTABLISHED: u32 = 2;
    pub const NEW: u32 = 8;
    pub const RELATED: u32 = 4;
    pub const INVALID: u32 = 1;
    /// The bits of `invalid` and `untracked`: the packet is of no connection.
    pub const NO_CONNECTION: u32 = INVALID | 1 << 6;
    pub const CONNECTION_PROTOCOL: u32 = 10;
    pub const CONNECTION_SOURCE_PORT: u32 = 11;
    pub const CONNECTION_DESTINATION_PORT: u32 = 12;
    pub const CONNECTION_SOURCE_IPV4: u32 = 19;
    pub const CONNECTION_SOURCE_IPV6: u32 = 21;
    /// IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY.
    pub const ORIGINAL: u8 = 0;
    pub const REPLY: u8 = 1;
    pub const L4_PROTOCOL: u32 = 16;
    pub const PACKET_TYPE: u32 = 19;
    pub const PRIORITY: u32 = 2;
    pub const FORWARD_DEVICE: u16 = 1;
    /// PACKET_HOST of linux/if_packet.h.
    pub const FOR_THIS_HOST: u8 = 0;
    pub const SOURCE_NAT: u32 = 0;
    pub const DESTINATION_NAT: u32 = 1;
    /// NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR; RTN_LOCAL of linux/rtnetlink.h.
    pub const FIB_ADDRESS_TYPE: u32 = 3;
    pub const FIB_OF_DESTINATION: u32 = 1 << 1;
    /// NFTA_FIB_F_SADDR
    pub const FIB_OF_SOURCE: u32 = 1;
    pub const LOCAL: u32 = 2;
    pub const REGISTER_VERDICT: u32 = 0;
    pub const REGISTER_1: u32 = 1;
    /// NFT_REG32_00: the first 4 bytes of register 1; the others follow.
    pub const REGISTER_4_BYTES: u32 = 8;
    /// NF_NAT_RANGE_PROTO_RANDOM_FULLY of linux/netfilter/nf_nat.h.
    pub const FULLY_RANDOM: u32 = 1 << 4;
    /// NFT_CONTINUE and others of linux/netfilter/nf_tables.h, negative numbers.
    pub const CONTINUE: u32 = (-1_i32).cast_unsigned();
    pub const JUMP: u32 = (-3_i32).cast_unsigned();
    pub const GOTO: u32 = (-4_i32).cast_unsigned();
    pub const RETURN: u32 = (-5_i32).cast_unsigned();
    /// NF_DROP and NF_ACCEPT of linux/netfilter.h.
    pub const DROP: u32 = 0;
    pub const ACCEPT: u32 = 1;
}

/// Families (NFPROTO_* of linux/netfilter.h).
pub mod family {
    use crate::net::Family;

    pub const ANY: u8 = 0;
    pub const INET: u8 = 1;
    pub const IPV4: u8 = 2;
    pub const NETDEV: u8 = 5;
    pub const IPV6: u8 = 10;

    pub fn number(family: Family) -> u8 {
        match family {
            Family::V4 => IPV4,
            Family::V6 => IPV6,
        }
    }
}
