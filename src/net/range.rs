//! Pure. Ranges of addresses, and the fewest that cover a list of networks.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, subnet};

/// All addresses from the first to the last, both included and of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// From `first` to `last`; `None` if they are of two families or the wrong way round.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<AddressRange> {
        let ordered = Family::of(first) == Family::of(last) && first <= last;
        ordered.then_some(AddressRange { first, last })
    }

    /// The one address.
    pub fn single(address: IpAddr) -> AddressRange {
        AddressRange { first: address, last: address }
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The last address.
    pub fn last(&self) -> IpAddr {
        self.last
    }

    /// The addresses that are in `other`, too, if there are any.
    pub fn common(&self, other: &AddressRange) -> Option<AddressRange> {
        AddressRange::new(self.first.max(other.first), self.last.min(other.last))
    }

    /// The network that this range is exactly, if it is one.
    pub fn network(&self) -> Option<IpNetwork> {
        let count = subnet::number(self.last) - subnet::number(self.first);
        let host_bits = 128 - count.leading_zeros();
        let prefix = Family::of(self.first).bits() - host_bits as u8;
        let network = subnet::with_prefix(self.first, prefix);
        (AddressRange::from(network) == *self).then_some(network)
    }
}

impl From<IpNetwork> for AddressRange {
    /// The addresses of `network`, whatever its host bits.
    fn from(network: IpNetwork) -> AddressRange {
        AddressRange { first: network.network(), last: subnet::last(network) }
    }
}

impl fmt::Display for AddressRange {
    /// As nft writes it: `192.0.2.1`, `10.244.0.0/16`, `192.0.2.1-192.0.2.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            _ if self.first == self.last => self.first.fmt(f),
            Some(network) => network.fmt(f),
            None => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// The fewest ranges that hold exactly the addresses of `networks`, in order, IPv4 first.
///
/// What overlaps or touches becomes one, as an interval set of nftables needs it: it refuses
/// overlapping elements.
pub fn covering(networks: impl IntoIterator<Item = IpNetwork>) -> Vec<AddressRange> {
    merged(networks.into_iter().map(AddressRange::from).collect())
}

/// The fewest ranges that hold exactly the addresses of `ranges`, in order, IPv4 first.
pub fn merged(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.sort_unstable();
    let mut merged: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(before) if reaches(before, range.first) => {
                before.last = before.last.max(range.last)
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// `address`, which is not below the range, lies in it or directly behind it.
fn reaches(range: &AddressRange, address: IpAddr) -> bool {
    let behind = subnet::number(range.last).checked_add(1);
    let same_family = Family::of(range.last) == Family::of(address);
    same_family && behind.is_none_or(|behind| subnet::number(address) <= behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(networks: &[&str], wanted: &[&str]) {
        let networks = networks.iter().map(|text| text.parse::<IpNetwork>().unwrap());
        let found: Vec<String> = covering(networks).iter().map(|range| range.to_string()).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn separate_networks_stay_and_come_in_order() {
        check(&["192.0.2.0/24", "10.0.0.0/8"], &["10.0.0.0/8", "192.0.2.0/24"]);
    }

    #[test]
    fn a_network_inside_another_vanishes() {
        check(&["10.1.0.0/16", "10.0.0.0/8", "10.2.3.4/32"], &["10.0.0.0/8"]);
    }

    #[test]
    fn halves_become_the_whole() {
        check(&["10.128.0.0/9", "10.0.0.0/9"], &["10.0.0.0/8"]);
    }

    #[test]
    fn neighbours_that_are_no_network_become_a_range() {
        check(&["10.0.1.0/24", "10.0.2.0/24"], &["10.0.1.0-10.0.2.255"]);
    }

    #[test]
    fn one_address_is_written_without_a_length() {
        check(&["192.0.2.1/32", "fd00::1/128"], &["192.0.2.1", "fd00::1"]);
    }

    #[test]
    fn families_never_meet() {
        check(&["0.0.0.0/0", "::/0"], &["0.0.0.0/0", "::/0"]);
        check(&["255.255.255.255/32", "::/128"], &["255.255.255.255", "::"]);
    }

    #[test]
    fn the_end_of_the_space_is_no_trap() {
        check(&["255.255.255.255/32", "224.0.0.0/3"], &["224.0.0.0/3"]);
        check(&["ff00::/8", "ffff::/16"], &["ff00::/8"]);
    }

    #[test]
    fn host_bits_do_not_matter() {
        check(&["10.1.2.3/8", "10.0.0.0/8"], &["10.0.0.0/8"]);
    }

    #[test]
    fn nothing_covers_nothing() {
        check(&[], &[]);
    }
}
