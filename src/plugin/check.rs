//! CHECK: is the pod still attached as ADD answered?

use std::net::IpAddr;
use std::path::Path;

use crate::cni::error::{CniError, code};
use crate::cni::request::Check;
use crate::cni::result::Interface;
use crate::inspect::port_profiles;
use crate::net::{IfName, Mac};
use crate::netlink::fdb::EntryKind;
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::plan::bandwidth::bucket;
use crate::plan::guard::Guard;
use crate::plan::pod::{
    Assigned, FoundPod, LinkIdentity, PodDifference, PodInterface, RequestedSettings, differences,
    kernel_route, port_flags, recalled,
};
use crate::plan::profiles::PortProfile;
use crate::plugin::failure::OrInternal;
use crate::plugin::invocation::CallContext;
use crate::plugin::pod_state::PodState;
use crate::plugin::store::lock_if_any;
use crate::plugin::{bridge, further, guard, host_ports, netns, policy, store, vlans};

/// Compares the pod's attachment with the configuration and `prevResult`.
///
/// # Errors
/// Code 103: the first difference; the details list the others. Code 11: there is none, but the pod waits in quarantine for
/// an agent that does not answer.
pub fn check(check: &Check, call: &CallContext<'_>) -> Result<(), CniError> {
    let mut differences = Vec::new();
    let checks = further::checks(check)?;
    for check in &checks {
        differences.extend(differences_of(check)?);
    }
    outcome(&differences)?;
    checks.iter().try_for_each(|check| policy::refuse_waiting(check, call.since_1970))
}

/// Those of one interface.
fn differences_of(check: &Check) -> Result<Vec<PodDifference>, CniError> {
    let identity = LinkIdentity::of(&check.conf.name, &check.attachment);
    let wanted = wanted(check, &identity)?;
    let netns = netns::open_any(&check.netns)?;
    let found = observe(check, &netns, &identity, &wanted)?;
    let mut differences = differences(&wanted, &check.conf.bridge, &found);
    differences.extend(result_differences(check, &netns, &wanted, &found));
    differences.extend(vlan_differences(check, &found)?);
    let profile = profile(check, &wanted);
    differences.extend(guard_difference(check, &wanted, &found, profile.as_ref())?);
    differences.extend(limit_difference(profile.as_ref(), &found)?);
    differences.extend(closed_ports(check)?);
    Ok(differences)
}

/// The host ports that do not lead to the addresses that ADD answered.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn closed_ports(check: &Check) -> Result<Vec<PodDifference>, CniError> {
    let addresses = check.prev_result.container_addresses(check.attachment.ifname.as_str());
    let addresses: Vec<IpAddr> = addresses.map(|ip| ip.address.ip()).collect();
    let mismatches = host_ports::mismatches(check, &addresses)?;
    Ok(mismatches.into_iter().map(PodDifference::HostPort).collect())
}

/// The VLANs of the port, if it is there.
fn vlan_differences(check: &Check, found: &FoundPod) -> Result<Vec<PodDifference>, CniError> {
    let (Some(bridge), Some(host)) = (&found.bridge, &found.host) else { return Ok(Vec::new()) };
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket")?;
    vlans::differences(&rtnl, &check.conf, bridge, host)
}

/// Says if the guard of the port is not as ADD made it, or if what it sends to the host does not come there.
fn guard_difference(
    check: &Check,
    wanted: &PodInterface,
    found: &FoundPod,
    profile: Option<&PortProfile>,
) -> Result<Option<PodDifference>, CniError> {
    let device = &wanted.host_ifname;
    let addresses: Vec<IpAddr> = wanted.addresses.iter().map(|address| address.ip()).collect();
    let Some(host) = &found.host else { return Ok(None) };
    let guard = |mac| Guard::of(&check.conf, device, mac, &addresses, host.mac);
    let Some(guard) = wanted.mac.and_then(guard) else { return Ok(None) };
    let guard = guard.with_profile(profile);
    if !guard::is_there(&guard, host.index)? {
        return Ok(Some(PodDifference::NoGuard(device.clone())));
    }
    let Some((mac, bridge)) = guard.routed_by.zip(found.bridge.as_ref()) else { return Ok(None) };
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket")?;
    let entry = rtnl.bridge_entry(bridge.index, mac).or_internal("look at the MAC of a port")?;
    let is_local = entry.is_some_and(|entry| entry.kind == EntryKind::Local);
    Ok((!is_local).then(|| PodDifference::LostMac(device.clone(), mac)))
}

/// The profile of the pod's port, as the agent keeps it.
fn profile(check: &Check, wanted: &PodInterface) -> Option<PortProfile> {
    check.conf.policy?;
    port_profiles::of_port(&check.conf.data_dir, &wanted.host_ifname)
}

/// Says if what the pod receives is not held to the rate of its profile.
fn limit_difference(
    profile: Option<&PortProfile>,
    found: &FoundPod,
) -> Result<Option<PodDifference>, CniError> {
    let limit = profile.and_then(|it| it.profile.ingress);
    let Some((limit, host)) = limit.zip(found.host.as_ref()) else { return Ok(None) };
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket")?;
    let rate = rtnl.profile_rate(host.index).or_internal("look at the limit of a port")?;
    let wanted = bucket(&limit, host.mtu).rate_bytes;
    let differs = || PodDifference::WrongRate("on the host", host.name.clone(), wanted, rate);
    Ok((rate != Some(wanted)).then(differs))
}

/// Success if there are no differences.
///
/// # Errors
/// Code 103: the first difference; the details list the others.
pub fn outcome(differences: &[PodDifference]) -> Result<(), CniError> {
    let Some((first, rest)) = differences.split_first() else { return Ok(()) };
    let error = CniError::new(code::CHECK_FAILED, first.to_string());
    if rest.is_empty() {
        return Err(error);
    }
    let rest: Vec<String> = rest.iter().map(ToString::to_string).collect();
    Err(error.with_details(rest.join("; ")))
}

/// The attachment that `prevResult` describes.
fn wanted(check: &Check, identity: &LinkIdentity<'_>) -> Result<PodInterface, CniError> {
    let (conf, result, ifname) = (&check.conf, &check.prev_result, &check.attachment.ifname);
    let interface = result.container_interface(ifname.as_str()).ok_or_else(|| {
        CniError::new(code::CHECK_FAILED, format!("prevResult has no interface {ifname}"))
    })?;
    let host_ifname = identity.host_ifname();
    let addresses = result.container_addresses(ifname.as_str());
    let assigned: Vec<Assigned> =
        addresses.map(|ip| Assigned { address: ip.address, gateway: ip.gateway }).collect();
    let route =
        |route| kernel_route(&recalled(route, &conf.routes, &assigned, conf.version), &assigned);
    let mtu = interface.mtu;
    let on_host = on_host(check, &host_ifname);
    Ok(PodInterface {
        host_mac: on_host.and_then(mac),
        host_mtu: on_host.and_then(|interface| interface.mtu),
        host_ifname,
        port: port_flags(conf),
        ifname: ifname.clone(),
        mac: mac(interface),
        mtu,
        addresses: assigned.iter().map(|assigned| assigned.address).collect(),
        routes: result.routes.iter().map(route).collect(),
        defaults: Vec::new(),
        instead: Vec::new(),
        requested: RequestedSettings::of(
            &conf.bandwidth,
            &conf.tuning,
            ifname,
            mtu.unwrap_or_default(),
        ),
    })
}

/// The host interface of that name in `prevResult`.
fn on_host<'a>(check: &'a Check, name: &IfName) -> Option<&'a Interface> {
    check.prev_result.host_interfaces().find(|interface| interface.name == name.as_str())
}

fn mac(interface: &Interface) -> Option<Mac> {
    interface.mac.as_ref()?.parse().ok()
}

/// The interfaces that `prevResult` describes otherwise than ADD answers. Those that other plugins
/// of the chain added are not compared.
fn result_differences(
    check: &Check,
    netns: &NetNs,
    wanted: &PodInterface,
    found: &FoundPod,
) -> Vec<PodDifference> {
    let mut differences = Vec::new();
    let named = [&check.conf.bridge, &wanted.host_ifname].into_iter();
    for name in named.chain(&check.conf.vlans.gateway) {
        if on_host(check, name).is_none() {
            differences.push(PodDifference::NotInResult(name.clone()));
        }
    }
    let previous = on_host(check, &check.conf.bridge).and_then(mac);
    let bridge = found.bridge.as_ref().filter(|bridge| bridge::is_ours(bridge));
    if let (Some(previous), Some(bridge)) = (previous, bridge)
        && bridge.mac != Some(previous)
    {
        let name = bridge.name.clone();
        differences.push(PodDifference::WrongMac("on the host", name, previous, bridge.mac));
    }
    let named = |interface: &&Interface| interface.name == wanted.ifname.as_str();
    let interfaces = check.prev_result.interfaces.iter().filter(named);
    let mut sandboxes = interfaces.filter_map(|interface| interface.sandbox.as_ref());
    if !sandboxes.any(|sandbox| is_same(sandbox, netns, &check.netns.path)) {
        let (ifname, path) = (wanted.ifname.clone(), check.netns.path.clone());
        differences.push(PodDifference::OtherSandbox(ifname, path));
    }
    differences
}

/// `sandbox` is the namespace `netns` at `path`; one that cannot be opened is compared by path.
fn is_same(sandbox: &str, netns: &NetNs, path: &str) -> bool {
    let opened = || NetNs::open(Path::new(sandbox)).and_then(|opened| opened.is(netns));
    sandbox == path || opened().unwrap_or(false)
}

/// The attachment as it is.
fn observe(
    check: &Check,
    netns: &NetNs,
    identity: &LinkIdentity<'_>,
    wanted: &PodInterface,
) -> Result<FoundPod, CniError> {
    let what = "look at the host's interfaces";
    let rtnl = Rtnl::open().or_internal(what)?;
    let host = rtnl.link(&identity.host_ifname()).or_internal(what)?;
    let mut found = FoundPod {
        bridge: bridge::find(&rtnl, &check.conf)?,
        host: host.filter(|host| identity.owns(host.alias.as_deref())),
        ..FoundPod::default()
    };
    let pod = PodState::read(netns, &check.netns.path, &check.attachment.ifname)?;
    found.settings = pod.settings(&wanted.requested, &rtnl, found.host.as_ref())?;
    if let Some(link) = &pod.link {
        let what = "look at the pod's addresses";
        let addresses = pod.rtnl.addresses(Some(link.index)).or_internal(what)?;
        found.addresses = addresses.into_iter().map(|found| found.address).collect();
        found.routes = pod.rtnl.all_routes().or_internal(what)?;
    }
    found.pod = pod.link;
    if let Some(locked) = lock_if_any(&store::open(&check.conf)?)? {
        found.reserved = locked.reserved(identity.container_id, identity.ifname)?;
    }
    Ok(found)
}
