//! UDP flows of a pod's addresses, forgotten beside the work that the kernel does meanwhile: a look
//! for them costs the CPU as much as a whole ADD, but takes no lock that the work needs.

use std::net::IpAddr;
use std::thread;

use super::failure;
use crate::linux::conntrack::{self, ConntrackError};

/// Does `work` for a new owner of `addresses`, and meanwhile forgets flows with a former one. (Those
/// behind a service's address were forgotten when that one went: [`away_during`].)
pub fn forgotten_during<T>(addresses: &[IpAddr], work: impl FnOnce() -> T) -> T {
    during(addresses, || noted(conntrack::flush_udp_ends(addresses)), work)
}

/// Does `work`, which takes `addresses` away from their owner, and meanwhile [`forget`]s them.
pub fn away_during<T>(addresses: &[IpAddr], work: impl FnOnce() -> T) -> T {
    during(addresses, || forget(addresses), work)
}

/// Forgets every flow with `addresses`, which have no owner any more: it would go on to the dead pod.
pub fn forget(addresses: &[IpAddr]) {
    noted(conntrack::flush_udp(addresses).map(drop));
}

/// That flows could not be forgotten is no reason to fail.
fn noted(outcome: Result<(), ConntrackError>) {
    if let Err(error) = outcome {
        log::warn!("{}", failure::chain(&error));
    }
}

fn during<T>(addresses: &[IpAddr], forget: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    // A thread costs more than to see that there is nothing to forget.
    if addresses.is_empty() || matches!(conntrack::has_flows(), Ok(false)) {
        return work();
    }
    thread::scope(|scope| {
        scope.spawn(forget);
        work()
    })
}
