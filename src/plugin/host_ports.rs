//! Host ports of a pod: opened last in ADD, closed first in DEL.
//!
//! The owner of a port is decided by the claim beside the reservation, before the kernel is changed;
//! the nftables table only forwards. If the table is flushed, no port changes its owner, and the next
//! call restores it.

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::cni::request::Check;
use crate::inspect::host_ports as inspect;
use crate::ipam::{LockedClaims, PortClaim, PortClaims, Store, StoreEntry};
use crate::net::gather::Gather;
use crate::net::{Family, HostPort, IfName, PortForward, PortMapping, ReservedPort, port};
use crate::netlink::NetlinkError;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::os::sysctl;
use crate::plan::Describe;
use crate::plan::host_ports::{
    self, HostPortChange, PortChange, PortElement, TABLE, changes, element, element_changes,
    is_intact, ruleset,
};
use crate::plugin::store::{self, lock_if_any};
use crate::plugin::{call_time, conntrack, failure};

/// How long the plugin of another store may take to withdraw what it added at the same time.
const WITHDRAWAL: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How often the table is restored if somebody removes it while ports are added.
const TRIES: usize = 3;

/// Refuses ports that the host itself uses.
///
/// # Errors
/// Code 104: which port, and what for.
pub fn refuse_reserved(conf: &NetConf) -> Result<(), CniError> {
    let requested = conf.runtime.port_mappings.iter().flat_map(PortMapping::host_ports);
    for port in requested {
        let reserved = conf.reserved_ports.iter().find(|reserved| reserved.covers(&port));
        if let Some(ReservedPort { purpose, .. }) = reserved {
            let text = format!("host port {port} is taken by this host itself, for {purpose}");
            return Err(CniError::new(code::PORT_TAKEN, text));
        }
    }
    Ok(())
}

/// Opens the ports that `entry` has claimed. On a host without an agent everything else that the
/// table has lost is restored too, even if the pod requests no port.
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
        return if restores { restore_lost(store.ports(), rtnl) } else { Ok(()) };
    }
    let locked = store::locked(|wait| store.ports().lock(wait))?;
    let claims = locked.own(entry)?;
    let table = KernelTable::open(store.ports())?;
    table.put(&locked, rtnl, &claims)?;
    if claims.iter().any(|claim| claim.forward.from.family() == Family::V4) {
        allow_loopback(rtnl, &conf.bridge);
    }
    drop(locked);
    let opened: Vec<HostPort> = claims.iter().map(|claim| claim.forward.from).collect();
    conntrack::forget_refused(&opened);
    Ok(())
}

/// Closes those ports of `entries` that are still their own, and releases them. Ports that are
/// already closed are success.
///
/// # Errors
/// Codes 11 and 5: the store; code 999: the kernel refused.
pub fn close(store: &Store, entries: &[&StoreEntry]) -> Result<(), CniError> {
    if entries.iter().all(|entry| entry.ports.is_none()) {
        return Ok(());
    }
    let locked = store::locked(|wait| store.ports().lock(wait))?;
    close_locked(store, &locked, entries, || ())
}

/// As [`close`], for one that ended without a DEL: its flows over UDP would reach who gets its address.
///
/// # Errors
/// As for [`close`].
pub fn close_dead(store: &Store, entry: &StoreEntry) -> Result<(), CniError> {
    close(store, &[entry])?;
    forget_flows(&[entry]);
    Ok(())
}

/// Closes the ports of attachments that have ended while another process held the lock, as far as it is free now.
pub fn close_ended(store: &Store) {
    let with_ports = |entry: &StoreEntry| entry.ports.is_some();
    let ended = store.ended().unwrap_or_default();
    let ended: Vec<&StoreEntry> = ended.iter().filter(|entry| with_ports(entry)).collect();
    if ended.is_empty() {
        return;
    }
    // Their DEL forgot those that there were then. A port that is open began more.
    let forget = || forget_flows(&ended);
    let locked = store.ports().lock(Duration::ZERO).map_err(CniError::from);
    if let Err(error) = locked.and_then(|locked| close_locked(store, &locked, &ended, forget)) {
        log::warn!("host ports of {} pods that have ended are open: {}", ended.len(), error.msg);
    }
}

/// Closes the ports whose packets take `link`, of whichever store, and gives them: for an attachment that this store
/// does not know, because it was lost, or another one had it (an edited `dataDir`). Only that attachment has the name.
///
/// # Errors
/// As for [`close`].
pub fn close_unknown(store: &Store, link: &IfName) -> Result<Vec<PortForward>, CniError> {
    let claims = store.ports();
    let table = KernelTable::open(claims)?;
    if table.leading_over(link)?.is_empty() {
        return Ok(Vec::new());
    }
    // What was lost is not made anew for a lock.
    let lock = || store::locked(|wait| claims.lock(wait));
    let _locked = claims.exist().then(lock).transpose()?;
    let closed = table.leading_over(link)?;
    table.remove_ports(closed.iter().map(|forward| forward.from))?;
    for forward in &closed {
        log::info!("closed {forward}, which no attachment in {} has", store.dir().display());
    }
    Ok(closed)
}

fn forget_flows(entries: &[&StoreEntry]) {
    let addresses: Vec<IpAddr> = entries.iter().flat_map(|entry| entry.addresses.clone()).collect();
    let ports: Vec<HostPort> = entries.iter().flat_map(|entry| requested(entry)).collect();
    conntrack::forget(&addresses, Some(&ports));
}

/// `closed` is called before the claims are released.
fn close_locked(
    store: &Store,
    locked: &LockedClaims<'_>,
    entries: &[&StoreEntry],
    closed: impl FnOnce(),
) -> Result<(), CniError> {
    let mut claims = Vec::new();
    for entry in entries {
        claims.extend(locked.own(entry)?);
    }
    // Closing a netfilter socket waits until the kernel has freed what was removed, 15 ms. That
    // happens while the caller goes on; the end of the process closes the socket.
    let table = ManuallyDrop::new(KernelTable::open(store.ports())?);
    table.remove(&claims)?;
    closed();
    for entry in entries {
        // Not later with the addresses: whoever restores the table would open them again.
        locked.release(entry)?;
    }
    let bridges: BTreeSet<&IfName> =
        entries.iter().filter_map(|entry| Some(&entry.ports.as_ref()?.bridge)).gather();
    for bridge in bridges {
        let is_of = |claim: &PortClaim| {
            claim.bridge == *bridge && claim.forward.from.family() == Family::V4
        };
        if !locked.holds(is_of)? {
            table.forbid_loopback(bridge)?;
        }
    }
    Ok(())
}

/// The host ports that `entry` requests, open or not.
pub fn requested(entry: &StoreEntry) -> Vec<HostPort> {
    entry.forwards().into_iter().map(|forward| forward.from).collect()
}

/// Makes the table what the claims request, and removes claims whose holders are gone.
///
/// # Errors
/// As for [`close`].
pub fn restore(store: &Store, rtnl: &Rtnl) -> Result<(), CniError> {
    if !store.ports().exist() {
        return Ok(());
    }
    let locked = store::locked(|wait| store.ports().lock(wait))?;
    locked.sweep()?;
    let table = KernelTable::open(store.ports())?;
    table.restore(locked.held()?, rtnl)
}

/// Why the requested ports do not lead to the pod's `addresses`. (Those that another interface of
/// the container has lead there.)
///
/// # Errors
/// Codes 11 and 5: the store; code 999: the kernel refused an answer.
pub fn mismatches(check: &Check, addresses: &[IpAddr]) -> Result<Vec<String>, CniError> {
    let mut forwards = port::forwards(&check.conf.runtime.port_mappings, addresses);
    if forwards.is_empty() {
        return Ok(Vec::new());
    }
    let store = store::open(&check.conf)?;
    let (container_id, ifname) = (&check.attachment.container_id, &check.attachment.ifname);
    let entry = match lock_if_any(&store)? {
        Some(locked) => locked.entry(container_id.as_str(), ifname.as_str())?,
        None => None,
    };
    if let Some(entry) = entry.filter(|entry| entry.ports.is_some()) {
        forwards = store.ports().read().expected(&entry)?;
    }
    let nft = Nft::open().map_err(failed)?;
    let mut found = Vec::new();
    for forward in &forwards {
        found.extend(inspect::one(&nft, &forward.from).map_err(failed)?);
    }
    let mut mismatches = host_ports::mismatches(&forwards, &found);
    if !is_intact(nft.fingerprints(TABLE).map_err(failed)?.as_ref()) {
        mismatches.push(format!("nftables table inet {TABLE} was changed or removed"));
    }
    Ok(mismatches)
}

fn restore_lost(claims: &PortClaims, rtnl: &Rtnl) -> Result<(), CniError> {
    let table = KernelTable::open(claims)?;
    if table.is_intact()? {
        return Ok(());
    }
    let locked = store::locked(|wait| claims.lock(wait))?;
    table.restore(locked.held()?, rtnl)
}

/// The table in the kernel. It is changed only while the claims are locked.
struct KernelTable<'c> {
    nft: Nft,
    claims: &'c PortClaims,
    /// Their fingerprint.
    store: u64,
}

impl KernelTable<'_> {
    fn open(claims: &PortClaims) -> Result<KernelTable<'_>, CniError> {
        Ok(KernelTable { nft: Nft::open().map_err(failed)?, claims, store: claims.fingerprint() })
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

    /// Adds the elements of `claims` in one transaction, unless ports are taken.
    fn put(
        &self,
        locked: &LockedClaims<'_>,
        rtnl: &Rtnl,
        claims: &[PortClaim],
    ) -> Result<(), CniError> {
        let Some(first) = claims.first() else { return Ok(()) };
        let bridge = [PortChange::Bridge(first.bridge.clone())];
        let elements: Vec<PortElement> =
            claims.iter().map(|claim| element(claim, self.store)).collect();
        let mut adds: Vec<PortChange> = elements.iter().cloned().map(PortChange::Add).collect();
        for _ in 0..TRIES {
            if !self.is_intact()? {
                // Its own are added only where nobody has them.
                let other = |it: &PortClaim| elements.iter().all(|own| own.forward != it.forward);
                self.restore(locked.held()?.into_iter().filter(other).collect(), rtnl)?;
            }
            let stale = self.stale_beside(rtnl, &elements)?;
            match self.change(&[&bridge[..], &stale[..], &adds[..]].concat()) {
                Err(error) if error.errno() == Some(Errno::EEXIST) => {
                    adds = self.resolve_conflicts(rtnl, &elements)?;
                }
                // Removed since the check above.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                Ok(()) => return self.outlast(rtnl, &elements),
                refused => return refused.map_err(failed),
            }
        }
        Err(CniError::try_again(format!("nftables table inet {TABLE} is changed all the time")))
    }

    /// The steps that add `elements` where some of their ports have elements: stale ones, which are
    /// replaced, or foreign ones.
    fn resolve_conflicts(
        &self,
        rtnl: &Rtnl,
        elements: &[PortElement],
    ) -> Result<Vec<PortChange>, CniError> {
        let mut steps = Vec::new();
        for element in elements {
            let port = &element.forward.from;
            match inspect::one(&self.nft, port).map_err(failed)? {
                None => steps.push(PortChange::Add(element.clone())),
                Some(found) if self.is_stale(rtnl, &found)? => {
                    steps.extend(HostPortChange::Replace(element.clone()).steps());
                }
                Some(found) => return Err(taken(found)),
            }
        }
        Ok(steps)
    }

    /// The steps that remove stale elements beside `elements`.
    ///
    /// # Errors
    /// Code 104: one of them is not stale.
    fn stale_beside(
        &self,
        rtnl: &Rtnl,
        elements: &[PortElement],
    ) -> Result<Vec<PortChange>, CniError> {
        match self.beside(rtnl, elements)? {
            (_, Some(living)) => Err(taken(living)),
            (stale, None) => {
                Ok(stale.iter().map(|found| PortChange::Remove(found.forward.from)).collect())
            }
        }
    }

    /// Elements whose packets `elements` would get or take (of one address and of all, where the other is asked
    /// for): the stale ones, and one that is not.
    fn beside(
        &self,
        rtnl: &Rtnl,
        elements: &[PortElement],
    ) -> Result<(Vec<PortElement>, Option<PortElement>), CniError> {
        let ports: BTreeSet<HostPort> =
            elements.iter().map(|element| element.forward.from).gather();
        let mut stale = Vec::new();
        for found in inspect::beside(&self.nft, &ports).map_err(failed)? {
            if !self.is_stale(rtnl, &found)? {
                return Ok((stale, Some(found)));
            }
            stale.push(found);
        }
        Ok((stale, None))
    }

    /// What another store adds at the same time is seen by one of both, or by both: then the one with the higher
    /// fingerprint withdraws, and this waits for that.
    fn outlast(&self, rtnl: &Rtnl, elements: &[PortElement]) -> Result<(), CniError> {
        let end = Instant::now() + call_time::left(WITHDRAWAL);
        while let (_, Some(other)) = self.beside(rtnl, elements)? {
            let withdraws = other.mark.as_ref().is_some_and(|mark| mark.store > self.store);
            if !withdraws || Instant::now() > end {
                return Err(taken(other));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// The element has no owner: its pod is gone, or its claim, which would be ours now, is another one's. A
    /// running pod that the store does not know keeps its port: the store was lost.
    fn is_stale(&self, rtnl: &Rtnl, found: &PortElement) -> Result<bool, CniError> {
        let Some(mark) = &found.mark else { return Ok(false) };
        if mark.store == self.store && inspect::is_reserved(self.claims, found)? {
            return Ok(true);
        }
        Ok(!inspect::pod_runs(rtnl, mark).map_err(failed)?)
    }

    /// Makes the table, and its elements what `claims` request.
    fn restore(&self, claims: Vec<PortClaim>, rtnl: &Rtnl) -> Result<(), CniError> {
        self.ensure()?;
        let found = inspect::all(&self.nft).map_err(failed)?;
        let bridges = inspect::bridge_set(&self.nft).map_err(failed)?;
        let held = claims.iter().map(|claim| claim.forward.from).gather();
        let orphans = inspect::orphans(rtnl, self.claims, &held, &found)
            .map_err(|error| CniError::internal(format!("{error:#}")))?;
        let changes = changes(&claims, self.store, (&found, &bridges), &orphans);
        let steps: Vec<PortChange> = changes.iter().flat_map(HostPortChange::steps).collect();
        self.change(&steps).map_err(failed)?;
        for change in &changes {
            log::info!("{}", change.line().past());
        }
        let v4 = claims.iter().filter(|claim| claim.forward.from.family() == Family::V4);
        for bridge in v4.map(|claim| &claim.bridge).gather::<BTreeSet<_>>() {
            allow_loopback(rtnl, bridge);
        }
        Ok(())
    }

    /// Only ports of the host need the way from 127.0.0.1 to pods; those of other stores do, too.
    fn forbid_loopback(&self, bridge: &IfName) -> Result<(), CniError> {
        let key = format!("net/ipv4/conf/{bridge}/route_localnet");
        if !sysctl::read(&key).is_ok_and(|value| value == "1") {
            return Ok(());
        }
        let rtnl = Rtnl::open().map_err(failed)?;
        let is_needed =
            || inspect::others_lead_to(&self.nft, &rtnl, self.store, bridge).map_err(failed);
        if is_needed()? {
            return Ok(());
        }
        if let Err(error) = sysctl::write(&key, "0") {
            log::warn!("{error}");
        }
        // One that came between found it allowed.
        if is_needed()? {
            allow_loopback(&rtnl, bridge);
        }
        Ok(())
    }

    /// Removes the elements of `claims`. The owner of another store that has taken the port of a dead pod
    /// keeps its own.
    fn remove(&self, claims: &[PortClaim]) -> Result<(), CniError> {
        let mut own = Vec::new();
        for claim in claims {
            let port = claim.forward.from;
            let found = inspect::one(&self.nft, &port).map_err(failed)?;
            if found.is_some_and(|found| found.mark == element(claim, self.store).mark) {
                own.push(port);
            }
        }
        self.remove_ports(own)
    }

    fn remove_ports(&self, ports: impl IntoIterator<Item = HostPort>) -> Result<(), CniError> {
        let steps: Vec<PortChange> = ports.into_iter().map(PortChange::Remove).collect();
        match self.change(&steps) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            outcome => return outcome.map_err(failed),
        }
        // Some are gone already, so the others are removed one by one.
        for step in steps {
            match self.change(&[step]) {
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                outcome => outcome.map_err(failed)?,
            }
        }
        Ok(())
    }

    fn leading_over(&self, link: &IfName) -> Result<Vec<PortForward>, CniError> {
        let found = match inspect::all(&self.nft) {
            // A kernel without nf_tables.
            Err(error) if error.errno() == Some(Errno::EINVAL) => Vec::new(),
            found => found.map_err(failed)?,
        };
        let is_its = |found: &PortElement| found.mark.as_ref().is_some_and(|m| m.link == *link);
        Ok(found.into_iter().filter(is_its).map(|found| found.forward).collect())
    }
}

/// Lets the host reach pods from 127.0.0.1 through `bridge`. The table drops the reverse direction.
fn allow_loopback(rtnl: &Rtnl, bridge: &IfName) {
    let key = format!("net/ipv4/conf/{bridge}/route_localnet");
    let allow = || -> anyhow::Result<()> {
        if sysctl::read(&key)? != "1" {
            // Before: with the sysctl alone, pods would reach what the host serves to itself as soon
            // as somebody flushed nftables.
            let link = rtnl.link(bridge)?.ok_or_else(|| anyhow::anyhow!("there is no {bridge}"))?;
            rtnl.drop_loopback_at_ports(link.index)?;
            sysctl::write(&key, "1")?;
            // An ADD that came between looked at the sysctl before.
            rtnl.drop_loopback_at_ports(link.index)?;
        }
        Ok(())
    };
    if let Err(error) = allow() {
        log::warn!("host ports do not answer on 127.0.0.1: {error:#}");
    }
}

fn taken(found: PortElement) -> CniError {
    let owner = found.comment.unwrap_or_else(|| "a foreign element".to_owned());
    let port = found.forward.from;
    let text = format!("host port {port} is taken by {owner} (nftables table inet {TABLE})");
    CniError::new(code::PORT_TAKEN, text)
}

fn failed(error: NetlinkError) -> CniError {
    failure::internal(format_args!("host ports in nftables table inet {TABLE}"), &error)
}
