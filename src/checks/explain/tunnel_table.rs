//! Pure. What the table of tunnels does: to packets that come out of one, and to those of pods to one.

use std::net::IpAddr;

use crate::checks::explain::hop::{AGENT, HERE, Hop};
use crate::checks::explain::path::{Path, RemoteEnd, TunnelTable};
use crate::net::{Family, subnet};
use crate::nft::{Element, Value};
use crate::plan::firewall::tunnels::{
    FOREIGN, FROM_POD, TUNNELS_TABLE, ends_set, nodes_set, senders_set,
};

const NAME: &str = "tunnel-filter";
const UDP: u8 = 17;

/// Whether what `remote` sends through a tunnel from its address `outer` is taken in.
pub fn received(path: &Path, remote: &RemoteEnd, outer: IpAddr) -> Option<Hop> {
    let (host, inner) = (&remote.host, path.from.address);
    let own = path.host.subnets.get(path.family())?;
    // What is for the host itself does not come through a tunnel.
    if !own.contains(path.to.address) {
        return None;
    }
    let table = match &path.host.tunnel_table {
        Ok(Some(table)) => table,
        Ok(None) => {
            let seen = format!(
                "the nft table inet {TUNNELS_TABLE} is missing: any sender of VXLAN packets can reach pods"
            );
            return Some(Hop::odd(NAME, HERE, seen, AGENT));
        }
        Err(error) => {
            let seen = format!("the nft table inet {TUNNELS_TABLE} could not be read: {error}");
            return Some(Hop::odd(NAME, HERE, seen, "nft list ruleset # look at it yourself"));
        }
    };
    if table.takes_in(outer, inner) {
        let seen = format!(
            "inet {TUNNELS_TABLE} takes in what {host} ({outer}) sends from {inner}; dropped so far: {}",
            table.counted(FOREIGN)
        );
        return Some(Hop::fine(NAME, HERE, seen));
    }
    let seen = format!(
        "inet {TUNNELS_TABLE} drops it ({FOREIGN}): from {host} ({outer}) it takes in what the \
         pods of {host} or {outer} send, not {inner}"
    );
    let fix = match remote.subnet {
        Some(_) => AGENT,
        None => format!("let {host} send from {outer} or from the address of its tunnel").into(),
    };
    Some(Hop::lost(NAME, HERE, seen, fix))
}

/// What becomes of a pod's packets to the tunnel of a host.
pub fn sent(path: &Path) -> Option<Hop> {
    let to = path.to.address;
    let (_, port) = path.transport.filter(|(protocol, _)| *protocol == UDP)?;
    let table =
        path.host.tunnel_table.as_ref().ok()?.as_ref().filter(|_| path.from.pod().is_some())?;
    let end = Element::key([Value::address(to), Value::port(port)]);
    if !table.has(ends_set(Family::of(to)), &end) {
        return None;
    }
    let seen = format!(
        "inet {TUNNELS_TABLE} drops VXLAN packets of pods to {to} port {port}, the tunnel of a \
         host ({FROM_POD}): {} so far",
        table.counted(FROM_POD)
    );
    let fix = "pods have no way into the tunnels of hosts; a VXLAN of their own needs another port, or \
               humanz another VXLAN_PORT on all hosts";
    Some(match port == path.host.tunnel_port {
        true => Hop::lost(NAME, HERE, seen, fix),
        // Something else may listen where a host says that its tunnel is.
        false => Hop::odd(NAME, HERE, seen, fix),
    })
}

impl TunnelTable {
    fn takes_in(&self, outer: IpAddr, inner: IpAddr) -> bool {
        let (of_outer, of_inner) = (Family::of(outer), Family::of(inner));
        let key = |inner| Element::key([Value::address(outer), Value::address(inner)]);
        let slot = self
            .pools
            .get(of_inner)
            .map(|pool| subnet::masked(subnet::with_prefix(inner, pool.host_prefix())).network());
        let is_pod = slot.is_some_and(|slot| self.has(senders_set(of_outer, of_inner), &key(slot)));
        is_pod || of_outer == of_inner && self.has(nodes_set(of_inner), &key(inner))
    }

    fn has(&self, set: &str, element: &Element) -> bool {
        self.sets.iter().any(|found| found.name == set && found.elements.contains(element))
    }

    fn counted(&self, comment: &str) -> u64 {
        let of = self.counts.iter().filter(|(found, _)| found == comment);
        of.map(|(_, packets)| packets).sum()
    }
}
