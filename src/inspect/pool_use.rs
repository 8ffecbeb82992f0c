//! How much of this host's pod subnets is in use, and whether that is too much.

use ipnetwork::IpNetwork;

use crate::inspect::pods::room;
use crate::ipam::Store;
use crate::ipam::import::Sources;
use crate::net::{Family, Object, PerFamily, Problem, ProblemKind};
use crate::policy::Scoped;
use crate::settings::Settings;

/// The addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    pub family: Family,
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
        let (usable, free) = room(subnet, &taken)?;
        Some(Use { family, subnet, used: usable.saturating_sub(free), free })
    };
    subnets.entries().filter_map(|(family, subnet)| of(family, *subnet)).collect()
}

/// Subnets that have no address left for the next pod, or less than a twentieth.
pub fn scarce(uses: &[Use]) -> Vec<Problem> {
    let few = uses.iter().filter(|of| of.free < (of.used + of.free).div_ceil(20));
    let problem = |Use { subnet, free, .. }: &Use| {
        let (kind, what) = match free {
            0 => (
                ProblemKind::PoolFull,
                format!("no address is free in {subnet}: the next pod does not start"),
            ),
            _ => (
                ProblemKind::PoolLow,
                format!("less than a twentieth of the addresses in {subnet} is free"),
            ),
        };
        Problem::new(kind, Object::Subnet(*subnet), what).with_fix(
            "humanz-agent ipam gc # shows what can be freed; if nothing: this host has as many pods as its subnet \
             takes",
        )
    };
    few.map(problem).collect()
}

/// `pool` of a tenant's network has neither a free block nor an address in those of this host.
pub fn full_network(network: &Scoped, pool: IpNetwork) -> Problem {
    let what = format!(
        "no address is free for this host: hosts have all blocks of {pool} (network {network}), and its next pod here \
         does not start"
    );
    let fix = format!("humanz-agent net show {network} # widen it, by --cidr of net set");
    Problem::new(ProblemKind::PoolFull, Object::Subnet(pool), what).with_fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_is_scarce_before_it_is_full() {
        let found = |used, free| {
            let subnet = "10.244.3.0/24".parse().unwrap();
            let uses = [Use { family: Family::V4, subnet, used, free }];
            scarce(&uses).first().cloned()
        };
        let kind = |used, free| found(used, free).map(|problem| problem.kind);
        assert_eq!((kind(0, 253), kind(240, 13)), (None, None));
        assert_eq!(kind(241, 12), Some(ProblemKind::PoolLow));
        assert_eq!(found(241, 12), found(252, 1), "one problem, whatever the number of pods");
        assert_eq!(kind(253, 0), Some(ProblemKind::PoolFull));
        assert_eq!((kind(4, 1), kind(0, u128::MAX >> 64)), (None, None));
    }
}
