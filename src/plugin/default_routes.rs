//! Default routes of a pod, and what an interface gets in their place where an earlier one has them.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::net::subnet::family;
use crate::netlink::NetlinkError;
use crate::netlink::route::{self, Route};
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::PodInterface;
use crate::plugin::failure::OrInternal;

/// Adds the default routes; gives the destinations of those that exist already.
pub fn add(pod: &Rtnl, wanted: &PodInterface, index: u32) -> Result<Vec<IpNetwork>, NetlinkError> {
    let own = |route: &Route| route::add(&Route { device: Some(index), ..*route });
    let outcomes = pod.apply_each(&wanted.defaults.iter().map(own).collect::<Vec<_>>())?;
    let mut left_out = Vec::new();
    for (route, outcome) in wanted.defaults.iter().zip(outcomes) {
        match outcome {
            Err(error) if error.errno() == Some(Errno::EEXIST) => left_out.push(route.destination),
            outcome => outcome?,
        }
    }
    Ok(left_out)
}

/// Adds routes to the interface's own network in place of the default routes that were `left_out`: what the pod sends
/// from its address would else leave by the earlier interface, whose guard drops it.
///
/// # Errors
/// Code 7: the pod is in that network already, by another interface. Code 999: the kernel refused.
pub fn add_instead(
    pod: &Rtnl,
    wanted: &PodInterface,
    index: u32,
    left_out: &[IpNetwork],
) -> Result<(), CniError> {
    let is_left_out =
        |route: &&Route| left_out.iter().any(|it| family(*it) == family(route.destination));
    let instead: Vec<&Route> = wanted.instead.iter().filter(is_left_out).collect();
    if instead.is_empty() {
        return Ok(());
    }
    let addresses = pod.addresses(None).or_internal("list the addresses of the pod")?;
    for other in addresses.iter().filter(|it| it.index != index).map(|it| it.address) {
        if let Some(route) = instead.iter().find(|it| it.destination.contains(other.ip())) {
            return Err(CniError::config(format!(
                "the pod has an interface in network {} already, with the address {}: give {} another network",
                route.destination,
                other.ip(),
                wanted.ifname
            )));
        }
    }
    let own = |route: &&Route| route::add(&Route { device: Some(index), ..**route });
    let added = pod.apply(&instead.iter().map(own).collect::<Vec<_>>());
    added.or_internal(format_args!("add routes to the network of {}", wanted.ifname))
}
