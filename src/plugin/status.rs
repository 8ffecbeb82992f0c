//! STATUS: could an ADD be served? Asked every few seconds.

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::ipam::RangeSet;
use crate::netlink::rtnl::Rtnl;
use crate::plan::bridge_ports;
use crate::plugin::{bridge, claim, failure};

/// Looks at bridge, store and addresses, and changes nothing.
///
/// # Errors
/// Code 50: an ADD would fail. Code 51: pods that run suffer as well.
pub fn status(conf: &NetConf) -> Result<(), CniError> {
    let sets = claim::sets(conf).map_err(unavailable)?;
    let rtnl = Rtnl::open().map_err(|error| failure::internal("talk to the kernel", &error));
    bridge_takes_pods(&rtnl.map_err(unavailable)?, conf, &sets)?;
    let store = claim::store(conf).map_err(unavailable)?;
    let of_store = |error| unavailable(failure::of_store(&error));
    store.writable().map_err(of_store)?;
    match store.has_free(&sets).map_err(of_store)? {
        true => Ok(()),
        false => Err(CniError::not_available("no IP addresses available in the network's ranges")),
    }
}

fn bridge_takes_pods(rtnl: &Rtnl, conf: &NetConf, sets: &[RangeSet]) -> Result<(), CniError> {
    let found = bridge::look(rtnl, conf).map_err(unavailable)?;
    let Some(found) = found else {
        if conf.create_bridge {
            // The next ADD makes it. If STATUS refused, there would be no next ADD.
            return Ok(());
        }
        return Err(CniError::not_available(format!(
            "bridge {} is missing: is humanz-agent running on this host?",
            conf.bridge
        )));
    };
    // Where the plugin makes the bridge, the next ADD puts it right.
    if !conf.create_bridge || found.kind.as_deref() != Some("bridge") {
        let gateways = if conf.is_gateway { claim::gateways(sets) } else { Vec::new() };
        let fault = bridge::fault(rtnl, conf, &gateways, &found).map_err(unavailable)?;
        if let Some(fault) = fault {
            return Err(CniError::new(code::NOT_AVAILABLE_LIMITED, fault));
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
    let count = rtnl.count_ports(index);
    let count = count.map_err(|error| failure::internal("count the bridge's ports", &error));
    match count.map_err(unavailable)? {
        bridge_ports::MOST.. => {
            Err(CniError::not_available(bridge_ports::full(&conf.bridge).to_string()))
        }
        _ => Ok(()),
    }
}

fn unavailable(error: CniError) -> CniError {
    CniError { code: code::NOT_AVAILABLE, ..error }
}
