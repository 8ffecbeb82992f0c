//! Pure. Subnets: parsing, cutting a pool into slots, gateway, overlap.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use crate::net::Family;

/// Characters of a text that is no subnet, for its error.
const SHOWN: usize = 64;

/// Why a text is no subnet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// No CIDR.
    #[error("{0:?} is not a subnet (address/length, as in 10.244.0.0/16)")]
    Syntax(String),
    /// Bits are set behind the prefix.
    #[error("{0} has host bits set; the subnet is {1}")]
    HostBits(String, IpNetwork),
}

/// The subnet that `text` names: a CIDR with a length and without host bits.
///
/// # Errors
/// [`SubnetError`]; for host bits it names the subnet that was probably meant.
pub fn parse(text: &str) -> Result<IpNetwork, SubnetError> {
    let parsed = text.contains('/').then(|| text.parse::<IpNetwork>().ok()).flatten();
    let start = || text.chars().take(SHOWN).collect();
    let written = parsed.ok_or_else(|| SubnetError::Syntax(start()))?;
    let subnet = masked(written);
    if subnet == written { Ok(subnet) } else { Err(SubnetError::HostBits(start(), subnet)) }
}

/// `network` without its host bits.
pub fn masked(network: IpNetwork) -> IpNetwork {
    with_prefix(network.network(), network.prefix())
}

/// The address family of a network.
pub fn family(network: IpNetwork) -> Family {
    Family::of(network.ip())
}

/// `address`/`prefix`; `prefix` is at most the bits of the address's family.
pub fn with_prefix(address: IpAddr, prefix: u8) -> IpNetwork {
    IpNetwork::new(address, prefix.min(Family::of(address).bits())).expect("the prefix is in range")
}

/// The host route to one address: /32 or /128.
pub fn host(address: IpAddr) -> IpNetwork {
    with_prefix(address, Family::of(address).bits())
}

/// The gateway of a subnet: its first host address.
pub fn gateway(subnet: IpNetwork) -> IpAddr {
    offset(subnet.network(), 1)
}

/// `address` + `count`, wrapping at the end of the family's space.
pub fn offset(address: IpAddr, count: u128) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4).wrapping_add(count as u32))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6).wrapping_add(count))),
    }
}

/// The address as a number.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The two networks share an address.
pub fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    contains(a, b) || contains(b, a)
}

/// Every address of `inner` lies in `outer`.
pub fn contains(outer: IpNetwork, inner: IpNetwork) -> bool {
    outer.prefix() <= inner.prefix() && outer.contains(inner.network())
}

/// Why pods cannot have addresses of `subnet`, if so: it is everything, or holds addresses that mean
/// something else on every host.
///
/// Source: RFC 6890; for 224.0.0.0/3, RFC 5771 (multicast) and RFC 1112 §4 (reserved).
pub fn unfit(subnet: IpNetwork) -> Option<String> {
    const ELSEWHERE: [(&str, &str); 9] = [
        ("0.0.0.0/8", "means this network (RFC 1122)"),
        ("127.0.0.0/8", "is every host's own (loopback)"),
        ("169.254.0.0/16", "is link-local"),
        ("224.0.0.0/3", "is for multicast or reserved"),
        ("::/128", "is no address"),
        ("::1/128", "is every host's own (loopback)"),
        ("::ffff:0:0/96", "means IPv4 addresses"),
        ("fe80::/10", "is link-local"),
        ("ff00::/8", "is for multicast"),
    ];
    if subnet.prefix() == 0 {
        return Some(format!("{subnet} cannot be used for pods: it is every address there is"));
    }
    let meant = ELSEWHERE.iter().find(|(other, _)| {
        let other: IpNetwork = other.parse().expect("a subnet");
        overlap(other, subnet)
    });
    meant.map(|(other, what)| format!("{subnet} cannot be used for pods: {other} {what}"))
}

/// A pool cut into equal subnets, one for each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    network: IpNetwork,
    margin: u8,
}

/// Why a pool cannot be cut so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{network} cut by {margin} more bits gives /{}; a host's subnet must be /{longest} or wider and the margin 1 to 24",
    u16::from(network.prefix()) + u16::from(*margin))]
pub struct PoolError {
    network: IpNetwork,
    margin: u8,
    longest: u8,
}

impl Pool {
    /// `network` (no host bits) cut by `margin` more prefix bits: /16 and 8 give 256 times /24.
    ///
    /// # Errors
    /// [`PoolError`] unless 1 ≤ margin ≤ 24 and the hosts' subnets are at most /30 (IPv4) or /126.
    pub fn new(network: IpNetwork, margin: u8) -> Result<Pool, PoolError> {
        let longest = family(network).bits() - 2;
        let fits = u16::from(network.prefix()) + u16::from(margin) <= u16::from(longest);
        if (1..=24).contains(&margin) && fits {
            Ok(Pool { network, margin })
        } else {
            Err(PoolError { network, margin, longest })
        }
    }

    /// The pool of a host that is alone: one subnet, the host's.
    pub fn of_one(subnet: IpNetwork) -> Pool {
        Pool { network: subnet, margin: 0 }
    }

    /// The whole pool.
    pub fn network(&self) -> IpNetwork {
        self.network
    }

    /// Extra prefix bits.
    pub fn margin(&self) -> u8 {
        self.margin
    }

    /// Prefix length of a host's subnet.
    pub fn host_prefix(&self) -> u8 {
        self.network.prefix() + self.margin
    }

    /// Every subnet of `other` is one of this pool, which has more of them.
    pub fn widens(&self, other: &Pool) -> bool {
        self.host_prefix() == other.host_prefix()
            && self.margin > other.margin
            && contains(self.network, other.network)
    }

    /// How many subnets the pool has, slot 0 included.
    pub fn slots(&self) -> u32 {
        1 << self.margin
    }

    /// The subnet of `slot` (below [`Pool::slots`]).
    pub fn subnet(&self, slot: u32) -> IpNetwork {
        let size = 1u128 << (family(self.network).bits() - self.host_prefix());
        with_prefix(offset(self.network.network(), u128::from(slot) * size), self.host_prefix())
    }

    /// The slots that `subnet` touches, as first and last; `None` if it lies outside the pool.
    ///
    /// A subnet wider than a slot (left by an older margin) covers several.
    pub fn slots_of(&self, subnet: IpNetwork) -> Option<(u32, u32)> {
        if family(subnet) != family(self.network) || !overlap(self.network, subnet) {
            return None;
        }
        if contains(subnet, self.network) {
            return Some((0, self.slots() - 1));
        }
        let shift = family(self.network).bits() - self.host_prefix();
        let base = number(self.network.network());
        let slot = |address: IpAddr| ((number(address) - base) >> shift) as u32;
        Some((slot(subnet.network()), slot(last(subnet))))
    }
}

/// The last address of a network (IPv4: its broadcast address).
pub fn last(network: IpNetwork) -> IpAddr {
    match network {
        IpNetwork::V4(v4) => IpAddr::V4(Ipv4Network::broadcast(&v4)),
        IpNetwork::V6(v6) => IpAddr::V6(Ipv6Network::broadcast(&v6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNetwork {
        parse(text).unwrap()
    }

    #[test]
    fn host_bits_are_refused_with_the_subnet_that_was_meant() {
        let error = parse("10.1.2.3/24").unwrap_err();
        assert_eq!(error.to_string(), "10.1.2.3/24 has host bits set; the subnet is 10.1.2.0/24");
        assert!(parse("fd00::1/64").is_err());
    }

    #[test]
    fn text_that_is_no_subnet_is_refused() {
        for bad in [
            "",
            "10.1.2.0",
            "10.1.2.0/33",
            "10.1.2/24",
            "a/8",
            "10.0.0.0/8; reboot",
            "/",
            "fd00::/129",
        ] {
            assert!(matches!(parse(bad), Err(SubnetError::Syntax(_))), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_pool_is_cut_into_slots() {
        let pool = Pool::new(net("10.244.0.0/16"), 8).unwrap();
        assert_eq!(pool.slots(), 256);
        assert_eq!(pool.subnet(0), net("10.244.0.0/24"));
        assert_eq!(pool.subnet(255), net("10.244.255.0/24"));
        assert_eq!(pool.slots_of(net("10.244.3.0/24")), Some((3, 3)));
        assert_eq!(pool.slots_of(net("10.244.2.0/23")), Some((2, 3)));
        assert_eq!(pool.slots_of(net("10.244.3.128/25")), Some((3, 3)));
        assert_eq!(pool.slots_of(net("10.0.0.0/8")), Some((0, 255)));
        assert_eq!(pool.slots_of(net("10.245.0.0/24")), None);
        assert_eq!(pool.slots_of(net("fd00::/24")), None);
    }

    #[test]
    fn an_ipv6_pool_is_cut_into_slots() {
        let pool = Pool::new(net("fd00:10::/48"), 16).unwrap();
        assert_eq!(pool.subnet(3), net("fd00:10:0:3::/64"));
        assert_eq!(pool.slots_of(net("fd00:10:0:3::/64")), Some((3, 3)));
    }

    #[test]
    fn a_wider_pool_has_the_subnets_of_the_narrower_one() {
        let pool = |text, margin| Pool::new(net(text), margin).unwrap();
        let narrow = pool("10.244.0.0/16", 8);
        assert!(pool("10.244.0.0/15", 9).widens(&narrow));
        assert!(pool("10.0.0.0/8", 16).widens(&narrow));
        for (network, margin) in
            [("10.244.0.0/16", 8), ("10.244.0.0/15", 8), ("10.246.0.0/15", 9), ("fd00::/15", 9)]
        {
            assert!(!pool(network, margin).widens(&narrow), "{network} + {margin}");
        }
        assert!(!narrow.widens(&pool("10.244.0.0/15", 9)));
    }

    #[test]
    fn a_pool_that_leaves_no_room_for_pods_is_refused() {
        assert!(Pool::new(net("10.244.0.0/16"), 14).is_ok());
        for (network, margin) in
            [("10.244.0.0/16", 15), ("10.244.0.0/16", 0), ("fd00::/120", 7), ("fd00::/48", 25)]
        {
            assert!(Pool::new(net(network), margin).is_err(), "{network} + {margin} was taken");
        }
    }

    #[test]
    fn the_gateway_is_the_first_host() {
        assert_eq!(gateway(net("10.244.3.0/24")).to_string(), "10.244.3.1");
        assert_eq!(gateway(net("fd00::/64")).to_string(), "fd00::1");
    }

    #[test]
    fn a_subnet_whose_addresses_mean_something_else_is_unfit_for_pods() {
        for (subnet, why) in [
            ("0.0.0.0/0", "it is every address there is"),
            ("::/0", "it is every address there is"),
            ("0.0.0.0/8", "0.0.0.0/8 means this network"),
            ("0.0.0.0/1", "0.0.0.0/8 means this network"),
            ("127.0.0.0/8", "127.0.0.0/8 is every host's own"),
            ("127.1.2.0/24", "127.0.0.0/8 is every host's own"),
            ("126.0.0.0/7", "127.0.0.0/8 is every host's own"),
            ("169.254.0.0/16", "169.254.0.0/16 is link-local"),
            ("224.0.0.0/8", "224.0.0.0/3 is for multicast or reserved"),
            ("240.0.0.0/8", "224.0.0.0/3 is for multicast or reserved"),
            ("255.255.0.0/16", "224.0.0.0/3 is for multicast or reserved"),
            ("::/64", "::/128 is no address"),
            ("::1/128", "::1/128 is every host's own"),
            ("::ffff:0:0/96", "::ffff:0:0/96 means IPv4 addresses"),
            ("::ffff:10.0.0.0/104", "::ffff:0:0/96 means IPv4 addresses"),
            ("fe80::/64", "fe80::/10 is link-local"),
            ("ff00::/48", "ff00::/8 is for multicast"),
        ] {
            let why_unfit = unfit(net(subnet)).unwrap_or_default();
            let wanted = format!("{} cannot be used for pods: {why}", net(subnet));
            assert!(why_unfit.starts_with(&wanted), "{why_unfit}");
        }
    }

    #[test]
    fn whatever_else_is_fit_for_pods() {
        for subnet in [
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "198.18.0.0/15",
            "192.0.2.0/24",
            "1.0.0.0/8",
            "126.0.0.0/8",
            "128.0.0.0/16",
            "169.255.0.0/16",
            "223.0.0.0/8",
            "fd00::/8",
            "2001:db8::/32",
            "64:ff9b::/96",
            "1::/64",
            "fec0::/10",
        ] {
            assert_eq!(unfit(net(subnet)), None);
        }
    }

    #[test]
    fn overlap_is_symmetric_and_families_never_meet() {
        assert!(overlap(net("10.0.0.0/8"), net("10.1.0.0/16")));
        assert!(overlap(net("10.1.0.0/16"), net("10.0.0.0/8")));
        assert!(!overlap(net("10.0.0.0/9"), net("10.128.0.0/9")));
        assert!(!overlap(net("0.0.0.0/0"), net("::/0")));
    }
}
