//! Keeps the bridge.

use anyhow::Context;
use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::sysctls;
use crate::inspect::host_state::HostState;
use crate::net::{IfName, Mac, Object, Problem, subnet};
use crate::netlink::address;
use crate::netlink::link::{self, Link, LinkRef};
use crate::netlink::route;
use crate::netlink::rtnl::Rtnl;
use crate::plan::bridge::{
    Bridge, BridgeChange, FoundBridge, MarkedBridge, changes, gateway, renamed,
};
use crate::plan::ownership::is_of_pod;
use crate::plan::routes::before_kernel;

/// The mark of a bridge that humanz made, as its alias.
const ALIAS: &str = "humanz bridge";

/// The bridge after a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeOutcome {
    /// As it should be, as far as that was looked at.
    Whole,
    /// It was missing, and is new: nothing is plugged into it.
    New,
    /// It was down, when a kernel forgets its neighbours.
    Up,
    /// It could not be repaired; that was reported.
    Broken,
}

/// Makes or repairs the bridge. Gives other bridges with its mark, too, which are left alone.
pub fn reconcile(
    run: &Reconcile<'_>,
    host_state: &HostState,
    applier: &mut Applier,
) -> (BridgeOutcome, Vec<Problem>) {
    let wanted = wanted(run, host_state);
    let rtnl = &run.kernel.rtnl;
    let (found, others) = match choose(rtnl, &wanted) {
        Ok((Chosen::Unclear, others)) => {
            others.into_iter().for_each(|other| applier.failed(other));
            return (BridgeOutcome::Broken, Vec::new());
        }
        Ok((Chosen::Missing, others)) => (Ok(None), others),
        Ok((Chosen::Link(link), others)) => (inspect(rtnl, *link).map(Some), others),
        Err(error) => (Err(error), Vec::new()),
    };
    (repaired(rtnl, wanted, found, applier), others)
}

fn repaired(
    rtnl: &Rtnl,
    wanted: Bridge,
    found: anyhow::Result<Option<FoundBridge>>,
    applier: &mut Applier,
) -> BridgeOutcome {
    let mut kept = BridgeOutcome::Whole;
    let before = applier.failures().len();
    match found.map(|found| changes(&wanted, found.as_ref())) {
        Ok(Ok(changes)) => {
            for change in changes {
                match change {
                    BridgeChange::Create(_) => kept = BridgeOutcome::New,
                    BridgeChange::SetUp(_) if kept == BridgeOutcome::Whole => {
                        kept = BridgeOutcome::Up;
                    }
                    _ => {}
                }
                applier.apply(&change, || apply(rtnl, &change));
            }
        }
        Ok(Err(foreign)) => applier.failed(*foreign),
        Err(error) => {
            applier.inspect_failed(Object::Bridge(wanted.name), format!("{error:#}"));
        }
    }
    if applier.failures().len() == before { kept } else { BridgeOutcome::Broken }
}

/// Deletes the bridge if humanz made it, and with it every pod's network on this host.
pub fn remove(rtnl: &Rtnl, name: &IfName) -> anyhow::Result<()> {
    let link = rtnl.link(name).with_context(|| format!("read bridge {name}"))?;
    let Some(link) = link.filter(|link| link.alias.as_deref() == Some(ALIAS)) else {
        return Ok(());
    };
    let delete = link::delete(LinkRef::Index(link.index)).tolerating(Errno::ENODEV);
    Ok(rtnl.apply(&[delete])?)
}

fn wanted(run: &Reconcile<'_>, host_state: &HostState) -> Bridge {
    let name = run.settings.bridge.clone();
    // Before etcd has said who has which block, none of its addresses is of a former one.
    let known = run.networks.pools.iter().copied().filter(|_| run.networks.in_sync);
    Bridge {
        mac: mac(&run.kernel.machine_id, &name),
        mtu: host_state.own.pod_mtu_bytes,
        addresses: run.pod_subnets().map(gateway).collect(),
        pools: run.settings.pools.iter().map(|pool| pool.network()).chain(known).collect(),
        name,
    }
}

/// The bridge's MAC: the same for as long as the machine is.
fn mac(machine_id: &str, bridge: &IfName) -> Mac {
    const BRIDGE: u8 = 0x5a;
    Mac::derived(BRIDGE, &[machine_id, bridge.as_str()])
}

enum Chosen {
    Link(Box<Link>),
    /// There is none.
    Missing,
    /// It is one of several.
    Unclear,
}

/// The link of the bridge's name, or the bridge under the name that somebody gave it; and others with the
/// mark.
fn choose(rtnl: &Rtnl, wanted: &Bridge) -> anyhow::Result<(Chosen, Vec<Problem>)> {
    let reading = || format!("read bridge {}", wanted.name);
    let named = rtnl.link(&wanted.name).with_context(reading)?;
    let marked = marked(rtnl, wanted)?;
    let bridges: Vec<MarkedBridge> = marked.iter().map(|(_, bridge)| bridge.clone()).collect();
    let (renamed, others) = renamed(wanted, named.is_some(), &bridges);
    let mut links = marked.into_iter().map(|(link, _)| link);
    let link = named.or(links.find(|link| Some(&link.name) == renamed.as_ref()));
    let chosen = match link {
        Some(link) => Chosen::Link(Box::new(link)),
        None if bridges.is_empty() => Chosen::Missing,
        None => Chosen::Unclear,
    };
    Ok((chosen, others))
}

fn inspect(rtnl: &Rtnl, link: Link) -> anyhow::Result<FoundBridge> {
    let addresses = rtnl.addresses(Some(link.index));
    let addresses = addresses.with_context(|| format!("read addresses of {}", link.name))?;
    let Link { name, kind, mac, mtu, up, delays_ports, .. } = link;
    let addresses = addresses.iter().map(|found| found.address).collect();
    Ok(FoundBridge { name, kind, mac, mtu, up, delays_ports, addresses })
}

/// The bridges of other names with our mark, whose MAC is that of no other network's.
fn marked(rtnl: &Rtnl, wanted: &Bridge) -> anyhow::Result<Vec<(Link, MarkedBridge)>> {
    let mut marked = Vec::new();
    for link in rtnl.bridges().context("read bridges")? {
        let is_marked = link.alias.as_deref() == Some(ALIAS) && link.mac == Some(wanted.mac);
        if is_marked && link.name != wanted.name {
            let ports = rtnl.links(Some(link.index)).context("read ports of a bridge")?;
            let pods = ports.iter().filter(|port| is_of_pod(port)).count();
            let bridge = MarkedBridge { name: link.name.clone(), pods };
            marked.push((link, bridge));
        }
    }
    Ok(marked)
}

fn apply(rtnl: &Rtnl, change: &BridgeChange) -> anyhow::Result<()> {
    let set =
        |name: &IfName, change: link::LinkChange| vec![link::change(LinkRef::Name(name), &change)];
    let nothing = link::LinkChange::default();
    let messages = match change {
        BridgeChange::Create(bridge) => {
            link::add_bridge(&bridge.name, bridge.mac, bridge.mtu, ALIAS).to_vec()
        }
        BridgeChange::Rename(from, name) => return rename(rtnl, index(rtnl, from)?, name),
        BridgeChange::SetMac(name, mac) => {
            set(name, link::LinkChange { mac: Some(*mac), ..nothing })
        }
        BridgeChange::SetMtu(name, mtu) => {
            set(name, link::LinkChange { mtu: Some(*mtu), ..nothing })
        }
        BridgeChange::SetUp(name) => set(name, link::LinkChange { up: true, ..nothing }),
        BridgeChange::StopDelays(name) => vec![link::stop_delays(name)],
        BridgeChange::RemoveAddress(name, found) => {
            let index = index(rtnl, name)?;
            // With the address the kernel removes the first route to its prefix: its own would stay for ever.
            let ours = found.is_ipv6().then(|| before_kernel(subnet::masked(*found), index));
            let ours = ours.map(|ours| route::delete(&ours).tolerating(Errno::ESRCH));
            let gone = address::delete(index, *found).tolerating(Errno::EADDRNOTAVAIL);
            ours.into_iter().chain([gone]).collect()
        }
        BridgeChange::AddAddress(name, wanted) => {
            if wanted.is_ipv6() {
                sysctls::allow_ipv6(name)?;
            }
            vec![address::add(index(rtnl, name)?, *wanted).tolerating(Errno::EEXIST)]
        }
    };
    Ok(rtnl.apply(&messages)?)
}

/// Where the kernel renames no link that is up, it is down for a moment; addresses that it loses by that
/// are found missing because of that event.
fn rename(rtnl: &Rtnl, index: u32, name: &IfName) -> anyhow::Result<()> {
    let rename = || link::rename(index, name);
    match rtnl.apply(&[rename()]) {
        Err(error) if error.errno() == Some(Errno::EBUSY) => {
            let up = link::LinkChange { up: true, ..link::LinkChange::default() };
            let which = LinkRef::Index(index);
            Ok(rtnl.apply(&[link::set_down(which), rename(), link::change(which, &up)])?)
        }
        renamed => Ok(renamed?),
    }
}

fn index(rtnl: &Rtnl, name: &IfName) -> anyhow::Result<u32> {
    let link = rtnl.link(name)?;
    link.map(|link| link.index).with_context(|| format!("bridge {name} has just been deleted"))
}
