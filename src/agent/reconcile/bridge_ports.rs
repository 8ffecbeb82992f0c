//! Keeps pods plugged into the bridge.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, store_unusable};
use crate::inspect::pods;
use crate::ipam::StoreEntry;
use crate::net::gather::Gather;
use crate::net::{Hint, IfName, Object, Problem};
use crate::netlink::link::{self, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError, fdb, neighbour};
use crate::plan::bridge_ports::{Reattach, SetPortUp, changes, crowded, down};
use crate::plan::guard::TABLE;
use crate::plan::local_macs::lost;
use crate::plan::pod::{BridgePort, LinkIdentity};

/// Plugs pods in again that lost the bridge, sets their links up that somebody set down, and gives the bridge the MACs
/// back that are its own and theirs; says if it can hardly take more.
pub fn reconcile(run: &Reconcile<'_>, applier: &mut Applier) -> Option<Problem> {
    let rtnl = &run.kernel.rtnl;
    let (network, bridge) = (&run.settings.cni.name, &run.settings.bridge);
    let found = applier.inspected(Object::named("ports of the bridge"), rtnl.links(None))?;
    for plug in changes(network, bridge, &found) {
        applier.apply(&plug, || apply(rtnl, &plug));
    }
    let own = found.iter().find(|link| link.name == *bridge)?;
    let mut ports = down(network, own.index, &found);
    if !ports.is_empty()
        && run.settings.guard.is_on
        && let Err(error) = leave_new(run, &mut ports)
    {
        applier.inspection_failed(Object::named("ports of the bridge"), &error);
        ports.clear();
    }
    for port in ports {
        let up = link::LinkChange { up: true, ..link::LinkChange::default() };
        let up = link::change(LinkRef::Index(port.index), &up).tolerating(Errno::ENODEV);
        applier.apply(&port, || rtnl.apply(&[up]));
    }
    restore_macs(rtnl, own.index, applier);
    crowded(bridge, found.iter().filter(|link| link.master == Some(own.index)).count())
}

/// Lets the host take in again what the bridge sends elsewhere of the frames for its own MAC and those of pods'
/// ports.
fn restore_macs(rtnl: &Rtnl, bridge: u32, applier: &mut Applier) {
    // In this order: a port that comes meanwhile is not looked for.
    let found = rtnl.links(None).and_then(|links| Ok((links, rtnl.bridge_entries(bridge)?)));
    let found = applier.inspected(Object::named("MACs of the bridge"), found);
    let Some((links, entries)) = found else { return };
    for lost in lost(bridge, &links, &entries) {
        let set = fdb::set_local(lost.index, lost.mac, lost.is_bridge);
        // The pod may be gone meanwhile, or its port off the bridge.
        let set = set.tolerating(Errno::ENODEV).tolerating(Errno::EOPNOTSUPP);
        applier.apply(&lost, || rtnl.apply(&[set]));
    }
}

/// Leaves those to the plugin that it is just making: they have no guard yet, and somebody in the pod may have
/// set its end up. Who lost its guard while it was down has been attached for a while.
fn leave_new(run: &Reconcile<'_>, ports: &mut Vec<SetPortUp>) -> anyhow::Result<()> {
    // As long as an ADD may take: its entry is older than its interface.
    const ATTACHING_SECS: u64 = 60;
    let guarded = run.kernel.nft.device_chain_names(TABLE)?;
    if ports.iter().all(|port| guarded.contains(port.link.as_str())) {
        return Ok(());
    }
    let network = &run.settings.cni.name;
    let store = pods::store(run.settings, network)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let entries = store.contents().with_context(|| store_unusable(run.settings))?.entries;
    // An entry later than now is from before the clock was set back.
    let is_old = |entry: &&Arc<StoreEntry>| now.abs_diff(entry.time_secs) > ATTACHING_SECS;
    let name = |entry: &Arc<StoreEntry>| {
        let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
        LinkIdentity { network, container_id, ifname }.host_ifname()
    };
    let old: BTreeSet<IfName> = entries.iter().filter(is_old).map(name).gather();
    ports.retain(|port| guarded.contains(port.link.as_str()) || old.contains(&port.link));
    Ok(())
}

/// Plugs a pod in, as it was before: one that is no usual port not for a moment as if it were. All
/// is sent at once, so that an agent killed meanwhile leaves no half of it.
fn apply(rtnl: &Rtnl, plug: &Reattach) -> anyhow::Result<()> {
    let Some(bridge) = rtnl.link(&plug.bridge)? else {
        anyhow::bail!("bridge {} has just been deleted", plug.bridge);
    };
    let which = LinkRef::Index(plug.index);
    let change = |change: link::LinkChange| link::change(which, &change);
    let nothing = link::LinkChange::default();
    let is_usual = plug.port == BridgePort::default();
    let down = (!is_usual).then(|| link::set_down(which));
    let master = change(link::LinkChange { master: Some(bridge.index), ..nothing.clone() });
    let port = change(link::LinkChange { port: Some(plug.port.port()), ..nothing.clone() });
    let pin = plug.pin.map(|mac| neighbour::pin(plug.index, mac));
    let up = change(link::LinkChange { up: true, ..nothing.clone() });
    let messages: Vec<Message> =
        down.into_iter().chain([master, port]).chain(pin).chain([up]).collect();
    rtnl.apply(&messages).map_err(|error| {
        // Better out than in with half of it: then it is found again.
        let out = change(link::LinkChange { master: Some(0), ..nothing });
        not_plugged(&plug.link, error, rtnl.apply(&[out.tolerating(Errno::ENODEV)]))
    })
}

/// Why `link` is not plugged in as it should be, and whether it is out of the bridge.
fn not_plugged(link: &IfName, why: NetlinkError, out: Result<(), NetlinkError>) -> anyhow::Error {
    let why = anyhow::Error::from(why);
    match out.map_err(anyhow::Error::from) {
        Ok(()) => why,
        Err(out) => {
            let half = format!("half of that may be set, because it cannot be unplugged: {out:#}");
            why.context(Hint { why: half, fix: format!("ip link set dev {link} nomaster") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::applier::fix_of;

    #[test]
    fn a_pod_that_can_neither_be_plugged_in_nor_out_has_a_fix() {
        let refused = |what: &str| NetlinkError::Malformed(what.to_owned());
        let error = |out| not_plugged(&"hz1".parse().unwrap(), refused("full"), out);
        let text = |out| format!("{:#}", error(out));
        assert!(text(Ok(())).ends_with(": full"), "{}", text(Ok(())));
        let both = text(Err(refused("busy")));
        assert!(both.contains(": busy") && both.ends_with(": full"), "{both}");
        assert_eq!(fix_of(&error(Err(refused("busy"))), None), "ip link set dev hz1 nomaster");
    }
}
