//! Pure. The queues that hold what pods receive to the rates of their profiles.

use std::collections::BTreeMap;

use crate::net::gather::Gather;
use crate::netlink::link::Link;
use crate::netlink::port_queue::{PortQueue, QueuePlace};
use crate::netlink::qdisc::TokenBucket;
use crate::plan::bandwidth::bucket;
use crate::plan::profiles::PortProfiles;

/// What is to be done at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    Set {
        device: u32,
        bucket: TokenBucket,
        has_own: bool,
    },
    /// Of a pod without a limit of its own.
    Remove {
        device: u32,
    },
    /// Of one whose own queue has this limit, in bytes.
    MakePlain {
        device: u32,
        limit_bytes: u32,
    },
}

/// The queue of each of `ports` by its profile, by the port's index.
pub fn wanted(profiles: &PortProfiles, ports: &[&Link]) -> BTreeMap<u32, Option<TokenBucket>> {
    let queue = |port: &&Link| {
        let limit = profiles.get(&port.name).and_then(|it| it.profile.ingress);
        (port.index, limit.map(|limit| bucket(&limit, port.mtu)))
    };
    ports.iter().map(queue).gather()
}

/// The changes that turn the queues `found` into `wanted`; those of other links are left alone.
pub fn changes(
    wanted: &BTreeMap<u32, Option<TokenBucket>>,
    found: &[PortQueue],
) -> Vec<QueueChange> {
    let change = |(device, bucket): (&u32, &Option<TokenBucket>)| {
        let device = *device;
        let here = || found.iter().filter(|it| it.device == device);
        let own = here().find(|it| it.place == QueuePlace::Own);
        let present = here().find(|it| it.place != QueuePlace::Own);
        match (bucket, present, own) {
            (Some(bucket), Some(present), _) if is_as(present, bucket) => None,
            (Some(bucket), _, own) => {
                Some(QueueChange::Set { device, bucket: *bucket, has_own: own.is_some() })
            }
            (None, Some(_), None) => Some(QueueChange::Remove { device }),
            (None, Some(_), Some(own)) => {
                Some(QueueChange::MakePlain { device, limit_bytes: own.limit_bytes })
            }
            (None, None, _) => None,
        }
    };
    wanted.iter().filter_map(change).collect()
}

fn is_as(found: &PortQueue, wanted: &TokenBucket) -> bool {
    (found.rate_bytes, found.limit_bytes) == (wanted.rate_bytes, wanted.limit_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use QueueChange::{MakePlain, Remove, Set};

    const BUCKET: TokenBucket =
        TokenBucket { rate_bytes: 1000, burst_bytes: 100, limit_bytes: 200 };

    /// What is changed at link 7, which has these queues with their rates.
    fn at_7(wanted: Option<TokenBucket>, found: &[(QueuePlace, u64)]) -> Option<QueueChange> {
        let queue = |(place, rate_bytes): &(QueuePlace, u64)| PortQueue {
            device: 7,
            place: *place,
            rate_bytes: *rate_bytes,
            limit_bytes: 200,
        };
        let other = PortQueue { device: 8, ..queue(&(QueuePlace::Alone, 1)) };
        let found: Vec<PortQueue> = found.iter().map(queue).chain([other]).collect();
        let changes = changes(&BTreeMap::from([(7, wanted)]), &found);
        assert!(changes.len() < 2);
        changes.first().copied()
    }

    #[test]
    fn a_port_has_the_queue_of_its_profile_beside_or_inside_of_its_own() {
        use QueuePlace::{Alone, Inside, Own};
        let set = |has_own| Some(Set { device: 7, bucket: BUCKET, has_own });
        for (found, wanted) in [
            (&[][..], set(false)),
            (&[(Alone, 900)], set(false)),
            (&[(Alone, 1000)], None),
            (&[(Own, 1000)], set(true)),
            (&[(Own, 500), (Inside, 900)], set(true)),
            (&[(Own, 500), (Inside, 1000)], None),
        ] {
            assert_eq!(at_7(Some(BUCKET), found), wanted, "{found:?}");
        }
        for (found, wanted) in [
            (&[][..], None),
            (&[(Own, 500)], None),
            (&[(Alone, 900)], Some(Remove { device: 7 })),
            (&[(Own, 500), (Inside, 900)], Some(MakePlain { device: 7, limit_bytes: 200 })),
        ] {
            assert_eq!(at_7(None, found), wanted, "{found:?}");
        }
    }
}
