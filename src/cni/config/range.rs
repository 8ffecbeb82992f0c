//! Pure. Ranges of pod addresses in the configuration.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::cni::json::JsonField;

/// One range of host-local's `ranges[][]`; a range set is a list of them and gives a pod one address.
///
/// Only the syntax has been checked; `ipam::pool` checks host bits, size, and overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeConf {
    /// May have host bits.
    pub subnet: IpNetwork,
    /// Absent: the first host address.
    pub range_start: Option<IpAddr>,
    /// Absent: the last host address.
    pub range_end: Option<IpAddr>,
    /// Absent: the first host address.
    pub gateway: Option<IpAddr>,
}

impl RangeConf {
    fn read(field: &JsonField) -> Option<RangeConf> {
        let address = |key: &str| field.get(key).and_then(|address| address.address());
        let (range_start, range_end) = (address("rangeStart"), address("rangeEnd"));
        let gateway = address("gateway");
        let subnet = field.get("subnet")?.cidr()?;
        Some(RangeConf { subnet, range_start, range_end, gateway })
    }
}

/// Every range set of a configuration: `runtimeConfig.ipRanges`, then the single range of `subnet`,
/// then `ranges`. The last two come from `ipam` if it has either.
///
/// Source: host-local; requested addresses are of the first set that has them.
pub(super) fn sets(conf: &JsonField, ipam: Option<&JsonField>) -> Vec<Vec<RangeConf>> {
    let runtime = conf.get("runtimeConfig");
    let mut sets = runtime.map(|runtime| listed(&runtime, "ipRanges")).unwrap_or_default();
    let has_ranges = |field: &&JsonField| field.get("subnet").or(field.get("ranges")).is_some();
    let place = ipam.filter(has_ranges).unwrap_or(conf);
    sets.extend(single(place).map(|range| vec![range]));
    sets.extend(listed(place, "ranges"));
    sets
}

/// The range of the keys `subnet`, `rangeStart`, `rangeEnd` and `gateway`.
fn single(field: &JsonField) -> Option<RangeConf> {
    if field.get("subnet").is_none() {
        for key in ["rangeStart", "rangeEnd", "gateway"] {
            if field.get(key).is_some() {
                field.fault_at(key, "requires subnet; with ranges, set it inside the range");
            }
        }
    }
    RangeConf::read(field)
}

fn listed(field: &JsonField, key: &str) -> Vec<Vec<RangeConf>> {
    let sets = field.get(key).and_then(|sets| sets.list("lists of ranges", |set| ranges(&set)));
    sets.unwrap_or_default()
}

fn ranges(set: &JsonField) -> Option<Vec<RangeConf>> {
    let ranges = set.list("ranges {subnet, rangeStart, rangeEnd, gateway}", |range| {
        if !range.value().is_object() {
            return range.refuse("an object {subnet, rangeStart, rangeEnd, gateway}");
        }
        if range.get("subnet").is_none() {
            return range.fault("subnet is missing");
        }
        RangeConf::read(&range)
    })?;
    if set.value().as_array().is_some_and(Vec::is_empty) {
        return set.fault("the range set is empty");
    }
    Some(ranges)
}
