//! Keeps pods plugged into the bridge.

use crate::agent::keep::Pass;
use crate::agent::report::Report;
use crate::linux::link::{self, Port, Which};
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

fn apply(rtnl: &Rtnl, plug: &Plug) -> anyhow::Result<()> {
    let Some(bridge) = rtnl.link(&plug.bridge)? else {
        anyhow::bail!("bridge {} has just been deleted", plug.bridge);
    };
    // As the plugin makes them by the configuration that the agent writes.
    let port = Port { hairpin: true, isolated: false, locked: false };
    let master = link::Change { master: Some(bridge.index), up: true, ..Default::default() };
    let flags = link::Change { port: Some(port), ..Default::default() };
    let messages = [master, flags].map(|change| link::change(Which::Index(plug.index), &change));
    Ok(rtnl.apply(&messages)?)
}
