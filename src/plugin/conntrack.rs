//! Flows over UDP of addresses and host ports with a new owner, or none: they are forgotten, because
//! they would go on to whoever they went to before.
//!
//! To have the kernel (since 6.8) forget what one address of IPv4 began or was sent costs 0.3 ms. What
//! it answers behind somebody else's address, and all of IPv6, takes a walk over the whole table, 4 ms
//! in which its CPU passes no grace period: an interface that is removed meanwhile takes 12 ms longer.

use std::net::IpAddr;
use std::thread;

use crate::net::{Family, HostPort, Protocol};
use crate::netlink::NetlinkError;
use crate::netlink::conntrack::{self, ConntrackError};
use crate::nft::{Nft, TableFamily};
use crate::os::ip_tables;
use crate::plan::ownership;
use crate::plugin::failure;

/// With more addresses one walk costs less.
const FEW: usize = 2;

/// Does `work` for a new owner of `addresses` and forgets flows with a former one. (Those behind a
/// service's address were forgotten when that one went: [`forget`].)
pub fn without_former<T>(addresses: &[IpAddr], work: impl FnOnce() -> T) -> T {
    if addresses.is_empty() || !may_be_some() {
        return work();
    }
    if conntrack::kernel_filters() {
        let done = work();
        noted(conntrack::flush_udp_ends(addresses));
        return done;
    }
    // A walk takes longer than the work.
    thread::scope(|scope| {
        scope.spawn(|| noted(conntrack::flush_udp(addresses).map(drop)));
        work()
    })
}

/// Forgets every flow with `addresses`, which have no owner any more, and to the host's `ports` that
/// led to them: it would go on to the dead pod. Ports that are not known are found by a walk.
pub fn forget(addresses: &[IpAddr], ports: Option<&[HostPort]>) {
    if addresses.is_empty() || !may_be_some() {
        return;
    }
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().partition(|it| it.is_ipv4());
    noted(conntrack::flush_udp(&v6).map(drop));
    let few = (1..=FEW).contains(&v4.len()) && conntrack::kernel_filters();
    match ports.filter(|_| few && !others_translate()) {
        Some(ports) => {
            let ports = over_udp(ports).into_iter().filter(|port| port.family() == Family::V4);
            noted(conntrack::flush_udp_ends(&v4));
            noted(conntrack::flush_udp_ports(&ports.collect::<Vec<_>>()));
        }
        None => noted(conntrack::flush_udp(&v4).map(drop)),
    }
}

/// Forgets flows to those of `ports` that are of UDP: they are open now, and who asked before would go
/// on to be told that they are closed.
pub fn forget_refused(ports: &[HostPort]) {
    let ports = over_udp(ports);
    if !ports.is_empty() && may_be_some() {
        noted(conntrack::flush_udp_ports(&ports));
    }
}

fn over_udp(ports: &[HostPort]) -> Vec<HostPort> {
    ports.iter().filter(|port| port.protocol == Protocol::Udp).copied().collect()
}

/// A number that cannot be read is some.
fn may_be_some() -> bool {
    !matches!(conntrack::has_flows(), Ok(false))
}

/// Somebody else may have led flows over IPv4 to a pod: a proxy of services, a container engine, a
/// person. What cannot be found out is so.
fn others_translate() -> bool {
    let by_nft = || {
        let tables = Nft::open()?.all_tables()?;
        let foreign = |(family, name): &(TableFamily, String)| match family {
            TableFamily::Inet => !ownership::is_table(name),
            TableFamily::Ip => true,
            TableFamily::Ip6 | TableFamily::Other(_) => false,
        };
        Ok::<bool, NetlinkError>(tables.iter().any(foreign))
    };
    by_nft().unwrap_or(true) || ip_tables::beside_nft().unwrap_or(true)
}

/// That flows could not be forgotten is no reason to fail.
fn noted(outcome: Result<(), ConntrackError>) {
    if let Err(error) = outcome {
        log::warn!("{}", failure::chain(&error));
    }
}
