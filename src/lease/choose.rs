//! Pure. The subnet of a new host.

use std::ops::RangeInclusive;

use ipnetwork::IpNetwork;

use crate::net::subnet::{self, Pool};

/// All slots of the pool are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full {
    pub pool: IpNetwork,
    /// Slots a host can have: all but slot 0.
    pub slots: u32,
    pub taken: u32,
}

/// The first free subnet of `pool`: from slot `ticket` upward, wrapping once; never slot 0.
///
/// `ticket` is a number no other host has (the version of the counter key: 1, 2, …), so that hosts
/// that start together try different slots, and the first host of a cluster gets slot 1. `taken`:
/// the subnets of hosts and claims; any that a host [can have](possible) takes the slots it overlaps.
///
/// # Errors
/// [`Full`] if no slot is free.
pub fn next_free(
    pool: &Pool,
    ticket: i64,
    taken: impl IntoIterator<Item = IpNetwork>,
) -> Result<IpNetwork, Full> {
    let last = pool.slots() - 1;
    let possible = taken.into_iter().filter(|subnet| possible(pool, *subnet));
    let mut taken: Vec<_> = possible.filter_map(|subnet| pool.slots_of(subnet)).collect();
    taken.sort_unstable();
    let start = (ticket.max(1) - 1).rem_euclid(i64::from(last)) as u32 + 1;
    let free = free_slot(start..=last, &taken).or_else(|| free_slot(1..=start - 1, &taken));
    let full = Full { pool: pool.network(), slots: last, taken: last };
    free.map(|slot| pool.subnet(slot)).ok_or(full)
}

/// A host can have `subnet`: it is a proper part of the pool. Any other value in etcd must not prevent
/// hosts from getting subnets.
pub fn possible(pool: &Pool, subnet: IpNetwork) -> bool {
    subnet::contains(pool.network(), subnet) && subnet.prefix() > pool.network().prefix()
}

/// The first of `slots` that lies in none of the ranges `taken` (first and last slot, sorted).
pub(super) fn free_slot(slots: RangeInclusive<u32>, taken: &[(u32, u32)]) -> Option<u32> {
    let mut slot = *slots.start();
    for (first, last) in taken {
        if (*first..=*last).contains(&slot) {
            slot = last + 1;
        }
    }
    slots.contains(&slot).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::subnet::{overlap, parse};
    use proptest::prelude::*;

    fn pool(text: &str, margin: u8) -> Pool {
        Pool::new(parse(text).unwrap(), margin).unwrap()
    }

    fn check(ticket: i64, taken: &[&str], expected: &str) {
        let taken = taken.iter().map(|text| parse(text).unwrap());
        let chosen = next_free(&pool("10.0.0.0/16", 8), ticket, taken).unwrap();
        assert_eq!(chosen.to_string(), expected);
    }

    #[test]
    fn the_first_host_gets_slot_1() {
        check(1, &[], "10.0.1.0/24");
    }

    #[test]
    fn the_ticket_is_the_slot() {
        check(7, &[], "10.0.7.0/24");
        check(255, &[], "10.0.255.0/24");
    }

    #[test]
    fn after_the_last_slot_comes_slot_1_never_0() {
        check(256, &[], "10.0.1.0/24");
        check(255, &["10.0.255.0/24"], "10.0.1.0/24");
        check(i64::MAX, &[], "10.0.127.0/24");
        check(0, &[], "10.0.1.0/24");
        check(i64::MIN, &[], "10.0.1.0/24");
    }

    #[test]
    fn a_taken_slot_is_skipped() {
        check(3, &["10.0.3.0/24", "10.0.4.0/24"], "10.0.5.0/24");
    }

    #[test]
    fn any_overlap_takes_a_slot() {
        check(3, &["10.0.3.64/26"], "10.0.4.0/24");
        check(3, &["10.0.2.0/23"], "10.0.4.0/24");
        check(3, &["10.0.0.0/17"], "10.0.128.0/24");
    }

    #[test]
    fn other_networks_take_nothing() {
        check(3, &["10.1.3.0/24", "fd00::/64", "192.168.0.0/16"], "10.0.3.0/24");
    }

    #[test]
    fn the_whole_pool_cannot_be_taken() {
        check(3, &["10.0.0.0/16", "10.0.0.0/8", "0.0.0.0/0"], "10.0.3.0/24");
    }

    #[test]
    fn a_full_pool_is_an_error() {
        let pool = pool("10.0.0.0/24", 2);
        let taken = ["10.0.0.64/26", "10.0.0.128/25"].map(|text| parse(text).unwrap());
        let full = next_free(&pool, 9, taken).unwrap_err();
        assert_eq!(full, Full { pool: parse("10.0.0.0/24").unwrap(), slots: 3, taken: 3 });
    }

    #[test]
    fn ipv6_works_alike() {
        let chosen = next_free(&pool("fd00:10::/48", 16), 2, [parse("fd00:10:0:2::/64").unwrap()]);
        assert_eq!(chosen.unwrap().to_string(), "fd00:10:0:3::/64");
    }

    proptest! {
        #[test]
        fn a_chosen_subnet_is_free_inside_the_pool_and_not_slot_0(
            margin in 1u8..10,
            ticket: i64,
            slots in proptest::collection::vec((0u32..1024, 20u8..=30), 0..200),
        ) {
            let pool = pool("10.0.0.0/16", margin);
            let taken: Vec<_> = slots
                .iter()
                .map(|(slot, prefix)| {
                    let wide = crate::lease::choose::tests::pool("10.0.0.0/16", 10).subnet(*slot);
                    crate::net::subnet::masked(
                        IpNetwork::new(wide.ip(), *prefix).unwrap(),
                    )
                })
                .collect();
            match next_free(&pool, ticket, taken.iter().copied()) {
                Ok(chosen) => {
                    prop_assert!(taken.iter().all(|other| !overlap(*other, chosen)));
                    prop_assert!(pool.network().contains(chosen.ip()));
                    prop_assert_ne!(chosen, pool.subnet(0));
                    prop_assert_eq!(chosen.prefix(), pool.host_prefix());
                }
                Err(_) => {
                    let taken_by_any = |slot| {
                        taken.iter().any(|other| overlap(*other, pool.subnet(slot)))
                    };
                    prop_assert!((1..pool.slots()).all(taken_by_any));
                }
            }
        }
    }
}
