//! STATUS: could an ADD be served? Asked every few seconds.

use super::{bridge, claim, failure};
use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::linux::rtnl::Rtnl;

/// Looks at bridge, store and addresses, and changes nothing.
///
/// # Errors
/// Code 50: an ADD would fail. Code 51: pods that run suffer as well.
pub fn status(conf: &NetConf) -> Result<(), CniError> {
    let unavailable = |error: CniError| CniError { code: code::NOT_AVAILABLE, ..error };
    let sets = claim::sets(conf).map_err(unavailable)?;
    let rtnl = Rtnl::open().map_err(|error| failure::internal("talk to the kernel", &error));
    let rtnl = rtnl.map_err(unavailable)?;
    let found = bridge::look(&rtnl, conf).map_err(unavailable)?;
    match (found, conf.create_bridge) {
        // The next ADD makes it, or puts it right. If STATUS refused, there would be no next ADD.
        (None, true) => {}
        (Some(found), true) if found.kind.as_deref() == Some("bridge") => {}
        (None, false) => {
            return Err(CniError::not_available(format!(
                "bridge {} is missing: is humanz-agent running on this host?",
                conf.bridge
            )));
        }
        (Some(found), _) => {
            let gateways = if conf.is_gateway { claim::gateways(&sets) } else { Vec::new() };
            let fault = bridge::fault(&rtnl, conf, &gateways, &found).map_err(unavailable)?;
            if let Some(fault) = fault {
                return Err(CniError::new(code::NOT_AVAILABLE_LIMITED, fault));
            }
        }
    }
    let store = claim::store(conf).map_err(unavailable)?;
    let of_store = |error| unavailable(failure::of_store(&error));
    store.writable().map_err(of_store)?;
    match store.has_free(&sets).map_err(of_store)? {
        true => Ok(()),
        false => Err(CniError::not_available("no IP addresses available in the network's ranges")),
    }
}
