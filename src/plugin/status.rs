//! STATUS: could an ADD be served? Runtimes ask every few seconds.

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::ipam::RangeSet;
use crate::netlink::rtnl::Rtnl;
use crate::plan::bridge_ports;
use crate::plugin::failure::OrInternal;
use crate::plugin::{bridge, claim, network, policy, store};

/// Reads bridge, networks, policies, store and addresses; changes nothing, and asks the agent only whether it is there, where
/// no ADD is served without it.
///
/// # Errors
/// Code 50: an ADD would fail. Code 51: running pods are affected as well.
pub fn status(conf: &NetConf) -> Result<(), CniError> {
    add_is_possible(conf).map_err(|error| match error.code {
        code::NOT_AVAILABLE_LIMITED => error,
        _ => CniError { code: code::NOT_AVAILABLE, ..error },
    })
}

fn add_is_possible(conf: &NetConf) -> Result<(), CniError> {
    let sets = claim::sets(conf)?;
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket")?;
    bridge_takes_pods(&rtnl, conf, &sets)?;
    network::are_known(conf)?;
    policy::allow_pods(conf)?;
    let store = store::open(conf)?;
    store.writable()?;
    store.check_open(&sets)?;
    match store.has_free(&sets)? {
        true => Ok(()),
        false => Err(CniError::not_available("no IP addresses available in the network's ranges")),
    }
}

fn bridge_takes_pods(rtnl: &Rtnl, conf: &NetConf, sets: &[RangeSet]) -> Result<(), CniError> {
    let Some(found) = bridge::find(rtnl, conf)? else {
        if conf.create_bridge {
            // The next ADD creates it. If STATUS failed, there would be no next ADD.
            return Ok(());
        }
        return Err(CniError::not_available(format!(
            "bridge {} is missing: is humanz-agent running on this host?",
            conf.bridge
        )));
    };
    // Where the plugin creates the bridge, the next ADD repairs it.
    if !conf.create_bridge || found.kind.as_deref() != Some("bridge") {
        let gateways = if conf.is_gateway { claim::gateways(sets) } else { Vec::new() };
        if let Some(reason) = bridge::why_unusable(rtnl, conf, &gateways, &found)? {
            return Err(CniError::new(code::NOT_AVAILABLE_LIMITED, reason));
        }
    }
    has_free_port(rtnl, found.index, conf, sets)
}

/// Ports are counted only where the addresses would not run out first: each takes a microsecond.
fn has_free_port(
    rtnl: &Rtnl,
    index: u32,
    conf: &NetConf,
    sets: &[RangeSet],
) -> Result<(), CniError> {
    if sets.iter().any(|set| set.count() <= bridge_ports::MOST as u128) {
        return Ok(());
    }
    match rtnl.count_ports(index).or_internal("count the bridge's ports")? {
        bridge_ports::MOST.. => {
            Err(CniError::not_available(bridge_ports::full(&conf.bridge).to_string()))
        }
        _ => Ok(()),
    }
}
