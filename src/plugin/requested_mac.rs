//! The MAC that a pod requests, and those that it does not get: the frames for them are another's.

use std::net::IpAddr;

use crate::cni::error::{CniError, code};
use crate::inspect::holders::{self, MacHolder};
use crate::net::Mac;
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::plugin::failure::OrInternal;

/// Refuses a MAC that this host or somebody on the bridge has, and one that humanz may derive later for another pod, its
/// port or a bridge: all of these are known in advance. `own` are those that may be derived for this pod.
///
/// # Errors
/// Code 101: it is not given. Code 11: a device has sent with it lately. Code 999: the kernel refused an answer.
pub fn verify(rtnl: &Rtnl, bridge: &Link, mac: Mac, own: &[Mac]) -> Result<(), CniError> {
    let what = "look for the requested MAC";
    let links = rtnl.links(None).or_internal(what)?;
    if let Some(link) = links.into_iter().find(|link| link.mac == Some(mac)) {
        return Err(taken(mac, &MacHolder::Host(link.name), false));
    }
    if let Some(holder) = holders::of_mac(rtnl, bridge.index, mac, None).or_internal(what)? {
        return Err(taken(mac, &holder, false));
    }
    if mac.is_derived() && !own.contains(&mac) {
        let why = "0a:56 to 0a:5b is where humanz takes MACs of pods, their ports and bridges from";
        let error = format!("MAC {mac} is not given on request: {why}; request another one");
        return Err(CniError::new(code::ADDRESS_REFUSED, error));
    }
    Ok(())
}

/// The MACs that may be derived for a pod with these addresses, or for one without any.
pub fn own(addresses: &[IpAddr], without: Mac) -> Vec<Mac> {
    addresses.iter().copied().map(Mac::of_address).chain([without]).collect()
}

/// Why a pod does not get `mac`. With `is_derived` it was not requested: another address has another one.
pub fn taken(mac: Mac, holder: &MacHolder, is_derived: bool) -> CniError {
    let by = match holder {
        MacHolder::Pod(pod) => pod.clone(),
        MacHolder::Host(link) => format!("this host: it is that of interface {link}"),
        MacHolder::Pinned(port) => format!("a device behind port {port} of the bridge"),
        MacHolder::Seen(port) => {
            format!("a device behind port {port} of the bridge, which sent in the last minutes")
        }
    };
    let code = match (holder, is_derived) {
        (MacHolder::Seen(_), _) | (_, true) => code::TRY_AGAIN,
        (_, false) => code::ADDRESS_REFUSED,
    };
    CniError::new(code, format!("MAC {mac} is in use by {by}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_soon_be_free_is_worth_another_try() {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let port = || "eth0".parse().unwrap();
        let check = |holder: MacHolder, is_derived, code, text: &str| {
            let error = taken(mac, &holder, is_derived);
            assert_eq!(error.code, code, "{error}");
            assert!(error.msg.contains(text), "{error}");
        };
        check(MacHolder::Host(port()), false, 101, "02:00:00:00:00:01 is in use by this host");
        check(MacHolder::Host(port()), true, 11, "interface eth0");
        check(MacHolder::Pod("humanz net a eth0".to_owned()), false, 101, "by humanz net a eth0");
        check(MacHolder::Pod("humanz net a eth0".to_owned()), true, 11, "by humanz net a eth0");
        check(MacHolder::Pinned(port()), false, 101, "port eth0");
        check(MacHolder::Seen(port()), false, 11, "which sent");
    }
}
