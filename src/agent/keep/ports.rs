//! Keeps pods plugged into the bridge.

use nix::errno::Errno;

use crate::agent::keep::Pass;
use crate::agent::report::Report;
use crate::linux::link::{self, Which};
use crate::linux::neighbour;
use crate::linux::netlink::Message;
use crate::linux::rtnl::Rtnl;
use crate::plan::ports::{Plug, changes, crowded};

/// Plugs pods in again that lost the bridge; says if it can hardly take more.
pub fn keep(pass: &Pass<'_>, report: &mut Report) -> Option<String> {
    let rtnl = &pass.world.rtnl;
    let (network, bridge) = (&pass.settings.cni.name, &pass.settings.bridge);
    let found = match rtnl.links(None) {
        Ok(found) => found,
        Err(error) => {
            report.failed(format!("look for pods without a bridge: {error}"));
            return None;
        }
    };
    for plug in changes(network, bridge, &found) {
        report.apply(&plug, || apply(rtnl, &plug));
    }
    let own = found.iter().find(|link| link.name == *bridge)?;
    crowded(bridge, found.iter().filter(|link| link.master == Some(own.index)).count())
}

/// Plugs a pod in, as it was before: one whose MAC is checked not for a moment without that. All is
/// sent at once, so that nobody who is killed leaves half of it.
fn apply(rtnl: &Rtnl, plug: &Plug) -> anyhow::Result<()> {
    let Some(bridge) = rtnl.link(&plug.bridge)? else {
        anyhow::bail!("bridge {} has just been deleted", plug.bridge);
    };
    let which = Which::Index(plug.index);
    let change = |change: link::Change| link::change(which, &change);
    let nothing = link::Change::default();
    let down = plug.plugged.mac.map(|_| link::set_down(which));
    let master = change(link::Change { master: Some(bridge.index), ..nothing.clone() });
    let port = change(link::Change { port: Some(plug.plugged.port()), ..nothing.clone() });
    let pin = plug.plugged.mac.map(|mac| neighbour::pin(plug.index, mac));
    let up = change(link::Change { up: true, ..nothing.clone() });
    let messages: Vec<Message> =
        down.into_iter().chain([master, port]).chain(pin).chain([up]).collect();
    let plugged = rtnl.apply(&messages);
    if plugged.is_err() {
        // Better out than in with half of it: then it is found again.
        let out = change(link::Change { master: Some(0), ..nothing });
        rtnl.apply(&[out.tolerating(Errno::ENODEV)])?;
    }
    Ok(plugged?)
}
