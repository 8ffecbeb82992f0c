//! Addresses and host ports for a pod, claimed from the store.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::cni::request::Add;
use crate::inspect::holders::{self, Segment};
use crate::ipam::pool::range_sets;
use crate::ipam::{
    LockedStore, Owner, RangeSet, RequestedPorts, Reservation, Store, StoreEntry, StoreError,
};
use crate::net::subnet;
use crate::netlink::rtnl::Rtnl;
use crate::os::netns;
use crate::plan::pod::Assigned;
use crate::plugin::failure::OrInternal;
use crate::plugin::undo_stack::UndoStack;
use crate::plugin::{host_ports, store};

/// The network's range sets; none if addresses must be requested.
///
/// # Errors
/// Code 7: ranges that cannot be used.
pub fn sets(conf: &NetConf) -> Result<Vec<RangeSet>, CniError> {
    range_sets(&conf.ranges).map_err(|error| CniError::config(error.to_string()))
}

/// The addresses that the bridge must have: each range's gateway with its subnet's length.
pub fn gateways(sets: &[RangeSet]) -> Vec<IpNetwork> {
    let mut gateways = Vec::new();
    for range in sets.iter().flat_map(RangeSet::ranges) {
        let gateway = subnet::with_prefix(range.gateway(), range.subnet().prefix());
        if !gateways.contains(&gateway) {
            gateways.push(gateway);
        }
    }
    gateways
}

/// Claims the pod's addresses and ports; `undo` closes the ports and releases both.
///
/// An address that another running pod has by the kernel is not claimed, even if this store says that it is free.
///
/// A former attachment of the same container and interface is replaced if it is dead: its
/// interface on the host, or its namespace, is gone. `cleanup_stale` removes what is left of it;
/// its addresses are released only then, so that the next call finds them if this one is killed. One
/// whose ADD is still under way is not dead: that ADD holds its entry.
///
/// # Errors
/// Those of `cleanup_stale`; codes 100 (exhausted), 101 (requested addresses), 102 (already
/// attached), 104 (a port is taken), 11, 5.
pub fn reserve<'s>(
    store: &'s Store,
    add: &Add,
    sets: &[RangeSet],
    since_1970: Duration,
    host: &FoundHost<'_>,
    cleanup_stale: impl FnOnce(&StoreEntry) -> Result<(), CniError>,
    undo: &mut UndoStack<'s>,
) -> Result<StoreEntry, CniError> {
    host_ports::refuse_reserved(&add.conf)?;
    let owner = owner(add, since_1970);
    let requested: Vec<_> = add.requested.ips.iter().map(IpNetwork::ip).collect();
    let reserve = |locked: LockedStore<'s>| locked.reserve(&owner, sets, &requested);
    let reservation = match reserve(store::locked(|wait| store.lock(wait))?) {
        Err(StoreError::Duplicate(former)) => {
            let _held = host.hold_dead(store, &former)?;
            cleanup_stale(&former)?;
            reserve(without_dead(store, &former)?)?
        }
        // An interface without a reservation: it may be in use.
        Ok(_undone) if (host.link_exists)()? => {
            let what = "is already attached, although no address is reserved for it; DEL it first";
            return Err(already_attached(format!("{} {what}", owner.ifname)));
        }
        outcome => outcome?,
    };
    let reservation = host.without_others(reservation, &requested, |others| {
        reserve(store::locked(|wait| store.lock(wait))?.without(others))
    })?;
    let held = store.hold(reservation.entry())?.ok_or_else(|| taken_over(&owner))?;
    store::locked(|wait| reservation.claim_ports(wait, namespace_is_gone))?;
    let entry = reservation.commit();
    let undone = entry.clone();
    undo.push(move || {
        let _held = held;
        let closed = host_ports::close(store, &[&undone]);
        // Where the lock of the ports is held, the address waits with them, as after a DEL.
        if closed.as_ref().is_err_and(|error| error.code == code::TRY_AGAIN) {
            return closed;
        }
        store::locked(|wait| store.give_back(&undone, wait))?;
        closed
    });
    Ok(entry)
}

fn owner(add: &Add, since_1970: Duration) -> Owner {
    Owner {
        container_id: add.attachment.container_id.to_string(),
        ifname: add.attachment.ifname.to_string(),
        pod: add.args.pod(),
        netns: Some(add.netns.path.clone()),
        time_secs: since_1970.as_secs(),
        time_nanos: since_1970.subsec_nanos(),
        ports: ports(add),
        words: add.words.clone(),
        further: add.further.clone(),
    }
}

/// Between the choice of its addresses and the hold of its entry another call took the entry.
fn taken_over(owner: &Owner) -> CniError {
    CniError::try_again(format!("another call is about {} of this container", owner.ifname))
}

/// The store without the dead attachment.
fn without_dead<'s>(store: &'s Store, former: &StoreEntry) -> Result<LockedStore<'s>, StoreError> {
    let locked = store::locked(|wait| store.lock(wait))?;
    locked.release(&former.container_id, &former.ifname)?;
    log::info!("replaced the dead attachment of {}", former.owner_text());
    Ok(locked)
}

/// What ADD found of the host, before it claims.
pub struct FoundHost<'a> {
    /// The bridge that the pod is about to be plugged into.
    pub bridge: Option<(&'a Rtnl, Segment)>,
    /// The attachment's interface on the host exists now.
    pub link_exists: &'a dyn Fn() -> Result<bool, CniError>,
}

impl FoundHost<'_> {
    /// Holds the entry of the dead attachment `former`. One of an older plugin, which recorded no namespace, counts as
    /// alive.
    ///
    /// # Errors
    /// Code 102: it lives, or its ADD is under way.
    fn hold_dead(&self, store: &Store, former: &StoreEntry) -> Result<impl Sized, CniError> {
        let held = store.hold(former)?.filter(|_| former.netns.is_some());
        match held {
            // The link is looked at only now: its ADD may just have ended.
            Some(held) if namespace_is_gone(former) || !(self.link_exists)()? => Ok(held),
            _ => Err(StoreError::Duplicate(Box::new(former.clone())).into()),
        }
    }

    /// `reservation`, unless another running pod has one of its addresses: then the one that `again` makes
    /// without the addresses of all such pods.
    fn without_others<'s>(
        &self,
        reservation: Reservation<'s>,
        requested: &[IpAddr],
        again: impl FnOnce(HashSet<IpAddr>) -> Result<Reservation<'s>, StoreError>,
    ) -> Result<Reservation<'s>, CniError> {
        let what = "look for the addresses in use";
        let Some((rtnl, bridge)) = self.bridge else { return Ok(reservation) };
        let first = |reservation: &Reservation<'_>| {
            holders::first(rtnl, bridge, reservation.addresses()).or_internal(what)
        };
        let Some((address, pod)) = first(&reservation)? else { return Ok(reservation) };
        log::warn!("{address} is in use ({pod}), and free by this network's store");
        drop(reservation);
        let others = holders::all(rtnl, bridge).or_internal(what)?;
        let others = others.into_keys().chain([address]).collect();
        let in_use = format!("{address} is in use by {pod}, which is not in this network's store");
        let reservation = again(others).map_err(|error| match error {
            StoreError::Exhausted { .. } => CniError::from(error).with_details(in_use),
            error => error.into(),
        })?;
        match first(&reservation)? {
            Some((address, owner)) => Err(in_use_now(address, owner, requested)),
            None => Ok(reservation),
        }
    }
}

/// The second address is in use as well: it was requested, or another store has just given it out.
fn in_use_now(address: IpAddr, owner: String, requested: &[IpAddr]) -> CniError {
    match requested.contains(&address) {
        true => StoreError::Taken { address, owner }.into(),
        false => CniError::try_again(format!("{address} has just been given to {owner}")),
    }
}

/// The host ports that the pod requests.
fn ports(add: &Add) -> Option<RequestedPorts> {
    let mappings = add.conf.runtime.port_mappings.clone();
    let network = add.conf.name.to_string();
    let bridge = add.conf.bridge.clone();
    (!mappings.is_empty()).then_some(RequestedPorts { network, bridge, mappings })
}

/// The reserved `addresses` with prefix lengths and gateways: those of the ranges they come from;
/// without ranges, as requested.
pub fn assigned(addresses: &[IpAddr], sets: &[RangeSet], add: &Add) -> Vec<Assigned> {
    let of = |address: &IpAddr| {
        let range = sets.iter().find_map(|set| set.range_of(*address));
        let requested = add.requested.ips.iter().find(|requested| requested.ip() == *address);
        match (range, requested) {
            (Some(range), _) => Assigned {
                address: subnet::with_prefix(*address, range.subnet().prefix()),
                gateway: Some(range.gateway()),
            },
            (None, Some(requested)) => Assigned { address: *requested, gateway: None },
            (None, None) => Assigned { address: subnet::host(*address), gateway: None },
        }
    };
    addresses.iter().map(of).collect()
}

/// The pod died without a DEL.
fn namespace_is_gone(former: &StoreEntry) -> bool {
    former.netns.as_ref().is_some_and(|path| netns::is_gone(Path::new(path)))
}

/// Code 102, for an interface that exists although nothing is reserved for it.
pub fn already_attached(what: String) -> CniError {
    CniError::new(code::ALREADY_ATTACHED, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_requested_address_in_use_is_refused_for_good() {
        let [wanted, chosen] = ["10.1.2.2", "10.1.2.3"].map(|text| text.parse().unwrap());
        let code = |address| in_use_now(address, "net a eth0".to_owned(), &[wanted]).code;
        assert_eq!([code(wanted), code(chosen)], [code::ADDRESS_REFUSED, code::TRY_AGAIN]);
    }
}
