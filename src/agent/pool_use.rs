//! How much of this host's pod subnets is in use, and whether that is too much.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use crate::cni::config::RangeConf;
use crate::ipam::import::Sources;
use crate::ipam::{Range, RangeSet, Store};
use crate::net::{Family, PerFamily};
use crate::settings::Settings;

/// The addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The family.
    pub family: Family,
    /// The subnet.
    pub subnet: IpNetwork,
    /// Pods have them.
    pub used: u128,
    /// Pods can have them.
    pub free: u128,
}

/// The use of each family; nothing if the subnets are not known or the store cannot be read.
pub fn addresses(settings: &Settings, subnets: Option<PerFamily<IpNetwork>>) -> Vec<Use> {
    let cni = &settings.cni;
    let store = Store::open(&cni.ipam_dir, &cni.name, "", Sources::default());
    let (Some(subnets), Ok(taken)) = (subnets, store.taken()) else { return Vec::new() };
    let of = |family, subnet| {
        let conf = RangeConf { subnet, range_start: None, range_end: None, gateway: None };
        let set = Range::new(&conf).and_then(|range| RangeSet::new(vec![range])).ok()?;
        let used = taken.iter().filter(|address| subnet.contains(**address)).count() as u128;
        // The gateway is the bridge's.
        Some(Use { family, subnet, used, free: set.count().saturating_sub(1 + used) })
    };
    subnets.entries().filter_map(|(family, subnet)| of(family, *subnet)).collect()
}

/// A line for each subnet that has no address left for the next pod, or hardly any: less than a
/// twentieth.
pub fn scarce(uses: &[Use]) -> BTreeSet<String> {
    let few = uses.iter().filter(|of| of.free < (of.used + of.free).div_ceil(20));
    few.map(|Use { subnet, free, .. }| {
        let what = match free {
            0 => format!("no address is free in {subnet}: the next pod does not start"),
            _ => format!("less than a twentieth of the addresses in {subnet} is free"),
        };
        format!("{what}; {CURE}")
    })
    .collect()
}

/// What to do about it.
const CURE: &str = "humanz-agent ipam gc shows what can be freed (if nothing: this host has as many \
                    pods as its subnet takes)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_is_scarce_before_it_is_full() {
        let told = |used, free| {
            let subnet = "10.244.3.0/24".parse().unwrap();
            let uses = [Use { family: Family::V4, subnet, used, free }];
            scarce(&uses).first().cloned().unwrap_or_default()
        };
        assert_eq!((told(0, 253).as_str(), told(240, 13).as_str()), ("", ""));
        assert!(
            told(241, 12).starts_with("less than a twentieth of the addresses in 10.244.3.0/24")
        );
        assert_eq!(told(241, 12), told(252, 1), "told once, not for each pod");
        assert!(told(253, 0).starts_with("no address is free in 10.244.3.0/24: the next pod"));
        assert_eq!((told(4, 1).as_str(), told(0, u128::MAX >> 64).as_str()), ("", ""));
        assert_eq!(told(253, 0).matches("; ").count(), 1);
    }
}
