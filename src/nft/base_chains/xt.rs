//! Pure. Extensions of iptables inside rules of nftables: their name, and what only they know.

use crate::netlink::AttributeList;
use crate::nft::base_chains::expression_list::Expression;
use crate::nft::base_chains::rule::{RuleMatch, STATE_NEW};
use crate::nft::numbers::expression as n;

/// Extensions that ask for something that an ordinary packet is not.
pub const SPECIAL: [&str; 11] = [
    "tcp", "sctp", "icmp", "icmp6", "mark", "connmark", "addrtype", "physdev", "policy", "dscp",
    "mac",
];

/// Of `struct xt_conntrack_mtinfo3` (linux/netfilter/xt_conntrack.h): where the flags of what is
/// compared, those of what is negated, and the states are, each two bytes.
const CONNTRACK_COMPARED: usize = 146;
const CONNTRACK_NEGATED: usize = 148;
const CONNTRACK_STATES: usize = 150;
/// XT_CONNTRACK_STATE.
const CONNTRACK_STATE: u16 = 1;

/// The comment as iptables-nft writes it: an extension of its own.
pub fn comment((name, data): &Expression) -> Option<String> {
    let comment = name == "match" && data.text(n::XT_NAME).as_deref() == Some("comment");
    comment.then(|| data.text(n::XT_INFO)).flatten()
}

/// What an extension compares; nothing if a new connection always fulfils it.
pub fn matches(data: &AttributeList<'_>) -> Option<RuleMatch> {
    let info = data.get(n::XT_INFO).unwrap_or_default();
    match data.text(n::XT_NAME).unwrap_or_default().as_str() {
        "comment" => None,
        "conntrack" => match (half(info, CONNTRACK_COMPARED), half(info, CONNTRACK_STATES)) {
            (Some(CONNTRACK_STATE), Some(states)) => {
                let negated = half(info, CONNTRACK_NEGATED).unwrap_or(0) & CONNTRACK_STATE != 0;
                state(states, negated)
            }
            (Some(_), Some(_)) => Some(RuleMatch::never()),
            _ => Some(RuleMatch::unknown()),
        },
        "state" => state(half(info, 0)?, false),
        "udp" => Some(udp(info).unwrap_or_else(RuleMatch::unknown)),
        name if SPECIAL.contains(&name) => Some(RuleMatch::never()),
        _ => Some(RuleMatch::unknown()),
    }
}

/// Of `struct xt_udp` (linux/netfilter/xt_tcpudp.h): first and last source port, first and last
/// destination port, and the flags that negate them.
fn udp(info: &[u8]) -> Option<RuleMatch> {
    let negated = info.get(8)?;
    let any_source = (half(info, 0)?, half(info, 2)?, negated & 1) == (0, u16::MAX, 0);
    let ports = RuleMatch::ports(&[(half(info, 4)?, half(info, 6)?)]).negated(negated & 2 != 0);
    Some(if any_source { ports } else { RuleMatch::never() })
}

fn state(states: u16, negated: bool) -> Option<RuleMatch> {
    let new = u32::from(states) & STATE_NEW != 0;
    (new == negated).then(RuleMatch::never)
}

/// Two bytes in the host's order.
fn half(info: &[u8], at: usize) -> Option<u16> {
    let bytes = info.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}
