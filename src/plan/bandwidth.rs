//! Pure. The queues that hold a pod to its bandwidth.
//!
//! A token bucket at each end of the pod's veth, for what leaves that end: at the host's for what
//! goes to the pod, at the pod's for what comes from it. The sender in the pod is slowed down by
//! its own full queue, and there is no further device that could be left behind.

use crate::cni::{Bandwidth, Limit};
use crate::netlink::qdisc::TokenBucket;

/// What may pass at once unless it is said, as the time that it takes at the rate: long enough
/// that the rate is reached (within 5 % at 10 Mbit/s to 1 Gbit/s, TCP, measured), and far from a
/// runtime's placeholder of half a gigabyte.
const BURST_MILLIS: u64 = 20;

/// How long a packet waits in a full queue before it is dropped, as in the reference plugin.
const WAIT_MILLIS: u64 = 25;

/// Packets that must fit into a burst: what is larger than the bucket is dropped for ever.
const PACKETS: u64 = 4;

/// Bytes of a frame beside its packet: Ethernet header and a VLAN tag.
const FRAME: u64 = 18;

/// The queues at both ends of a veth with this MTU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// At the host's end: what goes to the pod.
    pub host: Option<TokenBucket>,
    /// At the pod's end: what comes from it.
    pub pod: Option<TokenBucket>,
}

/// The queues for `bandwidth` on a veth whose MTU is `mtu` bytes.
pub fn queues(bandwidth: &Bandwidth, mtu: u32) -> Queues {
    let bucket = |limit: &Limit| bucket(limit, mtu);
    Queues {
        host: bandwidth.ingress.as_ref().map(bucket),
        pod: bandwidth.egress.as_ref().map(bucket),
    }
}

/// The queue for `limit` on a link whose MTU is `mtu` bytes.
pub fn bucket(limit: &Limit, mtu: u32) -> TokenBucket {
    let rate_bytes = limit.rate_bits / 8;
    let lasting = |millis: u64| (u128::from(rate_bytes) * u128::from(millis) / 1000) as u64;
    let least = PACKETS * (u64::from(mtu) + FRAME);
    let burst = limit.burst_bits.map_or(lasting(BURST_MILLIS), |bits| bits.div_ceil(8)).max(least);
    // The kernel counts both in 32 bits.
    let fitting = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    TokenBucket {
        rate_bytes,
        burst_bytes: fitting(burst),
        limit_bytes: fitting(burst.saturating_add(lasting(WAIT_MILLIS))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rate, burst and limit in bytes, of a limit in bits.
    fn check(rate_bits: u64, burst_bits: Option<u64>, mtu: u32, wanted: (u64, u32, u32)) {
        let limit = Limit { rate_bits, burst_bits };
        let bandwidth = Bandwidth { ingress: Some(limit), egress: None };
        let Queues { host: Some(host), pod: None } = queues(&bandwidth, mtu) else {
            panic!("ingress is at the host's end alone")
        };
        assert_eq!((host.rate_bytes, host.burst_bytes, host.limit_bytes), wanted);
    }

    #[test]
    fn a_burst_that_is_not_configured_lasts_20_ms_and_the_queue_25_more() {
        check(100_000_000, None, 1500, (12_500_000, 250_000, 562_500));
        check(1_000_000_000, None, 1500, (125_000_000, 2_500_000, 5_625_000));
    }

    #[test]
    fn a_burst_that_was_asked_for_is_kept() {
        check(100_000_000, Some(8_000_001), 1500, (12_500_000, 1_000_001, 1_312_501));
    }

    #[test]
    fn some_packets_always_fit() {
        check(1_000_000, None, 1500, (125_000, 6072, 9197));
        check(1_000_000, Some(80), 9000, (125_000, 36_072, 39_197));
        check(8, Some(16), 1500, (1, 6072, 6072));
    }

    #[test]
    fn the_fastest_link_still_has_a_bucket() {
        let rate = u64::MAX;
        check(rate, None, 1500, (rate / 8, u32::MAX, u32::MAX));
        check(400_000_000_000, None, 1500, (50_000_000_000, 1_000_000_000, 2_250_000_000));
    }

    #[test]
    fn egress_is_at_the_pods_end() {
        let limit = Limit { rate_bits: 8000, burst_bits: None };
        let found = queues(&Bandwidth { ingress: None, egress: Some(limit) }, 1500);
        assert!(found.host.is_none() && found.pod.is_some());
    }
}
