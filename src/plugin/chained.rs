//! humanz behind another plugin of a chain: what is asked for is applied to the interface that the
//! other one made, and its result is handed on with what has changed.
//!
//! A configuration with addresses to give makes the interface itself; one without any stands behind
//! somebody. Limits and settings go with the interface and its namespace and leave nothing for DEL
//! or GC. Host ports need an owner: for them alone the pod's addresses are written into the store.

use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::cni::CniResult;
use crate::cni::error::CniError;
use crate::cni::request::{Add, Check};
use crate::cni::result::Interface;
use crate::ipam::{Store, StoreEntry};
use crate::net::IfName;
use crate::netlink::Message;
use crate::netlink::link::Link;
use crate::netlink::link_settings::{self, LinkSettings};
use crate::netlink::qdisc::{self, TokenBucket};
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::{PodDifference, RequestedSettings};
use crate::plugin::host_ports::{self, Ports};
use crate::plugin::invocation::CallContext;
use crate::plugin::pod_state::Inside;
use crate::plugin::undo_stack::{Done, Guard};
use crate::plugin::{check, claim, failure, identity, netns, sysctls};

/// Applies what is asked for and prints `previous` with what has changed. Whatever fails, the
/// interface is as it was.
///
/// # Errors
/// Code 7: no interface to work on, or one whose host's end is needed and unknown. Code 104:
/// somebody has a port. Codes 8, 11, 101, 5, 999.
pub fn add(add: &Add, previous: &CniResult, call: &mut CallContext<'_>) -> Result<(), CniError> {
    let (conf, ifname) = (&add.conf, &add.attachment.ifname);
    let host = Rtnl::open().map_err(|error| failure::internal("talk to the kernel", &error))?;
    let netns = netns::open(&add.netns)?;
    let pod = Inside::look(&netns, &add.netns.path, ifname)?;
    let link = interface(&pod, previous, ifname)?;
    let mtu = conf.tuning.mtu.unwrap_or(link.mtu);
    let asked = RequestedSettings::of(&conf.bandwidth, &conf.tuning, ifname, mtu);
    let tune = LinkSettings { mac: add.requested.mac, mtu: conf.tuning.mtu, ..asked.tune };
    let host_end = host_end(&host, link, previous)?;
    refuse_without_host_end(add, host_end.as_ref())?;
    let store = claim::store(conf)?;
    let mut done = Done::default();
    done.hold(set(&pod.rtnl, link.index, &tune)?);
    done.hold(limit(&host, host_end.as_ref(), asked.queues.host)?);
    done.hold(limit(&pod.rtnl, Some(link), asked.queues.pod)?);
    done.hold(sysctls::write(&netns, &asked.settings)?);
    if let Some(host_end) = host_end.filter(|_| !conf.runtime.port_mappings.is_empty()) {
        let owner = owner(add, previous, bridge(&host, &host_end)?);
        open_ports(&store, &host, &owner, call.since_1970, &mut done)?;
    }
    call.print(&changed(previous, ifname, &tune).to_json(conf.version)?)?;
    done.keep();
    Ok(())
}

/// Compares what is there with what was asked for. The rest is for the plugin that made it.
///
/// # Errors
/// Code 103: the first difference, and how many more there are.
pub fn check(check: &Check) -> Result<(), CniError> {
    let (conf, ifname) = (&check.conf, &check.attachment.ifname);
    let host = Rtnl::open().map_err(|error| failure::internal("talk to the kernel", &error))?;
    let netns = check::netns(check)?;
    let pod = Inside::look(&netns, &check.netns.path, ifname)?;
    let Some(link) = &pod.link else {
        return check::outcome(&[PodDifference::NoLink("in the pod", ifname.clone())]);
    };
    let asked = RequestedSettings::of(&conf.bandwidth, &conf.tuning, ifname, link.mtu);
    let host_end = host_end(&host, link, &check.prev_result)?;
    let found = pod.asked(&asked, &host, host_end.as_ref())?;
    let host_name = host_end.as_ref().map_or(ifname, |host_end| &host_end.name);
    let mut differences = asked.differences(&found, host_name, ifname);
    differences.extend(check::closed_ports(check)?);
    check::outcome(&differences)
}

/// The interface that `check` asks about was made by another plugin: the configuration has no
/// addresses to give, what ADD answered does not tell of a link of ours, and there is none.
pub fn is_chained(check: &Check) -> bool {
    let identity = identity(&check.conf.name, &check.attachment);
    let own = identity.host_ifname();
    let told = || check.prev_result.interfaces.iter().any(|link| link.name == own.as_str());
    // If the kernel cannot be asked, the check itself says so.
    let found = || Rtnl::open().and_then(|host| host.link(&own)).ok().flatten();
    let is_there = || found().is_some_and(|link| identity.owns(link.alias.as_deref()));
    check.conf.ranges.is_empty() && !told() && !is_there()
}

/// The interface to work on: the plugin before says that it made it, and it is there.
fn interface<'a>(
    pod: &'a Inside<'_>,
    previous: &CniResult,
    ifname: &IfName,
) -> Result<&'a Link, CniError> {
    if previous.container_interface(ifname.as_str()).is_none() {
        return Err(CniError::config(format!(
            "prevResult has no interface {ifname} in a container: humanz, without subnet or ranges, \
             stands behind the plugin that makes the interface"
        )));
    }
    pod.link
        .as_ref()
        .ok_or_else(|| CniError::internal(format!("interface {ifname} of prevResult is not there")))
}

/// The other end of the veth, if that is on the host by the word of the plugin that made it: numbers
/// alone could mean a link of a third namespace.
fn host_end(host: &Rtnl, link: &Link, previous: &CniResult) -> Result<Option<Link>, CniError> {
    let peer = link.peer_index.filter(|_| link.kind.as_deref() == Some("veth"));
    let Some(peer) = peer else { return Ok(None) };
    let found = host.link_by_index(peer);
    let found = found.map_err(|error| failure::internal("look at the host's end", &error))?;
    let told = |name: &IfName| {
        let mut links = previous.interfaces.iter().filter(|link| link.sandbox.is_none());
        links.any(|link| link.name == name.as_str())
    };
    Ok(found.filter(|found| found.peer_index == Some(link.index) && told(&found.name)))
}

/// What works on the host's end needs one.
fn refuse_without_host_end(add: &Add, host_end: Option<&Link>) -> Result<(), CniError> {
    let asked = [
        ("ingressRate", add.conf.bandwidth.ingress.is_some()),
        ("portMappings", !add.conf.runtime.port_mappings.is_empty()),
    ];
    match asked.into_iter().find(|(_, given)| *given) {
        Some((key, _)) if host_end.is_none() => Err(CniError::config(format!(
            "{key}: {} has no end on the host: it is no veth of the plugin before",
            add.attachment.ifname
        ))),
        _ => Ok(()),
    }
}

/// What frames from the pod come in by: the bridge that its link is a port of, or the link itself.
fn bridge(host: &Rtnl, host_end: &Link) -> Result<IfName, CniError> {
    let Some(master) = host_end.master else { return Ok(host_end.name.clone()) };
    let found = host.link_by_index(master);
    let found = found.map_err(|error| failure::internal("look at the bridge", &error))?;
    Ok(found.map_or_else(|| host_end.name.clone(), |bridge| bridge.name))
}

/// `add` with the addresses and the bridge that the pod has from the plugin before.
fn owner(add: &Add, previous: &CniResult, bridge: IfName) -> Add {
    let mut owner = add.clone();
    let addresses = previous.container_addresses(add.attachment.ifname.as_str());
    owner.requested.ips = addresses.map(|ip| IpNetwork::from(ip.address.ip())).collect();
    owner.conf.bridge = bridge;
    owner
}

/// Writes the pod's addresses into the store, for the ports to have an owner, and opens them.
fn open_ports<'a>(
    store: &'a Store,
    host: &Rtnl,
    owner: &Add,
    since_1970: Duration,
    done: &mut Done<'a>,
) -> Result<(), CniError> {
    let bury = |former: &StoreEntry| host_ports::close(store, &[former]);
    let reservation = claim::reserve(store, owner, &[], since_1970, false, bury)?;
    let entry = reservation.entry().clone();
    done.hold(reservation);
    done.hold(Ports::of(store, &entry));
    host_ports::open(store, host, &owner.conf, &entry)
}

/// A change of a link that is undone when this is dropped.
struct Changed<'a> {
    rtnl: &'a Rtnl,
    undo: Vec<Message>,
}

impl Guard for Changed<'_> {
    fn keep(mut self: Box<Self>) {
        self.undo.clear();
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.rtnl.apply(&self.undo) {
            log::error!("undo: {error}");
        }
    }
}

/// Sets the link of that number; what it was before comes back on failure.
fn set<'a>(rtnl: &'a Rtnl, index: u32, tune: &LinkSettings) -> Result<Changed<'a>, CniError> {
    if *tune == LinkSettings::default() {
        return Ok(Changed { rtnl, undo: Vec::new() });
    }
    let failed = |error| failure::internal("tune the pod's interface", &error);
    let before = rtnl.link_settings(index).map_err(failed)?.before(tune);
    let changed = Changed { rtnl, undo: vec![link_settings::set(index, &before)] };
    rtnl.apply(&[link_settings::set(index, tune)]).map_err(failed)?;
    Ok(changed)
}

/// Limits an end.
fn limit<'a>(
    rtnl: &'a Rtnl,
    end: Option<&Link>,
    queue: Option<TokenBucket>,
) -> Result<Changed<'a>, CniError> {
    let Some((end, queue)) = end.zip(queue) else {
        return Ok(Changed { rtnl, undo: Vec::new() });
    };
    let changed = Changed { rtnl, undo: vec![qdisc::delete(end.index)] };
    let failed = |error| failure::internal(&format!("limit {}", end.name), &error);
    rtnl.apply(&[qdisc::replace(end.index, &queue)]).map_err(failed)?;
    Ok(changed)
}

/// `previous` with the MAC and the MTU that the interface has now.
fn changed(previous: &CniResult, ifname: &IfName, tune: &LinkSettings) -> CniResult {
    let mut result = previous.clone();
    let own = |link: &&mut Interface| link.name == ifname.as_str() && link.sandbox.is_some();
    if let Some(link) = result.interfaces.iter_mut().find(own) {
        link.mac = tune.mac.map(|mac| mac.to_string()).or(link.mac.take());
        link.mtu = tune.mtu.or(link.mtu);
    }
    result
}
