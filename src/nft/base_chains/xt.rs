//! Pure. Extensions of iptables inside rules of nftables: their name, and what only they know.

use crate::netlink::AttributeList;
use crate::nft::numbers::expression as n;

use crate::nft::base_chains::decode::Expression;
use crate::nft::base_chains::numbers::STATE_NEW;
use crate::nft::base_chains::rule::{Criterion, Match};

/// Of `struct xt_conntrack_mtinfo3` (linux/netfilter/xt_conntrack.h): where the flags that say what
/// is asked, those that say what is negated, and the states stand, each two bytes.
const CONNTRACK_ASKED: usize = 146;
const CONNTRACK_NEGATED: usize = 148;
const CONNTRACK_STATES: usize = 150;
/// XT_CONNTRACK_STATE.
const CONNTRACK_STATE: u16 = 1;

/// The comment as iptables-nft writes it: an extension of its own.
pub fn comment((name, data): &Expression) -> Option<String> {
    let comment = name == "match" && data.text(n::XT_NAME).as_deref() == Some("comment");
    comment.then(|| data.text(n::XT_INFO)).flatten()
}

/// What an extension asks; `None` if it asks nothing of a new connection.
pub fn condition(data: &AttributeList) -> Option<Match> {
    let name = data.text(n::XT_NAME).unwrap_or_default();
    let info = data.get(n::XT_INFO).unwrap_or_default();
    let asks = match name.as_str() {
        "comment" => return None,
        "conntrack" => return conntrack(info),
        "state" => return state(u32::from(half(info, 0)?), false),
        "udp" => return udp(info),
        "tcp" | "sctp" | "icmp" | "icmp6" | "mark" | "connmark" | "addrtype" | "physdev"
        | "policy" | "dscp" | "mac" => Criterion::Special,
        _ => Criterion::Unknown,
    };
    Some(asks.holds())
}

/// Of `struct xt_udp` (linux/netfilter/xt_tcpudp.h): first and last source port, first and last
/// destination port, and the flags that negate them.
fn udp(info: &[u8]) -> Option<Match> {
    let port = |at| half(info, at);
    let (Some(from), Some(until), Some(first), Some(last), Some(negated)) =
        (port(0), port(2), port(4), port(6), info.get(8))
    else {
        return Some(Criterion::Unknown.holds());
    };
    let any_source = (from, until) == (0, u16::MAX) && negated & 1 == 0;
    match any_source {
        true => {
            Some(Match { asks: Criterion::Port(vec![(first, last)]), negated: negated & 2 != 0 })
        }
        false => Some(Criterion::Special.holds()),
    }
}

fn conntrack(info: &[u8]) -> Option<Match> {
    let asked = half(info, CONNTRACK_ASKED);
    let (Some(asked), Some(states)) = (asked, half(info, CONNTRACK_STATES)) else {
        return Some(Criterion::Unknown.holds());
    };
    let negated = half(info, CONNTRACK_NEGATED).unwrap_or(0) & CONNTRACK_STATE != 0;
    match asked {
        CONNTRACK_STATE => state(u32::from(states), negated),
        _ => Some(Criterion::Special.holds()),
    }
}

fn state(states: u32, negated: bool) -> Option<Match> {
    let new = states & STATE_NEW != 0;
    (new == negated).then(|| Criterion::Special.holds())
}

/// Two bytes in the host's order.
fn half(info: &[u8], at: usize) -> Option<u16> {
    let bytes = info.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}
