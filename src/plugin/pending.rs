//! What the next ADD would repair for running pods, on a host that the plugin serves without an agent.

use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::ipam::RangeSet;
use crate::net::Object;
use crate::netlink::rtnl::Rtnl;
use crate::plan::Line;
use crate::plan::firewall::standalone_table;
use crate::plugin::failure::OrInternal;
use crate::plugin::{bridge, claim, masquerade, store};

/// Reads bridge and masquerading as a network with the configuration `stdin` needs them; changes nothing.
///
/// # Errors
/// Why every ADD with this configuration fails.
pub fn pending(stdin: &[u8]) -> Result<Vec<Line>, CniError> {
    let conf = NetConf::sound(stdin)?;
    let sets = claim::sets(&conf)?;
    store::open(&conf)?.writable()?;
    let table = Object::Table(standalone_table(conf.name.as_str()));
    let table = masquerade::missing(&conf, &sets)?.then(|| Line::changed(table));
    Ok(of_bridge(&conf, &sets)?.into_iter().chain(table).collect())
}

fn of_bridge(conf: &NetConf, sets: &[RangeSet]) -> Result<Option<Line>, CniError> {
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket")?;
    let object = Object::Bridge(conf.bridge.clone());
    let Some(found) = bridge::find(&rtnl, conf)? else { return Ok(Some(Line::added(object))) };
    let gateways = if conf.is_gateway { claim::gateways(sets) } else { Vec::new() };
    let why = bridge::why_unusable(&rtnl, conf, &gateways, &found)?;
    Ok(why.map(|why| Line::changed(object).with(format!(": {why}"))))
}
