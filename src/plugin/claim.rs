//! Addresses for a pod, claimed from the store.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::cni::request::Add;
use crate::ipam::import::Sources;
use crate::ipam::pool::range_sets;
use crate::ipam::{Owner, RangeSet, RequestedPorts, Reservation, Store, StoreEntry, StoreError};
use crate::net::subnet;
use crate::os::identity;
use crate::os::netns::{NetNs, NetNsError};
use crate::plan::pod::Assigned;
use crate::plugin::failure;

/// How long a call waits for the store. It is held for a tenth of a millisecond: after this time
/// something is stuck, and the runtime is told to try again later.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The network's store.
///
/// # Errors
/// Code 999: /proc is not there.
pub fn store(conf: &NetConf) -> Result<Store, CniError> {
    let network = conf.name.as_str();
    let boot_id = identity::boot_id();
    let boot_id = boot_id.map_err(|error| failure::internal("tell which boot this is", &error))?;
    // Without ranges the addresses are others', and so are their stores.
    let sources = if conf.ranges.is_empty() { Sources::default() } else { Sources::usual(network) };
    Ok(Store::open(&conf.data_dir, network, &boot_id, sources))
}

/// The network's range sets; none if addresses must be asked for.
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

/// Claims the pod's addresses and ports. `link_is_there`: its interface on the host exists.
///
/// A former attachment of the same container and interface is replaced if it is dead: its
/// interface on the host, or its namespace, is gone. `bury` removes what is left of it; only then are
/// its addresses released, so that the next call knows them if this one is killed.
///
/// # Errors
/// Those of `bury`; codes 100 (exhausted), 101 (requested addresses), 102 (attached already), 104
/// (a port is taken), 11, 5.
pub fn reserve<'s>(
    store: &'s Store,
    add: &Add,
    sets: &[RangeSet],
    since_1970: Duration,
    link_is_there: bool,
    bury: impl FnOnce(&StoreEntry) -> Result<(), CniError>,
) -> Result<Reservation<'s>, CniError> {
    let owner = Owner {
        container_id: add.attachment.container_id.to_string(),
        ifname: add.attachment.ifname.to_string(),
        pod: add.args.pod(),
        netns: Some(add.netns.path.clone()),
        time_secs: since_1970.as_secs(),
        ports: ports(add),
    };
    let requested: Vec<_> = add.requested.ips.iter().map(IpNetwork::ip).collect();
    let locked = store.lock(LOCK_WAIT).map_err(|error| failure::of_store(&error))?;
    let outcome = match locked.reserve(&owner, sets, &requested) {
        Err(StoreError::Duplicate(former)) if is_dead(&former, link_is_there) => {
            bury(&former)?;
            let locked = store.lock(LOCK_WAIT).map_err(|error| failure::of_store(&error))?;
            let released = locked.release(&owner.container_id, &owner.ifname);
            released.map_err(|error| failure::of_store(&error))?;
            log::info!("replaced the dead attachment of {}", former.owner_text());
            locked.reserve(&owner, sets, &requested)
        }
        // Nothing is reserved for an interface that is there: it may be alive.
        Ok(_undone) if link_is_there => {
            return Err(already_attached(format!(
                "{} is attached already, although no address is reserved for it; DEL it first",
                owner.ifname
            )));
        }
        outcome => outcome,
    };
    let reservation = outcome.map_err(|error| failure::of_store(&error))?;
    let claimed = reservation.claim_ports(LOCK_WAIT, namespace_is_gone);
    claimed.map_err(|error| failure::of_store(&error))?;
    Ok(reservation)
}

/// What the pod asks for of the host's ports.
fn ports(add: &Add) -> Option<RequestedPorts> {
    let mappings = add.conf.runtime.port_mappings.clone();
    let network = add.conf.name.to_string();
    (!mappings.is_empty()).then(|| RequestedPorts {
        network,
        bridge: add.conf.bridge.clone(),
        mappings,
    })
}

/// `reservation`'s addresses with prefix lengths and gateways: those of the ranges they come from;
/// without ranges, as they were asked for.
pub fn assigned(reservation: &Reservation<'_>, sets: &[RangeSet], add: &Add) -> Vec<Assigned> {
    let of = |address: &IpAddr| {
        let range = sets.iter().find_map(|set| set.range_of(*address));
        let asked = add.requested.ips.iter().find(|asked| asked.ip() == *address);
        match (range, asked) {
            (Some(range), _) => Assigned {
                address: subnet::with_prefix(*address, range.subnet().prefix()),
                gateway: Some(range.gateway()),
            },
            (None, Some(asked)) => Assigned { address: *asked, gateway: None },
            (None, None) => Assigned { address: subnet::host(*address), gateway: None },
        }
    };
    reservation.addresses().iter().map(of).collect()
}

/// The attachment's namespace, or its interface on the host, is gone. Of an attachment that an
/// earlier plugin made neither is known: it counts as alive.
fn is_dead(former: &StoreEntry, link_is_there: bool) -> bool {
    former.netns.is_some() && (!link_is_there || namespace_is_gone(former))
}

/// The pod died, and nobody said so.
fn namespace_is_gone(former: &StoreEntry) -> bool {
    let opened = former.netns.as_ref().map(|path| NetNs::open(Path::new(path)));
    matches!(opened, Some(Err(NetNsError::Missing(_) | NetNsError::NotANamespace(_))))
}

/// Code 102, for an interface that is there although nothing is reserved for it.
pub fn already_attached(what: String) -> CniError {
    CniError::new(code::ALREADY_ATTACHED, what)
}
