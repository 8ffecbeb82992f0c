//! How much of this host's pod subnets is in use.

use crate::cni::config::RangeConf;
use crate::ipam::import::Sources;
use crate::ipam::{Range, RangeSet, Store};
use crate::net::Family;

use super::known::Known;

/// The addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The family.
    pub family: Family,
    /// Pods have them.
    pub used: u128,
    /// Pods can have them.
    pub free: u128,
}

/// The use of each family; nothing if the subnets are not known or the store cannot be read.
pub fn addresses(known: &Known) -> Vec<Use> {
    let cni = &known.settings.cni;
    let store = Store::open(&cni.ipam_dir, &cni.name, "", Sources::default());
    let (Some(subnets), Ok(taken)) = (known.subnets, store.taken()) else { return Vec::new() };
    let of = |family, subnet| {
        let conf = RangeConf { subnet, range_start: None, range_end: None, gateway: None };
        let set = Range::new(&conf).and_then(|range| RangeSet::new(vec![range])).ok()?;
        let used = taken.iter().filter(|address| subnet.contains(**address)).count() as u128;
        // The gateway is the bridge's.
        Some(Use { family, used, free: set.count().saturating_sub(1 + used) })
    };
    subnets.entries().filter_map(|(family, subnet)| of(family, *subnet)).collect()
}
