//! Pure. One validated range of addresses.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::cni::config::RangeConf;
use crate::net::subnet::{family, last, masked, number, offset};
use crate::net::{Family, subnet};

/// Consecutive addresses of one subnet, `start` to `end`, both included; the gateway is never
/// allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    subnet: IpNetwork,
    pub(super) start: IpAddr,
    pub(super) end: IpAddr,
    gateway: IpAddr,
}

/// Why ranges cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Host bits are set: the subnet as written, and without them.
    #[error("subnet {0} has host bits set; the subnet is {1}")]
    HostBits(IpNetwork, IpNetwork),
    /// Longer than /30 or /126.
    #[error("subnet {0} is too small to allocate addresses: it must be /{1} or wider")]
    TooSmall(IpNetwork, u8),
    /// A special subnet: why.
    #[error("subnet {0}")]
    Unfit(String),
    /// A start, end or gateway of another family or another subnet.
    #[error("{what} {address} is not an address of subnet {subnet}")]
    Outside {
        /// `rangeStart`, `rangeEnd` or `gateway`.
        what: &'static str,
        address: IpAddr,
        subnet: IpNetwork,
    },
    #[error("rangeStart {0} is after rangeEnd {1}")]
    Backwards(IpAddr, IpAddr),
    /// The gateway is the only address.
    #[error("range {0} holds no address besides the gateway")]
    OnlyGateway(String),
    #[error("a range set is empty: give it at least one range with a subnet")]
    EmptySet,
    /// IPv4 and IPv6 in one set.
    #[error("range set mixes IPv4 and IPv6: {0} and {1}; put each family in a set of its own")]
    MixedFamilies(String, String),
    /// Two ranges share an address.
    #[error("ranges {0} and {1} overlap")]
    Overlap(String, String),
}

impl RangeError {
    pub(super) fn overlap(one: &Range, other: &Range) -> RangeError {
        RangeError::Overlap(one.to_string(), other.to_string())
    }
}

impl Range {
    /// The range that `conf` describes: from its start (default: the first host address) to its
    /// end (default: the last; for IPv4 the one before the broadcast address); the gateway defaults
    /// to the first host address.
    ///
    /// # Errors
    /// [`RangeError`] if the subnet has host bits, is longer than /30 (IPv6: /126) or
    /// [unfit](subnet::unfit) for pods, an address lies outside it or is its network or broadcast
    /// address, or there is no address but the gateway.
    ///
    /// Source: the defaults of CNI's host-local.
    pub fn new(conf: &RangeConf) -> Result<Range, RangeError> {
        let subnet = conf.subnet;
        if masked(subnet) != subnet {
            return Err(RangeError::HostBits(subnet, masked(subnet)));
        }
        let longest = family(subnet).bits() - 2;
        if subnet.prefix() > longest {
            return Err(RangeError::TooSmall(subnet, longest));
        }
        if let Some(why) = subnet::unfit(subnet) {
            return Err(RangeError::Unfit(why));
        }
        let inside = |what, address: IpAddr| {
            if address >= subnet::gateway(subnet) && address <= last_host(subnet) {
                Ok(address)
            } else {
                Err(RangeError::Outside { what, address, subnet })
            }
        };
        let start = inside("rangeStart", conf.range_start.unwrap_or(subnet::gateway(subnet)))?;
        let end = inside("rangeEnd", conf.range_end.unwrap_or(last_host(subnet)))?;
        let gateway = inside("gateway", conf.gateway.unwrap_or(subnet::gateway(subnet)))?;
        let range = Range { subnet, start, end, gateway };
        if start > end {
            return Err(RangeError::Backwards(start, end));
        }
        if start == end && start == gateway {
            return Err(RangeError::OnlyGateway(range.to_string()));
        }
        Ok(range)
    }

    /// The subnet that the range is part of: prefix length of the pods' addresses.
    pub fn subnet(&self) -> IpNetwork {
        self.subnet
    }

    /// The gateway of the pods that get an address of this range.
    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// `address` lies between start and end.
    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of(address) == Family::of(self.start)
            && self.start <= address
            && address <= self.end
    }

    pub(super) fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.start) || other.contains(self.start)
    }
}

impl fmt::Display for Range {
    /// `10.1.2.1-10.1.2.254`, as host-local writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// The last address a pod may have: not the IPv4 broadcast address.
fn last_host(subnet: IpNetwork) -> IpAddr {
    match family(subnet) {
        Family::V4 => offset(subnet.network(), number(last(subnet)) - number(subnet.network()) - 1),
        Family::V6 => last(subnet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(subnet: &str) -> RangeConf {
        let subnet = subnet.parse().unwrap();
        RangeConf { subnet, range_start: None, range_end: None, gateway: None }
    }

    #[test]
    fn host_bits_are_refused_with_the_correct_subnet() {
        for (written, meant) in [
            ("10.1.2.3/24", "10.1.2.0/24"),
            ("10.1.3.0/23", "10.1.2.0/23"),
            ("fd00::1/64", "fd00::/64"),
            ("fd00:0:0:1::/63", "fd00::/63"),
        ] {
            let error = Range::new(&conf(written)).unwrap_err();
            let text = format!("subnet {written} has host bits set; the subnet is {meant}");
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_31_is_too_small() {
        for text in ["10.1.2.0/31", "10.1.2.0/32", "fd00::/127", "fd00::/128"] {
            let error = Range::new(&conf(text)).unwrap_err();
            assert!(error.to_string().contains("too small"), "{text}: {error}");
        }
    }

    #[test]
    fn bounds_outside_the_subnet_or_backwards_are_refused() {
        for (start, end, gateway, text) in [
            ("10.1.3.1", "10.1.3.9", None, "rangeStart 10.1.3.1 is not an address of subnet"),
            ("10.1.2.1", "10.1.3.9", None, "rangeEnd 10.1.3.9 is not an address of subnet"),
            ("10.1.2.0", "10.1.2.9", None, "rangeStart 10.1.2.0 is not"),
            ("10.1.2.1", "10.1.2.255", None, "rangeEnd 10.1.2.255 is not"),
            ("10.1.2.9", "10.1.2.5", None, "rangeStart 10.1.2.9 is after rangeEnd 10.1.2.5"),
            ("10.1.2.2", "10.1.2.9", Some("10.9.9.1"), "gateway 10.9.9.1 is not an address of"),
            ("fd00::2", "10.1.2.9", None, "rangeStart fd00::2 is not an address of subnet"),
            ("10.1.2.1", "10.1.2.1", None, "holds no address besides the gateway"),
        ] {
            let conf = RangeConf {
                range_start: Some(start.parse().unwrap()),
                range_end: Some(end.parse().unwrap()),
                gateway: gateway.map(|gateway: &str| gateway.parse().unwrap()),
                ..conf("10.1.2.0/24")
            };
            let error = Range::new(&conf).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
