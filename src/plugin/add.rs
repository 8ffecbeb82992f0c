//! ADD: plugs a pod into the bridge.

use std::net::IpAddr;
use std::time::Duration;

use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::cni::request::Add;
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::ipam::{RangeSet, Reservation, Store, StoreEntry};
use crate::net::{IfName, Mac};
use crate::netlink::link::{self, Link, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::plan::pod::{
    Assigned, BridgePort, LinkIdentity, PodInterface, RequestedSettings, Routes, kernel_route,
    routes,
};
use crate::plugin::attach::{self, Site};
use crate::plugin::host_ports::Ports;
use crate::plugin::invocation::CallContext;
use crate::plugin::undo_stack::Done;
use crate::plugin::{
    bridge, claim, conntrack, failure, host_ports, identity, masquerade, netns, port, sysctls,
};

/// The pod's interface, third in every result.
const POD_INTERFACE: usize = 2;

/// Attaches the pod and prints the result. Whatever fails, the pod has nothing of it afterwards.
///
/// # Errors
/// Every code of [`crate::cni::error::code`] but those of the other verbs.
pub fn add(add: &Add, call: &mut CallContext<'_>) -> Result<(), CniError> {
    let rtnl = Rtnl::open().map_err(|error| failure::internal("talk to the kernel", &error))?;
    let store = claim::store(&add.conf)?;
    let ground = Ground::observe(add, &rtnl)?;
    let reservation = ground.reserve(add, &store, call.since_1970)?;
    let assigned = claim::assigned(&reservation, &ground.sets, add);
    let mut plan = Plan::new(add, &ground, assigned);
    let entry = reservation.entry().clone();
    let addresses = entry.addresses.clone();
    let mut done = Done::default();
    done.hold(reservation);
    done.hold(Ports::of(&store, &entry));
    let attached =
        conntrack::without_former(&addresses, || attach::attach(&plan.site, &plan.wanted))?;
    plan.told.defaults.retain(|route| !attached.left_out.contains(&route.dst));
    done.hold(attached);
    done.hold(sysctls::write(&ground.netns, &plan.wanted.asked.settings)?);
    host_ports::open(&store, &rtnl, &add.conf, &entry)?;
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    call.line.fact("ips", addresses.join(","));
    let result = plan.result(add).to_json(add.conf.version)?;
    call.print(&result)?;
    done.keep();
    Ok(())
}

/// The host as it was found, with what all pods share made ready.
struct Ground<'a> {
    rtnl: &'a Rtnl,
    netns: NetNs,
    bridge: Link,
    sets: Vec<RangeSet>,
    identity: LinkIdentity<'a>,
    link_is_there: bool,
}

impl<'a> Ground<'a> {
    fn observe(add: &'a Add, rtnl: &'a Rtnl) -> Result<Ground<'a>, CniError> {
        let conf = &add.conf;
        let sets = claim::sets(conf)?;
        let netns = netns::open(&add.netns)?;
        let bridge = bridge::ready(rtnl, conf, &claim::gateways(&sets))?;
        masquerade::ensure(conf, &sets)?;
        let identity = identity(&conf.name, &add.attachment);
        let link_is_there = link_is_there(rtnl, &identity)?;
        Ok(Ground { rtnl, netns, bridge, sets, identity, link_is_there })
    }

    /// Claims the pod's addresses; what a dead attachment of its name left is removed before.
    fn reserve<'s>(
        &self,
        add: &Add,
        store: &'s Store,
        since_1970: Duration,
    ) -> Result<Reservation<'s>, CniError> {
        let bury = |former: &StoreEntry| {
            host_ports::close(store, &[former])?;
            remove_former(self.rtnl, &self.identity, self.bridge.index, &former.addresses)
        };
        claim::reserve(store, add, &self.sets, since_1970, self.link_is_there, bury)
    }
}

/// What is to be made, and what the runtime is told of it.
struct Plan<'a> {
    site: Site<'a>,
    wanted: PodInterface,
    assigned: Vec<Assigned>,
    told: Routes,
}

impl<'a> Plan<'a> {
    fn new(add: &'a Add, ground: &'a Ground<'a>, assigned: Vec<Assigned>) -> Plan<'a> {
        let (conf, identity) = (&add.conf, &ground.identity);
        let told = routes(&conf.routes, &assigned, conf.is_default_gateway);
        let mac = add.requested.mac.unwrap_or_else(|| own_mac(&assigned, identity));
        let mtu = conf.tuning.mtu.unwrap_or(ground.bridge.mtu);
        let route = |route| kernel_route(route, &assigned);
        let wanted = PodInterface {
            host_ifname: identity.host_ifname(),
            host_mac: Some(identity.host_mac()),
            port: port(conf),
            ifname: add.attachment.ifname.clone(),
            mac: Some(mac),
            addresses: assigned.iter().map(|assigned| assigned.address).collect(),
            routes: told.configured.iter().map(route).collect(),
            defaults: told.defaults.iter().map(route).collect(),
            asked: RequestedSettings::of(
                &conf.bandwidth,
                &conf.tuning,
                &add.attachment.ifname,
                mtu,
            ),
        };
        let site = Site {
            rtnl: ground.rtnl,
            bridge: &ground.bridge,
            netns: &ground.netns,
            netns_path: &add.netns.path,
            host_mac: identity.host_mac(),
            mac,
            mtu,
            alias: identity
                .alias_of_port(&BridgePort::new(wanted.port, mac), add.args.pod().as_deref()),
            is_gateway: conf.is_gateway,
        };
        Plan { site, wanted, assigned, told }
    }

    /// What the runtime is told.
    fn result(&self, add: &Add) -> CniResult {
        let (site, wanted) = (&self.site, &self.wanted);
        let interface = |name: &IfName, mac: Option<Mac>, mtu, sandbox: Option<&str>| Interface {
            name: name.to_string(),
            mac: mac.map(|mac| mac.to_string()),
            mtu: Some(mtu),
            sandbox: sandbox.map(str::to_owned),
            ..Interface::default()
        };
        let ip = |assigned: &Assigned| IpConfig {
            address: assigned.address,
            gateway: assigned.gateway,
            interface: Some(POD_INTERFACE),
        };
        CniResult {
            interfaces: vec![
                interface(&site.bridge.name, site.bridge.mac, site.bridge.mtu, None),
                interface(&wanted.host_ifname, wanted.host_mac, site.mtu, None),
                interface(&wanted.ifname, wanted.mac, site.mtu, Some(&add.netns.path)),
            ],
            ips: self.assigned.iter().map(ip).collect(),
            routes: [&self.told.configured[..], &self.told.defaults].concat(),
            dns: add.conf.dns.clone(),
        }
    }
}

/// The host's end of the attachment exists already.
fn link_is_there(rtnl: &Rtnl, identity: &LinkIdentity<'_>) -> Result<bool, CniError> {
    let name = identity.host_ifname();
    let found = rtnl.link(&name);
    let found = found.map_err(|error| failure::internal(&format!("look at {name}"), &error))?;
    match found {
        None => Ok(false),
        Some(link) if identity.owns(link.alias.as_deref()) => Ok(true),
        Some(link) => Err(CniError::internal(format!(
            "the interface name {name}, which stands for this container, is taken by {}; remove or \
             rename that interface",
            link.alias
                .map_or("an interface of somebody else".to_owned(), |alias| format!("{alias:?}"))
        ))),
    }
}

/// Removes what is left of a dead attachment that had these addresses.
fn remove_former(
    rtnl: &Rtnl,
    identity: &LinkIdentity<'_>,
    bridge: u32,
    addresses: &[IpAddr],
) -> Result<(), CniError> {
    let name = identity.host_ifname();
    let mut messages = vec![link::delete(LinkRef::Name(&name)).tolerating(Errno::ENODEV)];
    messages.extend(attach::forget(bridge, addresses));
    let failed = |error| failure::internal(&format!("remove the dead interface {name}"), &error);
    rtnl.apply(&messages).map_err(failed)
}

/// The MAC that the pod's address names: whoever inherits the address inherits the MAC.
fn own_mac(assigned: &[Assigned], identity: &LinkIdentity<'_>) -> Mac {
    let first = assigned.first().map(|assigned| Mac::of_address(assigned.address.ip()));
    first.unwrap_or_else(|| identity.pod_mac())
}
