//! GC: removes what belongs to no attachment that is alive.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::cni::request::Gc;
use crate::ipam::{Store, StoreEntry};
use crate::net::{HostPort, IfName};
use crate::netlink::Message;
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::{LinkIdentity, is_of_network};
use crate::plugin::attach::forget;
use crate::plugin::failure::{self, Problems};
use crate::plugin::invocation::CallContext;
use crate::plugin::{claim, conntrack, del, host_ports, identity};

/// The link group that dying links are put into: `hzgc`. A link dies in 20 ms, a group as well.
const DYING: u32 = u32::from_be_bytes(*b"hzgc");

/// Removes links, then ports and what the host remembers of their addresses, then reservations;
/// puts back what the table of host ports has lost.
///
/// # Errors
/// Every failure, in one error; the rest was done.
pub fn gc(gc: &Gc, call: &mut CallContext<'_>) -> Result<(), CniError> {
    let rtnl = Rtnl::open().map_err(|error| failure::internal("talk to the kernel", &error))?;
    let mut problems = Problems::default();
    let links = rtnl.links(None);
    let links = links.map_err(|error| failure::internal("list the interfaces", &error))?;
    let stale = stale(&links, gc);
    if !stale.is_empty() {
        call.line.fact("links", stale.len());
        problems.note(remove(&rtnl, &links, &stale));
    }
    let store = claim::store(&gc.conf)?;
    let owners = problems.note(Owners::observe(&rtnl, gc)).unwrap_or_default();
    let dead = problems.note(dead(&store, &owners)).unwrap_or_default();
    problems.note(host_ports::close(&store, &dead.iter().collect::<Vec<_>>()));
    let ports: Vec<HostPort> = dead.iter().flat_map(host_ports::asked).collect();
    let dead: Vec<IpAddr> = dead.into_iter().flat_map(|entry| entry.addresses).collect();
    if let Some(bridge) = links.iter().find(|link| link.name == gc.conf.bridge) {
        let forgotten = rtnl.apply(&forget(bridge.index, &dead));
        problems.note(forgotten.map_err(|error| failure::internal("forget dead MACs", &error)));
    }
    conntrack::forget(&dead, Some(&ports));
    let released = problems.note(release(&store, &owners)).unwrap_or_default();
    if released > 0 {
        call.line.fact("reservations", released);
    }
    problems.note(host_ports::restore(&store));
    problems.into_result()
}

/// The network's links that no valid attachment's name stands for.
fn stale<'a>(links: &'a [Link], gc: &Gc) -> Vec<&'a Link> {
    let network = &gc.conf.name;
    let valid: BTreeSet<IfName> =
        gc.valid.iter().map(|attachment| identity(network, attachment).host_ifname()).collect();
    let dead = |link: &&Link| {
        is_of_network(link.alias.as_deref(), network.as_str()) && !valid.contains(&link.name)
    };
    links.iter().filter(dead).collect()
}

/// All of `stale` with one wait of the kernel, unless somebody else uses our group: then one by one.
fn remove(rtnl: &Rtnl, links: &[Link], stale: &[&Link]) -> Result<(), CniError> {
    let failed = |error| failure::internal("remove dead interfaces", &error);
    let dying = |link: &Link| stale.iter().any(|stale| stale.index == link.index);
    if links.iter().any(|link| link.group == DYING && !dying(link)) {
        let delete = |link: &&Link| link::delete(LinkRef::Index(link.index));
        let each = stale.iter().map(delete).map(|delete| delete.tolerating(Errno::ENODEV));
        return rtnl.apply(&each.collect::<Vec<Message>>()).map_err(failed);
    }
    let mark = LinkChange { group: Some(DYING), ..LinkChange::default() };
    let mark = |link: &&Link| link::change(LinkRef::Index(link.index), &mark);
    let marks = stale.iter().map(mark).map(|mark| mark.tolerating(Errno::ENODEV));
    let delete = link::delete_group(DYING).tolerating(Errno::ENODEV);
    rtnl.apply(&marks.chain([delete]).collect::<Vec<Message>>()).map_err(failed)
}

/// Who may own addresses: valid attachments, and those whose link could not be removed.
#[derive(Default)]
enum Owners<'a> {
    /// Nobody could tell, so everybody.
    #[default]
    Anybody,
    /// These.
    Of { gc: &'a Gc, links: BTreeSet<IfName> },
}

impl<'a> Owners<'a> {
    fn observe(rtnl: &Rtnl, gc: &'a Gc) -> Result<Owners<'a>, CniError> {
        let links = rtnl.links(None);
        let links = links.map_err(|error| failure::internal("list the interfaces", &error))?;
        Ok(Owners::Of { gc, links: links.into_iter().map(|link| link.name).collect() })
    }

    /// `ifname` is empty for a reservation that an old plugin made without it.
    fn include(&self, container_id: &str, ifname: &str) -> bool {
        let Owners::Of { gc, links } = self else { return true };
        let network = gc.conf.name.as_str();
        let valid = gc.valid.iter().any(|valid| {
            let same_ifname = ifname.is_empty() || valid.ifname.as_str() == ifname;
            valid.container_id.as_str() == container_id && same_ifname
        });
        valid || links.contains(&LinkIdentity { network, container_id, ifname }.host_ifname())
    }
}

/// What is reserved for nobody any more.
fn dead(store: &Store, owners: &Owners<'_>) -> Result<Vec<StoreEntry>, CniError> {
    let Some(locked) = del::locked(store)? else { return Ok(Vec::new()) };
    let entries = locked.entries().map_err(|error| failure::of_store(&error))?;
    let dead = entries.into_iter().filter(|of| !owners.include(&of.container_id, &of.ifname));
    Ok(dead.collect())
}

/// Releases them; gives how many attachments they belonged to.
fn release(store: &Store, owners: &Owners<'_>) -> Result<usize, CniError> {
    let Some(locked) = del::locked(store)? else { return Ok(0) };
    let released = locked.retain(|container_id, ifname| owners.include(container_id, ifname));
    Ok(released.map_err(|error| failure::of_store(&error))?.len())
}
