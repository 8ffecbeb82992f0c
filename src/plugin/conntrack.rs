//! Conntrack entries of UDP for addresses and host ports whose owner changed: they are deleted, or
//! packets would still reach the former owner.
//!
//! Deleting the entries that have one IPv4 address at an end costs 0.15 ms where the kernel does it, and its caches
//! their content. So it is done when an owner goes, and an ADD goes by the note that a DEL has left (`ipam::swept`). What
//! is sent to nobody after that is translated as it would be for the new owner. Where there is no note, whatever became
//! of the former owner, ADD deletes what it finds at either end. Entries in which an owner answers behind a translated
//! address, and all of IPv6, need a walk over the whole table, 4 ms in which its CPU passes no grace period, so that
//! removing an interface takes 12 ms longer.

use std::net::IpAddr;
use std::thread;

use crate::net::{Family, HostPort, Protocol};
use crate::netlink::NetlinkError;
use crate::netlink::conntrack::{self, ConntrackError, FlowEnd};
use crate::nft::{Nft, TableFamily};
use crate::os::ip_tables;
use crate::plan::ownership;
use crate::plugin::failure;

/// For more addresses one walk costs less.
const FEW: usize = 2;

const ENDS: [FlowEnd; 2] = [FlowEnd::Source, FlowEnd::Destination];

/// Does `work` for a new owner of `addresses` and deletes the entries of a former owner. (Those
/// behind a service's address were deleted with the former owner: [`forget`].)
pub fn without_former<T>(addresses: &[IpAddr], work: impl FnOnce() -> T) -> T {
    if addresses.is_empty() || !may_have_entries() {
        return work();
    }
    match conntrack::flush_udp_at(&ENDS, addresses) {
        // A walk takes longer than the work.
        Ok(false) => thread::scope(|scope| {
            scope.spawn(|| warn(conntrack::flush_udp(addresses).map(drop)));
            work()
        }),
        outcome => {
            warn(outcome.map(drop));
            work()
        }
    }
}

/// Deletes the entries of `addresses`, which have no owner any more, and those of the host's `ports` that
/// led to them. Unknown ports are found by a walk. True: none of `addresses` is left.
pub fn forget(addresses: &[IpAddr], ports: Option<&[HostPort]>) -> bool {
    if addresses.is_empty() || !may_have_entries() {
        return true;
    }
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().partition(|it| it.is_ipv4());
    let is_v6_done = warn(conntrack::flush_udp(&v6).map(drop));
    let few = (1..=FEW).contains(&v4.len());
    let ports = ports.filter(|_| few && !others_translate());
    let is_v4_done = match ports.map(|ports| (ports, conntrack::flush_udp_at(&ENDS, &v4))) {
        None | Some((_, Ok(false))) => warn(conntrack::flush_udp(&v4).map(drop)),
        Some((ports, ends)) => {
            let ports = over_udp(ports).into_iter().filter(|port| port.family() == Family::V4);
            warn(conntrack::flush_udp_ports(&ports.collect::<Vec<_>>())) & warn(ends.map(drop))
        }
    };
    is_v4_done && is_v6_done
}

/// Deletes the entries of those `ports` that are UDP: a client that sent before they were opened
/// would still be answered "port unreachable".
pub fn forget_refused(ports: &[HostPort]) {
    let ports = over_udp(ports);
    if !ports.is_empty() && may_have_entries() {
        warn(conntrack::flush_udp_ports(&ports));
    }
}

fn over_udp(ports: &[HostPort]) -> Vec<HostPort> {
    ports.iter().filter(|port| port.protocol == Protocol::Udp).copied().collect()
}

/// Also if the number cannot be read.
fn may_have_entries() -> bool {
    !matches!(conntrack::has_flows(), Ok(false))
}

/// Foreign rules may translate IPv4 addresses to a pod's: kube-proxy, a container engine, an
/// administrator. True also if that cannot be read.
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

/// Entries that could not be deleted are no reason to fail. False: there were some.
fn warn(outcome: Result<(), ConntrackError>) -> bool {
    outcome.inspect_err(|error| log::warn!("{}", failure::chain(error))).is_ok()
}
