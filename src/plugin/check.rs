//! CHECK: is the pod still attached as ADD said?

use std::net::IpAddr;
use std::path::Path;

use crate::cni::error::{CniError, code};
use crate::cni::request::Check;
use crate::cni::result::Interface;
use crate::net::{IfName, Mac};
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::plan::pod::{
    Assigned, FoundPod, LinkIdentity, PodDifference, PodInterface, RequestedSettings, differences,
    kernel_route, recalled,
};
use crate::plugin::pod_state::Inside;
use crate::plugin::{bridge, claim, del, failure, host_ports, identity, port};

/// Compares what is there with what the configuration and `prevResult` say.
///
/// # Errors
/// Code 103: the first difference, and how many more there are.
pub fn check(check: &Check) -> Result<(), CniError> {
    let identity = identity(&check.conf.name, &check.attachment);
    let wanted = wanted(check, &identity)?;
    let netns = netns(check)?;
    let found = observe(check, &netns, &identity, &wanted)?;
    let mut differences = differences(&wanted, &check.conf.bridge, &found);
    differences.extend(told_otherwise(check, &netns, &wanted, &found));
    differences.extend(closed_ports(check)?);
    outcome(&differences)
}

/// The host ports that do not lead to the addresses that ADD answered.
///
/// # Errors
/// Code 999: the kernel could not be asked.
pub fn closed_ports(check: &Check) -> Result<Vec<PodDifference>, CniError> {
    let addresses = check.prev_result.container_addresses(check.attachment.ifname.as_str());
    let addresses: Vec<IpAddr> = addresses.map(|ip| ip.address.ip()).collect();
    Ok(host_ports::faults(check, &addresses)?.into_iter().map(PodDifference::HostPort).collect())
}

/// All is well if nothing differs.
///
/// # Errors
/// Code 103: the first difference, and how many more there are.
pub fn outcome(differences: &[PodDifference]) -> Result<(), CniError> {
    let Some((first, rest)) = differences.split_first() else { return Ok(()) };
    let error = CniError::new(code::CHECK_FAILED, first.to_string());
    if rest.is_empty() {
        return Err(error);
    }
    let rest: Vec<String> = rest.iter().map(ToString::to_string).collect();
    Err(error.with_details(rest.join("; ")))
}

/// The pod's namespace.
///
/// # Errors
/// Code 8: it is not there.
pub fn netns(check: &Check) -> Result<NetNs, CniError> {
    let netns = NetNs::open(Path::new(&check.netns.path));
    netns.map_err(|error| CniError::netns(failure::chain(&error)))
}

/// The attachment that `prevResult` describes.
fn wanted(check: &Check, identity: &LinkIdentity<'_>) -> Result<PodInterface, CniError> {
    let (result, ifname) = (&check.prev_result, &check.attachment.ifname);
    let interface = result.container_interface(ifname.as_str()).ok_or_else(|| {
        CniError::new(code::CHECK_FAILED, format!("prevResult has no interface {ifname}"))
    })?;
    let host_ifname = identity.host_ifname();
    let host = on_host(check, &host_ifname);
    let addresses = result.container_addresses(ifname.as_str());
    let assigned: Vec<Assigned> =
        addresses.map(|ip| Assigned { address: ip.address, gateway: ip.gateway }).collect();
    let conf = &check.conf;
    let route =
        |told| kernel_route(&recalled(told, &conf.routes, &assigned, conf.version), &assigned);
    Ok(PodInterface {
        host_mac: host.and_then(mac),
        host_ifname,
        port: port(conf),
        ifname: ifname.clone(),
        mac: mac(interface),
        addresses: assigned.iter().map(|assigned| assigned.address).collect(),
        routes: result.routes.iter().map(route).collect(),
        defaults: Vec::new(),
        asked: RequestedSettings::of(
            &conf.bandwidth,
            &conf.tuning,
            ifname,
            interface.mtu.unwrap_or(0),
        ),
    })
}

/// The interface of that name on the host, in `prevResult`.
fn on_host<'a>(check: &'a Check, name: &IfName) -> Option<&'a Interface> {
    let mut told = check.prev_result.interfaces.iter();
    told.find(|told| told.name == name.as_str() && told.sandbox.is_none())
}

fn mac(told: &Interface) -> Option<Mac> {
    told.mac.as_ref()?.parse().ok()
}

/// The interfaces of which `prevResult` tells something else than ADD answers. Those that other
/// plugins of the chain added are theirs.
fn told_otherwise(
    check: &Check,
    netns: &NetNs,
    wanted: &PodInterface,
    found: &FoundPod,
) -> Vec<PodDifference> {
    let mut differences = Vec::new();
    for name in [&check.conf.bridge, &wanted.host_ifname] {
        if on_host(check, name).is_none() {
            differences.push(PodDifference::NoInterfaceTold(name.clone()));
        }
    }
    let told = on_host(check, &check.conf.bridge).and_then(mac);
    let bridge = found.bridge.as_ref().filter(|bridge| bridge::is_ours(bridge));
    if let Some((told, bridge)) =
        told.zip(bridge).filter(|(told, bridge)| bridge.mac != Some(*told))
    {
        let name = bridge.name.clone();
        differences.push(PodDifference::WrongMac("on the host", name, told, bridge.mac));
    }
    let named = |told: &&Interface| told.name == wanted.ifname.as_str();
    let mut sandboxes =
        check.prev_result.interfaces.iter().filter(named).filter_map(|told| told.sandbox.as_ref());
    if !sandboxes.any(|sandbox| is_same(sandbox, netns, &check.netns.path)) {
        let (ifname, path) = (wanted.ifname.clone(), check.netns.path.clone());
        differences.push(PodDifference::OtherSandbox(ifname, path));
    }
    differences
}

/// `sandbox` is the namespace `netns`, which `CNI_NETNS` calls `path`; one that cannot be opened is
/// known by its path.
fn is_same(sandbox: &str, netns: &NetNs, path: &str) -> bool {
    let opened = || NetNs::open(Path::new(sandbox)).and_then(|told| told.is(netns));
    sandbox == path || opened().unwrap_or(false)
}

/// The attachment as it is.
fn observe(
    check: &Check,
    netns: &NetNs,
    identity: &LinkIdentity<'_>,
    wanted: &PodInterface,
) -> Result<FoundPod, CniError> {
    let failed = |error| failure::internal("look at the host's interfaces", &error);
    let rtnl = Rtnl::open().map_err(failed)?;
    let host = rtnl.link(&identity.host_ifname()).map_err(failed)?;
    let mut found = FoundPod {
        bridge: bridge::look(&rtnl, &check.conf)?,
        host: host.filter(|host| identity.owns(host.alias.as_deref())),
        ..FoundPod::default()
    };
    let pod = Inside::look(netns, &check.netns.path, &check.attachment.ifname)?;
    found.asked = pod.asked(&wanted.asked, &rtnl, found.host.as_ref())?;
    if let Some(link) = &pod.link {
        let failed = |error| failure::internal("look at the pod's addresses", &error);
        let addresses = pod.rtnl.addresses(Some(link.index)).map_err(failed)?;
        found.addresses = addresses.into_iter().map(|found| found.address).collect();
        found.routes = pod.rtnl.all_routes().map_err(failed)?;
    }
    found.pod = pod.link;
    let store = claim::store(&check.conf)?;
    if let Some(locked) = del::locked(&store)? {
        let reserved = locked.reserved(identity.container_id, identity.ifname);
        found.reserved = reserved.map_err(|error| failure::of_store(&error))?;
    }
    Ok(found)
}
