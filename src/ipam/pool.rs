//! Pure. The range sets of a network, and the order in which their addresses are allocated.

use std::fmt;
use std::net::IpAddr;

use crate::cni::config::RangeConf;
use crate::ipam::range::{Range, RangeError};
use crate::net::Family;
use crate::net::subnet::{family, number, offset};

/// Ranges from which a pod gets one address: one family, no overlap, at least one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
}

/// The range sets that `conf` describes; a pod gets one address out of each.
///
/// # Errors
/// [`RangeError`] if a range cannot be used, a set is empty or mixes families, or two ranges of the
/// network share an address.
pub fn range_sets(conf: &[Vec<RangeConf>]) -> Result<Vec<RangeSet>, RangeError> {
    let mut sets: Vec<RangeSet> = Vec::with_capacity(conf.len());
    for ranges in conf {
        let ranges: Result<_, _> = ranges.iter().map(Range::new).collect();
        let set = RangeSet::new(ranges?)?;
        let mut others = sets.iter().flat_map(RangeSet::ranges);
        let shared = others.find_map(|other| {
            set.ranges.iter().find(|range| range.overlaps(other)).map(|range| (other, range))
        });
        if let Some((other, range)) = shared {
            return Err(RangeError::overlap(other, range));
        }
        sets.push(set);
    }
    Ok(sets)
}

impl RangeSet {
    /// A set of `ranges`.
    ///
    /// # Errors
    /// [`RangeError`] if there is none, the families differ, or two overlap.
    pub fn new(ranges: Vec<Range>) -> Result<RangeSet, RangeError> {
        let first = *ranges.first().ok_or(RangeError::EmptySet)?;
        for (position, range) in ranges.iter().enumerate() {
            if family(range.subnet()) != family(first.subnet()) {
                return Err(RangeError::MixedFamilies(first.to_string(), range.to_string()));
            }
            if let Some(other) = ranges[..position].iter().find(|other| other.overlaps(range)) {
                return Err(RangeError::overlap(other, range));
            }
        }
        Ok(RangeSet { ranges })
    }

    /// The ranges, in the order given; at least one.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The family of every address of the set.
    pub fn family(&self) -> Family {
        family(self.ranges[0].subnet())
    }

    /// The range that holds `address`.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(address))
    }

    /// `address` is the gateway of one of the ranges.
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.gateway() == address)
    }

    /// The number of addresses, gateways included.
    pub fn count(&self) -> u128 {
        self.ranges.iter().map(|range| number(range.end) - number(range.start) + 1).sum()
    }

    /// Every address that may be allocated, once: upward from the one after `cursor` (the last one
    /// allocated), through the ranges in order, wrapping, `cursor` itself at the end. From the
    /// beginning if `cursor` is in none of the ranges.
    pub fn after(&self, cursor: Option<IpAddr>) -> impl Iterator<Item = IpAddr> + '_ {
        let at = cursor.and_then(|cursor| {
            Some((self.ranges.iter().position(|range| range.contains(cursor))?, cursor))
        });
        let whole = |range: &Range| (range.start, range.end);
        let (first, rest) = self.ranges.split_at(at.map_or(0, |(position, _)| position));
        let mut spans: Vec<(IpAddr, IpAddr)> = rest.iter().chain(first).map(whole).collect();
        if let Some((_, cursor)) = at {
            spans.push((spans[0].0, cursor));
            spans[0].0 = cursor;
        }
        let skipped = usize::from(at.is_some());
        let addresses = spans.into_iter().flat_map(|(start, end)| span(start, end));
        addresses.skip(skipped).filter(|address| !self.is_gateway(*address))
    }
}

impl fmt::Display for RangeSet {
    /// `10.1.2.1-10.1.2.254,10.1.3.1-10.1.3.254`, as host-local writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, range) in self.ranges.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

/// `start` to `end`, both included; they are of one family.
fn span(start: IpAddr, end: IpAddr) -> impl Iterator<Item = IpAddr> {
    (0..=number(end) - number(start)).map(move |count| offset(start, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn conf(text: &str) -> RangeConf {
        let subnet = text.parse().unwrap();
        RangeConf { subnet, range_start: None, range_end: None, gateway: None }
    }

    fn range(text: &str) -> Range {
        Range::new(&conf(text)).unwrap()
    }

    fn bounded(text: &str, start: &str, end: &str, gateway: Option<&str>) -> RangeConf {
        let (range_start, range_end) = (Some(ip(start)), Some(ip(end)));
        RangeConf { range_start, range_end, gateway: gateway.map(ip), ..conf(text) }
    }

    fn set(subnets: &[&str]) -> RangeSet {
        RangeSet::new(subnets.iter().map(|text| range(text)).collect()).unwrap()
    }

    /// The order in which `set` hands out its addresses after `cursor`.
    fn order(set: &RangeSet, cursor: Option<&str>) -> Vec<String> {
        set.after(cursor.map(ip)).map(|address| address.to_string()).collect()
    }

    #[test]
    fn a_29_has_neither_network_nor_gateway_nor_broadcast() {
        let all = ["10.1.2.2", "10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"];
        assert_eq!(order(&set(&["10.1.2.0/29"]), None), all);
    }

    #[test]
    fn an_ipv6_subnet_includes_its_last_address() {
        assert_eq!(order(&set(&["fd00::/126"]), None), ["fd00::2", "fd00::3"]);
        let top = set(&["fdff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126"]);
        let last = "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(order(&top, Some(last)).last().unwrap(), last);
    }

    #[test]
    fn allocation_continues_after_the_last_address() {
        let set = set(&["10.1.2.0/29"]);
        let after_5 = ["10.1.2.6", "10.1.2.2", "10.1.2.3", "10.1.2.4", "10.1.2.5"];
        assert_eq!(order(&set, Some("10.1.2.5")), after_5);
        assert_eq!(order(&set, Some("10.1.2.6"))[0], "10.1.2.2");
    }

    #[test]
    fn a_cursor_outside_every_range_starts_at_the_beginning() {
        let set = set(&["10.1.2.0/29"]);
        assert_eq!(order(&set, Some("10.9.9.9")), order(&set, None));
        assert_eq!(order(&set, Some("fd00::2")), order(&set, None));
    }

    #[test]
    fn ranges_follow_each_other_and_wrap() {
        let set = set(&["10.1.2.0/30", "10.1.2.4/30", "10.1.2.8/30"]);
        assert_eq!(order(&set, None), ["10.1.2.2", "10.1.2.6", "10.1.2.10"]);
        assert_eq!(order(&set, Some("10.1.2.6")), ["10.1.2.10", "10.1.2.2", "10.1.2.6"]);
        assert_eq!(order(&set, Some("10.1.2.10")), ["10.1.2.2", "10.1.2.6", "10.1.2.10"]);
    }

    #[test]
    fn a_64_is_not_walked() {
        let first = set(&["fd00::/64"]).after(Some(ip("fd00::ffff"))).next();
        assert_eq!(first, Some(ip("fd00::1:0")));
    }

    #[test]
    fn another_gateway_frees_the_first_address() {
        let range = bounded("10.1.2.0/29", "10.1.2.1", "10.1.2.3", Some("10.1.2.2"));
        let set = RangeSet::new(vec![Range::new(&range).unwrap()]).unwrap();
        assert_eq!(order(&set, None), ["10.1.2.1", "10.1.2.3"]);
    }

    #[test]
    fn ranges_that_share_an_address_are_found() {
        let whole = conf("10.1.2.0/24");
        let part = bounded("10.1.2.0/24", "10.1.2.9", "10.1.2.20", None);
        let edge = bounded("10.1.2.0/24", "10.1.2.20", "10.1.2.30", None);
        for [a, b] in [[whole, whole], [whole, part], [part, whole], [part, edge]] {
            for sets in [vec![vec![a, b]], vec![vec![a], vec![b]]] {
                let error = range_sets(&sets).unwrap_err();
                assert!(matches!(error, RangeError::Overlap(..)), "{error}");
            }
        }
    }

    #[test]
    fn adjacent_halves_and_other_families_share_nothing() {
        let sets = [
            vec![conf("10.1.2.0/25"), conf("10.1.2.128/25")],
            vec![conf("10.1.3.0/24")],
            vec![conf("fd00::/64")],
        ];
        assert_eq!(range_sets(&sets).map(|sets| sets.len()), Ok(3));
    }

    #[test]
    fn families_do_not_mix_and_a_set_is_not_empty() {
        let mixed = vec![range("10.1.2.0/24"), range("fd00::/64")];
        assert!(matches!(RangeSet::new(mixed), Err(RangeError::MixedFamilies(..))));
        assert_eq!(RangeSet::new(Vec::new()), Err(RangeError::EmptySet));
    }

    #[test]
    fn a_set_is_written_as_host_local_writes_it() {
        let set = set(&["10.1.2.0/24", "10.1.3.0/24"]);
        assert_eq!(set.to_string(), "10.1.2.1-10.1.2.254,10.1.3.1-10.1.3.254");
    }
}
