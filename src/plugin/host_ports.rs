//! Ports of the host that lead to a pod: opened last in ADD, closed first in DEL.
//!
//! Who has a port is decided by the claim beside the reservation, before anything is made; the
//! table only says where it leads. So a flushed table gives no port away, and whoever comes next
//! writes it anew.

use std::net::IpAddr;
use std::time::Duration;

use nix::errno::Errno;

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::cni::request::Check;
use crate::inspect::host_ports as inspect;
use crate::ipam::{LockedClaims, PortClaims, Store, StoreEntry};
use crate::net::{Family, HostPort, IfName, port};
use crate::netlink::NetlinkError;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::os::sysctl;
use crate::plan::Describe;
use crate::plan::host_ports::{
    self, Claim, HostPortChange, PortChange, PortElement, TABLE, changes, element_changes,
    is_intact, ruleset,
};
use crate::plugin::{claim, conntrack, del, failure};

/// How long a call waits for the ports: as for the store.
const LOCK_WAIT: Duration = claim::LOCK_WAIT;

/// How often the table is made anew if somebody removes it while ports are added.
const TRIES: usize = 3;

/// Ports that are closed when this is dropped, unless it is kept.
#[must_use = "ports are closed when this is dropped"]
pub struct Ports<'s> {
    store: &'s Store,
    entry: Option<StoreEntry>,
}

impl<'s> Ports<'s> {
    /// Those that `entry` has claimed, opened or not: whoever restores the table opens them too.
    pub fn of(store: &'s Store, entry: &StoreEntry) -> Ports<'s> {
        Ports { store, entry: Some(entry.clone()) }
    }

    /// They stay open until DEL.
    pub fn keep(mut self) {
        self.entry = None;
    }
}

impl Drop for Ports<'_> {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        if let Err(error) = close(self.store, &[&entry]) {
            log::error!("undo: {error}");
        }
    }
}

/// Opens the ports that `entry` has claimed. On a host without an agent whatever else the table
/// has lost is put back too, even if the pod asks for no port.
///
/// # Errors
/// Code 104: another network's store, or a person, has a port. Code 999: the kernel refused.
pub fn open(
    store: &Store,
    rtnl: &Rtnl,
    conf: &NetConf,
    entry: &StoreEntry,
) -> Result<(), CniError> {
    if entry.ports.is_none() {
        let restores = conf.create_bridge && store.ports().exist();
        return if restores { restore_lost(store.ports()) } else { Ok(()) };
    }
    let locked = lock(store.ports())?;
    let claims = locked.own(entry).map_err(|error| failure::of_store(&error))?;
    let table = Table::open(store.ports())?;
    table.put(&locked, rtnl, &claims)?;
    if claims.iter().any(|claim| claim.forward.from.family() == Family::V4) {
        allow_loopback(&conf.bridge);
    }
    drop(locked);
    let opened: Vec<HostPort> = claims.iter().map(|claim| claim.forward.from).collect();
    conntrack::forget_refused(&opened);
    Ok(())
}

/// Closes the ports of `entries` that are still their own, and gives them back. Those that are
/// closed already: success.
///
/// # Errors
/// Codes 11 and 5: the store; code 999: the kernel refused.
pub fn close(store: &Store, entries: &[&StoreEntry]) -> Result<(), CniError> {
    if entries.iter().all(|entry| entry.ports.is_none()) {
        return Ok(());
    }
    let locked = lock(store.ports())?;
    let mut ports: Vec<HostPort> = Vec::new();
    for entry in entries {
        let own = locked.own(entry).map_err(|error| failure::of_store(&error))?;
        ports.extend(own.iter().map(|claim| claim.forward.from));
    }
    let table = Table::open(store.ports())?;
    let removed = table.remove(&ports);
    // To close a socket of netfilter is to wait until the kernel has freed what was removed, 15 ms.
    // It does so beside what the caller has still to do; the end of the process closes the socket.
    std::mem::forget(table);
    removed?;
    for entry in entries {
        // Not later, with the addresses: whoever restores the table would open them again.
        locked.release(entry).map_err(|error| failure::of_store(&error))?;
    }
    Ok(())
}

/// The ports of the host that `entry` asked for, open or not.
pub fn asked(entry: &StoreEntry) -> Vec<HostPort> {
    entry.forwards().into_iter().map(|forward| forward.from).collect()
}

/// Makes the table what the claims ask for, and removes claims whose holders are gone.
///
/// # Errors
/// As for [`close`].
pub fn restore(store: &Store) -> Result<(), CniError> {
    if !store.ports().exist() {
        return Ok(());
    }
    let locked = lock(store.ports())?;
    locked.sweep().map_err(|error| failure::of_store(&error))?;
    let table = Table::open(store.ports())?;
    table.ensure()?;
    table.restore(&locked)
}

/// What keeps the ports that the pod asked for from leading to its `addresses`. (Those that another
/// interface of the container has lead there.)
///
/// # Errors
/// Codes 11 and 5: the store; code 999: the kernel could not be asked.
pub fn faults(check: &Check, addresses: &[IpAddr]) -> Result<Vec<String>, CniError> {
    let mut forwards = port::forwards(&check.conf.runtime.port_mappings, addresses);
    if forwards.is_empty() {
        return Ok(Vec::new());
    }
    let store = claim::store(&check.conf)?;
    let (container_id, ifname) = (&check.attachment.container_id, &check.attachment.ifname);
    let entry = del::locked(&store)?.map(|it| it.entry(container_id.as_str(), ifname.as_str()));
    let entry = entry.transpose().map_err(|error| failure::of_store(&error))?.flatten();
    if let Some(entry) = entry.filter(|entry| entry.ports.is_some()) {
        let expected = store.ports().read().expected(&entry);
        forwards = expected.map_err(|error| failure::of_store(&error))?;
    }
    let nft = Nft::open().map_err(failed)?;
    let mut found = Vec::new();
    for forward in &forwards {
        found.extend(inspect::one(&nft, &forward.from).map_err(failed)?);
    }
    let mut faults = host_ports::faults(&forwards, &found);
    if !is_intact(nft.fingerprints(TABLE).map_err(failed)?.as_ref()) {
        faults.push(format!("nftables table inet {TABLE} was changed or removed"));
    }
    Ok(faults)
}

fn restore_lost(claims: &PortClaims) -> Result<(), CniError> {
    let table = Table::open(claims)?;
    if table.is_intact()? {
        return Ok(());
    }
    let locked = lock(claims)?;
    table.ensure()?;
    table.restore(&locked)
}

fn lock(claims: &PortClaims) -> Result<LockedClaims<'_>, CniError> {
    claims.lock(LOCK_WAIT).map_err(|error| failure::of_store(&error))
}

/// The table in the kernel. It is changed only by who has the claims locked.
struct Table {
    nft: Nft,
    /// Which store's claims.
    store: u64,
}

impl Table {
    fn open(claims: &PortClaims) -> Result<Table, CniError> {
        Ok(Table { nft: Nft::open().map_err(failed)?, store: claims.fingerprint() })
    }

    fn change(&self, steps: &[PortChange]) -> Result<(), NetlinkError> {
        self.nft.change_elements(TABLE, &element_changes(steps))
    }

    fn is_intact(&self) -> Result<bool, CniError> {
        Ok(is_intact(self.nft.fingerprints(TABLE).map_err(failed)?.as_ref()))
    }

    fn ensure(&self) -> Result<(), CniError> {
        if !self.is_intact()? {
            self.nft.ensure(&ruleset()).map_err(failed)?;
            log::info!("wrote nftables table inet {TABLE}");
        }
        Ok(())
    }

    /// Adds the elements of `claims` in one transaction, if nobody is in the way.
    fn put(
        &self,
        locked: &LockedClaims<'_>,
        rtnl: &Rtnl,
        claims: &[Claim],
    ) -> Result<(), CniError> {
        let Some(first) = claims.first() else { return Ok(()) };
        let bridge = PortChange::Bridge(first.bridge.clone());
        let elements: Vec<PortElement> =
            claims.iter().map(|claim| claim.element(self.store)).collect();
        let mut steps = vec![bridge.clone()];
        steps.extend(elements.iter().cloned().map(PortChange::Add));
        for _ in 0..TRIES {
            if !self.is_intact()? {
                self.ensure()?;
                self.restore(locked)?;
            }
            match self.change(&steps) {
                Err(error) if error.errno() == Some(Errno::EEXIST) => {
                    steps = vec![bridge.clone()];
                    steps.extend(self.make_way(rtnl, &elements)?);
                }
                // Removed since a moment ago.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                outcome => return outcome.map_err(failed),
            }
        }
        Err(CniError::try_again(format!("somebody keeps on changing nftables table inet {TABLE}")))
    }

    /// The steps that add `elements` where some of their ports are taken: by leftovers, which are
    /// replaced, or by somebody else.
    fn make_way(&self, rtnl: &Rtnl, elements: &[PortElement]) -> Result<Vec<PortChange>, CniError> {
        let mut steps = Vec::new();
        for element in elements {
            let port = &element.forward.from;
            match inspect::one(&self.nft, port).map_err(failed)? {
                None => steps.push(PortChange::Add(element.clone())),
                Some(found) if self.is_leftover(rtnl, &found)? => {
                    steps.extend(HostPortChange::Replace(element.clone()).steps());
                }
                Some(found) => {
                    let owner = found.comment.unwrap_or_else(|| "somebody else".to_owned());
                    let text = format!(
                        "host port {port} is taken by {owner} (nftables table inet {TABLE})"
                    );
                    return Err(CniError::new(code::PORT_TAKEN, text));
                }
            }
        }
        Ok(steps)
    }

    /// Nobody has the element: its claim, if it had one in our store, is ours now; of another store
    /// the pod is gone.
    fn is_leftover(&self, rtnl: &Rtnl, found: &PortElement) -> Result<bool, CniError> {
        let Some(mark) = &found.mark else { return Ok(false) };
        let link = rtnl.link(&mark.link);
        Ok(mark.store == self.store || link.map_err(failed)?.is_none())
    }

    /// Makes the elements what all claims ask for.
    fn restore(&self, locked: &LockedClaims<'_>) -> Result<(), CniError> {
        let claims = locked.held().map_err(|error| failure::of_store(&error))?;
        let found = inspect::all(&self.nft).map_err(failed)?;
        let bridges = inspect::bridge_set(&self.nft).map_err(failed)?;
        let changes = changes(&claims, self.store, &found, &bridges);
        let steps: Vec<PortChange> = changes.iter().flat_map(HostPortChange::steps).collect();
        self.change(&steps).map_err(failed)?;
        for change in &changes {
            log::info!("{}", change.line().past());
        }
        Ok(())
    }

    fn remove(&self, ports: &[HostPort]) -> Result<(), CniError> {
        let steps: Vec<PortChange> = ports.iter().copied().map(PortChange::Remove).collect();
        match self.change(&steps) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            outcome => return outcome.map_err(failed),
        }
        // Some are gone already, so the others go one by one.
        for step in steps {
            match self.change(&[step]) {
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                outcome => outcome.map_err(failed)?,
            }
        }
        Ok(())
    }
}

/// Lets the host reach pods from 127.0.0.1 through `bridge`. The table keeps pods from using it the
/// other way round.
fn allow_loopback(bridge: &IfName) {
    let key = format!("net/ipv4/conf/{bridge}/route_localnet");
    let outcome = match sysctl::read(&key) {
        Ok(value) if value == "1" => Ok(()),
        Ok(_) => sysctl::write(&key, "1"),
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        log::warn!("host ports do not answer on 127.0.0.1: {error}");
    }
}

fn failed(error: NetlinkError) -> CniError {
    failure::internal(&format!("host ports in nftables table inet {TABLE}"), &error)
}
