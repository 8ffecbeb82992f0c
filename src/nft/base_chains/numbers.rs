//! Pure. Numbers of rules that only others write: linux/netfilter/nf_tables.h, nf_conntrack_common.h.

/// NFT_META_*.
pub const PROTOCOL: u32 = 1;
pub const MARK: u32 = 3;
pub const L4_PROTOCOL: u32 = 16;
pub const INPUT_INDEX: u32 = 4;
pub const OUTPUT_INDEX: u32 = 5;

/// NFT_PAYLOAD_TRANSPORT_HEADER, and where the port is in it that TCP, UDP and SCTP send to.
pub const TRANSPORT_HEADER: u32 = 2;
pub const PORT_OFFSET: u32 = 2;

/// NFTA_CT_* and NFT_CT_*.
pub const CT_REGISTER: u16 = 1;
pub const CT_KEY: u16 = 2;
pub const CT_STATE: u32 = 0;
pub const CT_DIRECTION: u32 = 1;
pub const CT_STATUS: u32 = 2;
pub const CT_MARK: u32 = 3;

/// NF_CT_STATE_BIT(IP_CT_NEW), as nft and the `conntrack` extension of iptables count.
pub const STATE_NEW: u32 = 8;

/// NFTA_LOOKUP_DREG.
pub const LOOKUP_TO: u16 = 3;

/// Ethernet's numbers of IPv4 and IPv6, network order.
pub const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
pub const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
