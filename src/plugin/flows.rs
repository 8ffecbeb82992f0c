//! Flows over UDP of addresses and host ports with a new owner, or none: they are forgotten, because
//! they would go on to whoever they went to before.
//!
//! To have the kernel forget what one address began or was sent costs 0.3 ms. What it answers behind
//! somebody else's address takes a walk over the whole table, 4 ms in which its CPU passes no grace
//! period: an interface that is removed meanwhile takes 12 ms longer.

use std::net::IpAddr;

use super::failure;
use crate::linux::conntrack::{self, ConntrackError};
use crate::linux::netlink::NetlinkError;
use crate::linux::nft::{Nft, TableFamily};
use crate::linux::translation;
use crate::net::{HostPort, Protocol};
use crate::plan::traces;

/// With more addresses one walk costs less.
const FEW: usize = 2;

/// Forgets flows of `addresses` with a former owner: there is a new one. (Those behind a service's
/// address were forgotten when that one went: [`forget`].)
pub fn forget_former(addresses: &[IpAddr]) {
    if may_be_some() {
        noted(conntrack::flush_udp_ends(addresses));
    }
}

/// Forgets every flow with `addresses`, which have no owner any more, and to `ports` of the host,
/// which are closed: it would go on to the dead pod.
pub fn forget(addresses: &[IpAddr], ports: &[HostPort]) {
    if addresses.is_empty() || !may_be_some() {
        return;
    }
    let few = addresses.len() <= FEW && addresses.iter().all(IpAddr::is_ipv4);
    if few && !others_translate() {
        noted(conntrack::flush_udp_ends(addresses));
        noted(conntrack::flush_udp_ports(&over_udp(ports)));
    } else {
        noted(conntrack::flush_udp(addresses).map(drop));
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
        let tables = Nft::open()?.tables_of_all_families()?;
        let foreign = |(family, name): &(TableFamily, String)| match family {
            TableFamily::Inet => !traces::is_table(name),
            TableFamily::Ip => true,
            TableFamily::Ip6 | TableFamily::Other(_) => false,
        };
        Ok::<bool, NetlinkError>(tables.iter().any(foreign))
    };
    translation::beside_nft().unwrap_or(true) || by_nft().unwrap_or(true)
}

/// That flows could not be forgotten is no reason to fail.
fn noted(outcome: Result<(), ConntrackError>) {
    if let Err(error) = outcome {
        log::warn!("{}", failure::chain(&error));
    }
}
