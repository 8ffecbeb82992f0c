//! GC: removes what belongs to no valid attachment.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::cni::request::Gc;
use crate::ipam::{Store, StoreEntry};
use crate::net::gather::Gather;
use crate::net::{HostPort, IfName};
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError};
use crate::plan::pod::{LinkIdentity, is_of_network};
use crate::plugin::attach::forget_neighbours;
use crate::plugin::failure::{Failures, OrInternal};
use crate::plugin::invocation::CallContext;
use crate::plugin::store::lock_if_any;
use crate::plugin::{conntrack, further, guard, host_ports, store};

/// The link group of links to be removed: `hzgc`. Removing one link takes 20 ms, a group as well.
const REMOVAL_GROUP: u32 = u32::from_be_bytes(*b"hzgc");

/// Removes links, then ports and the host's neighbour entries of their addresses, then
/// reservations; restores what the table of host ports and the guards of running pods have lost.
///
/// # Errors
/// Every failure, in one error; the other steps were done.
pub fn gc(gc: &Gc, call: &mut CallContext<'_>) -> Result<(), CniError> {
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket")?;
    let mut failures = Failures::default();
    let links = rtnl.links(None).or_internal("list the interfaces")?;
    let all = failures.note(further::with_valid(gc));
    let all = all.unwrap_or_else(|| further::with_valid_links(gc, &links));
    let gc = &further::with_podmans(all, &links);
    let stale = stale_links(&links, gc);
    if !stale.is_empty() {
        call.line.fact("links", stale.len());
        failures.note(remove(&rtnl, &links, &stale).or_internal("remove stale interfaces"));
    }
    let store = store::open(&gc.conf)?;
    let owners = failures.note(ValidOwners::observe(&rtnl, gc)).unwrap_or_default();
    let stale = failures.note(stale_entries(&store, &owners)).unwrap_or_default();
    failures.note(host_ports::close(&store, &stale.iter().collect::<Vec<_>>()));
    let ports: Vec<HostPort> = stale.iter().flat_map(host_ports::requested).collect();
    let addresses: Vec<IpAddr> = stale.into_iter().flat_map(|entry| entry.addresses).collect();
    if let Some(gateway) = links.iter().find(|link| link.name == *gc.conf.gateway_device()) {
        let forgotten = rtnl.apply(&forget_neighbours(gateway.index, &addresses));
        failures.note(forgotten.or_internal("remove stale neighbour entries"));
    }
    conntrack::forget(&addresses, Some(&ports));
    let released = failures.note(release(&store, &owners)).unwrap_or_default();
    if released > 0 {
        call.line.fact("reservations", released);
    }
    failures.note(host_ports::restore(&store, &rtnl));
    let restored = failures.note(guard::restore(&rtnl, &gc.conf, &store)).unwrap_or_default();
    if restored > 0 {
        call.line.fact("guards restored", restored);
    }
    failures.note(guard::sweep(&rtnl).or_internal("remove guards of removed interfaces"));
    failures.into_result()
}

/// The network's links that are of no valid attachment, by name or, if somebody renamed them, by alias.
fn stale_links<'a>(links: &'a [Link], gc: &Gc) -> Vec<&'a Link> {
    let network = &gc.conf.name;
    let host_ifname = |attachment| LinkIdentity::of(network, attachment).host_ifname();
    let valid: BTreeSet<IfName> = gc.valid.iter().map(host_ifname).gather();
    let stale = |link: &&Link| {
        let alias = link.alias.as_deref();
        let owns = |attachment| LinkIdentity::of(network, attachment).owns(alias);
        is_of_network(alias, network.as_str())
            && !valid.contains(&link.name)
            && !gc.valid.iter().any(owns)
    };
    links.iter().filter(stale).collect()
}

/// Removes all of `stale` with one wait of the kernel; one by one if somebody else uses our group.
fn remove(rtnl: &Rtnl, links: &[Link], stale: &[&Link]) -> Result<(), NetlinkError> {
    let is_stale = |link: &Link| stale.iter().any(|stale| stale.index == link.index);
    let each = |message: &dyn Fn(LinkRef<'_>) -> Message| -> Vec<Message> {
        let messages = stale.iter().map(|link| message(LinkRef::Index(link.index)));
        messages.map(|message| message.tolerating(Errno::ENODEV)).collect()
    };
    if links.iter().any(|link| link.group == REMOVAL_GROUP && !is_stale(link)) {
        return rtnl.apply(&each(&link::delete));
    }
    let group = LinkChange { group: Some(REMOVAL_GROUP), ..LinkChange::default() };
    let mut messages = each(&|link| link::change(link, &group));
    messages.push(link::delete_group(REMOVAL_GROUP).tolerating(Errno::ENODEV));
    rtnl.apply(&messages)
}

/// The owners of addresses: valid attachments, and those whose link could not be removed.
#[derive(Default)]
enum ValidOwners<'a> {
    /// Unknown, so everybody.
    #[default]
    Anybody,
    Of {
        gc: &'a Gc,
        links: Vec<Link>,
    },
}

impl<'a> ValidOwners<'a> {
    fn observe(rtnl: &Rtnl, gc: &'a Gc) -> Result<ValidOwners<'a>, CniError> {
        let links = rtnl.links(None).or_internal("list the interfaces")?;
        Ok(ValidOwners::Of { gc, links })
    }

    /// `ifname` is empty for a reservation that an older plugin made without it.
    fn include(&self, container_id: &str, ifname: &str) -> bool {
        let ValidOwners::Of { gc, links } = self else { return true };
        let network = gc.conf.name.as_str();
        let valid = gc.valid.iter().any(|valid| {
            let same_ifname = ifname.is_empty() || valid.ifname.as_str() == ifname;
            valid.container_id.as_str() == container_id && same_ifname
        });
        let identity = LinkIdentity { network, container_id, ifname };
        let name = identity.host_ifname();
        let is_its = |link: &Link| link.name == name || identity.owns(link.alias.as_deref());
        valid || links.iter().any(is_its)
    }
}

/// The reservations that have no owner any more.
fn stale_entries(store: &Store, owners: &ValidOwners<'_>) -> Result<Vec<StoreEntry>, CniError> {
    let Some(locked) = lock_if_any(store)? else { return Ok(Vec::new()) };
    let mut entries = locked.entries()?;
    entries.retain(|entry| !owners.include(&entry.container_id, &entry.ifname));
    Ok(entries)
}

/// Releases them; gives the number of attachments they belonged to.
fn release(store: &Store, owners: &ValidOwners<'_>) -> Result<usize, CniError> {
    let Some(locked) = lock_if_any(store)? else { return Ok(0) };
    Ok(locked.retain(|container_id, ifname| owners.include(container_id, ifname))?.len())
}
