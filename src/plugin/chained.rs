//! humanz after another plugin of a chain: the requested settings are applied to the interface that
//! the previous plugin created, and its result is passed on with the changes.
//!
//! A configuration with ranges creates the interface itself; one without ranges follows another
//! plugin. Limits and settings disappear with the interface and its namespace and leave nothing for
//! DEL or GC. Host ports need an owner: only for them the pod's addresses are written to the store.

use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::cni::CniResult;
use crate::cni::error::CniError;
use crate::cni::request::{Add, Check};
use crate::cni::result::Interface;
use crate::ipam::{Store, StoreEntry};
use crate::net::IfName;
use crate::netlink::link::Link;
use crate::netlink::link_settings::{self, LinkSettings};
use crate::netlink::qdisc::{self, TokenBucket};
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::{LinkIdentity, PodDifference, RequestedSettings, settings_differences};
use crate::plugin::claim::FoundHost;
use crate::plugin::failure::OrInternal;
use crate::plugin::invocation::CallContext;
use crate::plugin::pod_state::PodState;
use crate::plugin::undo_stack::{OwnLink, UndoStack};
use crate::plugin::{check, claim, host_ports, netns, store, sysctl_allowlist, sysctls};

/// Applies the requested settings and prints `previous` with the changes. If anything fails,
/// everything is undone.
///
/// # Errors
/// Code 7: no interface, or its host end is needed and unknown. Code 104: a port is taken. Codes 8,
/// 11, 101, 5, 999.
pub fn add(add: &Add, previous: &CniResult, call: &mut CallContext<'_>) -> Result<(), CniError> {
    let (conf, ifname) = (&add.conf, &add.attachment.ifname);
    sysctl_allowlist::verify(&conf.tuning)?;
    let host = Rtnl::open().or_internal("open rtnetlink socket")?;
    let netns = netns::open(&add.netns)?;
    let pod = PodState::read(&netns, &add.netns.path, ifname)?;
    let link = interface(&pod, previous, ifname)?;
    let mtu = conf.tuning.mtu.unwrap_or(link.mtu);
    let requested = RequestedSettings::of(&conf.bandwidth, &conf.tuning, ifname, mtu);
    let tune = LinkSettings { mac: add.requested.mac, mtu: conf.tuning.mtu, ..requested.tune };
    let host_end = host_end(&host, link, previous)?;
    refuse_without_host_end(add, host_end.as_ref())?;
    host_ports::refuse_reserved(conf)?;
    let store = store::open(conf)?;
    host_ports::close_ended(&store);
    let mut undo = UndoStack::default();
    tune_link(&pod.rtnl, link.index, &tune, &mut undo)?;
    limit(&host, host_end.as_ref(), requested.queues.host, &mut undo)?;
    limit(&pod.rtnl, Some(link), requested.queues.pod, &mut undo)?;
    let own = OwnLink { rtnl: &pod.rtnl, index: link.index };
    sysctls::write(&netns, &requested.sysctls, own, &mut undo)?;
    if let Some(host_end) = host_end.filter(|_| !conf.runtime.port_mappings.is_empty()) {
        let owner = owner(add, previous, bridge(&host, &host_end)?);
        open_ports(&store, &host, &owner, call.since_1970, &mut undo)?;
    }
    call.print(&changed(previous, ifname, &tune).to_json(conf.version)?)?;
    undo.commit();
    Ok(())
}

/// Compares the requested settings with the present ones. The rest is for the previous plugin.
///
/// # Errors
/// Code 103: the first difference; the details list the others.
pub fn check(check: &Check) -> Result<(), CniError> {
    let (conf, ifname) = (&check.conf, &check.attachment.ifname);
    let host = Rtnl::open().or_internal("open rtnetlink socket")?;
    let netns = netns::open_any(&check.netns)?;
    let pod = PodState::read(&netns, &check.netns.path, ifname)?;
    let Some(link) = &pod.link else {
        return check::outcome(&[PodDifference::NoLink("in the pod", ifname.clone())]);
    };
    let requested = RequestedSettings::of(&conf.bandwidth, &conf.tuning, ifname, link.mtu);
    let host_end = host_end(&host, link, &check.prev_result)?;
    let found = pod.settings(&requested, &host, host_end.as_ref())?;
    let host_name = host_end.as_ref().map_or(ifname, |host_end| &host_end.name);
    let mut differences = settings_differences(&requested, &found, host_name, ifname);
    differences.extend(check::closed_ports(check)?);
    check::outcome(&differences)
}

/// Another plugin created the interface: the configuration has no ranges, and `prevResult` has not its
/// bridge (humanz comes behind itself on another one), or no link of ours, and there is none.
pub fn is_chained(check: &Check) -> bool {
    let identity = LinkIdentity::of(&check.conf.name, &check.attachment);
    let own = identity.host_ifname();
    let has =
        |name: &IfName| check.prev_result.host_interfaces().any(|it| it.name == name.as_str());
    // If the kernel refuses an answer, the check itself fails.
    let found = || Rtnl::open().and_then(|host| host.link(&own)).ok().flatten();
    let exists = || found().is_some_and(|link| identity.owns(link.alias.as_deref()));
    check.conf.ranges.is_empty() && (!has(&check.conf.bridge) || !(has(&own) || exists()))
}

/// The interface to work on: in the result of the previous plugin, and in the pod.
fn interface<'a>(
    pod: &'a PodState<'_>,
    previous: &CniResult,
    ifname: &IfName,
) -> Result<&'a Link, CniError> {
    if previous.container_interface(ifname.as_str()).is_none() {
        return Err(CniError::config(format!(
            "prevResult has no interface {ifname} in a container: without subnet or ranges, humanz \
             must come after the plugin that creates the interface"
        )));
    }
    pod.link.as_ref().ok_or_else(|| {
        CniError::internal(format!("interface {ifname} of prevResult does not exist"))
    })
}

/// The other end of the veth, if `previous` has it on the host: the index alone could be that of a
/// link in a third namespace.
fn host_end(host: &Rtnl, link: &Link, previous: &CniResult) -> Result<Option<Link>, CniError> {
    let peer = link.peer_index.filter(|_| link.kind.as_deref() == Some("veth"));
    let Some(peer) = peer else { return Ok(None) };
    let found = host.link_by_index(peer).or_internal("look at the host's end")?;
    let in_result = |name: &IfName| previous.host_interfaces().any(|it| it.name == name.as_str());
    Ok(found.filter(|found| found.peer_index == Some(link.index) && in_result(&found.name)))
}

/// Refuses settings of the host's end where there is none.
fn refuse_without_host_end(add: &Add, host_end: Option<&Link>) -> Result<(), CniError> {
    let requested = [
        ("ingressRate", add.conf.bandwidth.ingress.is_some()),
        ("portMappings", !add.conf.runtime.port_mappings.is_empty()),
    ];
    match requested.into_iter().find(|(_, given)| *given) {
        Some((key, _)) if host_end.is_none() => Err(CniError::config(format!(
            "{key}: {} has no end on the host: it is not a veth of the previous plugin",
            add.attachment.ifname
        ))),
        _ => Ok(()),
    }
}

/// The interface that the pod's frames arrive on: the bridge of its link, or the link itself.
fn bridge(host: &Rtnl, host_end: &Link) -> Result<IfName, CniError> {
    let Some(master) = host_end.master else { return Ok(host_end.name.clone()) };
    let found = host.link_by_index(master).or_internal("look at the bridge")?;
    Ok(found.map_or_else(|| host_end.name.clone(), |bridge| bridge.name))
}

/// `add` with the addresses and the bridge that the previous plugin gave the pod.
fn owner(add: &Add, previous: &CniResult, bridge: IfName) -> Add {
    let mut owner = add.clone();
    let addresses = previous.container_addresses(add.attachment.ifname.as_str());
    owner.requested.ips = addresses.map(|ip| IpNetwork::from(ip.address.ip())).collect();
    owner.conf.bridge = bridge;
    owner
}

/// Writes the pod's addresses to the store, as the owner of the ports, and opens them.
fn open_ports<'a>(
    store: &'a Store,
    host: &Rtnl,
    owner: &Add,
    since_1970: Duration,
    undo: &mut UndoStack<'a>,
) -> Result<(), CniError> {
    let cleanup_stale = |former: &StoreEntry| host_ports::close_dead(store, former);
    // The pod has its addresses already.
    let found = FoundHost { bridge: None, link_exists: &|| Ok(false) };
    let entry = claim::reserve(store, owner, &[], since_1970, &found, cleanup_stale, undo)?;
    host_ports::open(store, host, &owner.conf, &entry)
}

/// Changes the settings of the link with that index.
fn tune_link<'a>(
    rtnl: &'a Rtnl,
    index: u32,
    tune: &LinkSettings,
    undo: &mut UndoStack<'a>,
) -> Result<(), CniError> {
    if *tune == LinkSettings::default() {
        return Ok(());
    }
    let what = "tune the pod's interface";
    let former = rtnl.link_settings(index).or_internal(what)?.before(tune);
    undo.push(move || rtnl.apply(&[link_settings::set(index, &former)]));
    rtnl.apply(&[link_settings::set(index, tune)]).or_internal(what)
}

/// Limits the bandwidth of one end.
fn limit<'a>(
    rtnl: &'a Rtnl,
    end: Option<&Link>,
    queue: Option<TokenBucket>,
    undo: &mut UndoStack<'a>,
) -> Result<(), CniError> {
    let Some((end, queue)) = end.zip(queue) else { return Ok(()) };
    let index = end.index;
    undo.push(move || rtnl.apply(&[qdisc::delete(index)]));
    let set = rtnl.apply(&[qdisc::replace(index, &queue)]);
    set.or_internal(format_args!("limit {}", end.name))
}

/// `previous` with the interface's new MAC and MTU.
fn changed(previous: &CniResult, ifname: &IfName, tune: &LinkSettings) -> CniResult {
    let mut result = previous.clone();
    let own = |link: &&mut Interface| link.name == ifname.as_str() && link.sandbox.is_some();
    if let Some(link) = result.interfaces.iter_mut().find(own) {
        link.mac = tune.mac.map(|mac| mac.to_string()).or(link.mac.take());
        link.mtu = tune.mtu.or(link.mtu);
    }
    result
}
