//! Pure. What is believed of a host's answer: addresses that are the host's.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::lease::records::{HostPod, HostPods};

/// Addresses of others that are listed.
const LISTED: usize = 3;

pub struct HostRanges<'a> {
    pub subnets: Vec<IpNetwork>,
    /// The blocks of tenants' networks that it had first.
    pub blocks: &'a [IpNetwork],
    /// The pools of the pod subnets: no block counts there, whatever its key says.
    pub pools: &'a [IpNetwork],
}

/// An answer without what is not believed.
#[derive(Debug, PartialEq, Eq)]
pub struct JudgedPods {
    pub pods: Vec<HostPod>,
    /// Pods for which the answer had no room.
    pub more: u32,
    /// Addresses that are not the host's: the first few, and how many there are.
    pub foreign: Vec<IpAddr>,
    pub foreign_count: usize,
    /// As [`HostPods::counted_at`].
    pub counted_at: Option<u64>,
}

impl HostRanges<'_> {
    fn has(&self, address: IpAddr) -> bool {
        let is_in = |ranges: &[IpNetwork]| ranges.iter().any(|range| range.contains(address));
        is_in(&self.subnets) || !is_in(self.pools) && is_in(self.blocks)
    }
}

/// The pods with addresses of the host.
pub fn judge(answer: HostPods, host: &HostRanges<'_>) -> JudgedPods {
    let mut judged = JudgedPods {
        pods: Vec::new(),
        more: answer.more,
        foreign: Vec::new(),
        foreign_count: 0,
        counted_at: answer.counted_at,
    };
    for pod in answer.pods {
        let said = pod.addresses.iter().copied();
        let (own, foreign): (Vec<_>, Vec<_>) = said.partition(|it| host.has(*it));
        judged.foreign_count += foreign.len();
        let room = LISTED.saturating_sub(judged.foreign.len());
        judged.foreign.extend(foreign.into_iter().take(room));
        if !own.is_empty() {
            judged.pods.push(HostPod { addresses: own, ..pod });
        }
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses that are believed of a host with 10.0.2.0/24 and the blocks 10.32.0.64/26 and 10.0.9.0/26.
    fn believed(addresses: &[&str]) -> (Vec<String>, usize) {
        let range = |text: &str| text.parse::<IpNetwork>().unwrap();
        let ranges = HostRanges {
            subnets: vec![range("10.0.2.0/24")],
            blocks: &[range("10.32.0.64/26"), range("10.0.9.0/26")],
            pools: &[range("10.0.0.0/16")],
        };
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let pod = HostPod { pod: "a/b".into(), network: "n".into(), addresses, bytes: None };
        let judged = judge(HostPods::new([pod]), &ranges);
        let shown = judged.pods.iter().flat_map(|pod| &pod.addresses).map(ToString::to_string);
        (shown.collect(), judged.foreign_count)
    }

    #[test]
    fn a_host_speaks_for_its_own_addresses() {
        for (said, shown, foreign) in [
            (&["10.0.2.5"][..], &["10.0.2.5"][..], 0),
            (&["10.32.0.70", "10.0.2.5"], &["10.32.0.70", "10.0.2.5"], 0),
            (&["10.0.1.5"], &[], 1),
            (&["10.0.2.5", "10.0.1.5", "192.0.2.1", "::1"], &["10.0.2.5"], 3),
            // A block over subnets of hosts is none, whoever had it first.
            (&["10.0.9.5"], &[], 1),
        ] {
            let (found, count) = believed(said);
            assert_eq!((found, count), (shown.iter().map(ToString::to_string).collect(), foreign));
        }
    }

    #[test]
    fn of_many_foreign_addresses_a_few_are_kept() {
        let addresses = (0..200).map(|n| IpAddr::from([192, 0, 2, n])).collect();
        let pod = HostPod { pod: "a/b".into(), network: "n".into(), addresses, bytes: None };
        let ranges = HostRanges { subnets: Vec::new(), blocks: &[], pools: &[] };
        let judged = judge(HostPods::new([pod]), &ranges);
        assert_eq!((judged.pods.len(), judged.foreign.len(), judged.foreign_count), (0, 3, 200));
    }
}
