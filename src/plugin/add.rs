//! ADD: attaches a pod to the bridge.

use std::net::IpAddr;
use std::time::Duration;

use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::cni::pod_keys;
use crate::cni::request::Add;
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::cni::words::Words;
use crate::inspect::holders::Segment;
use crate::inspect::port_profiles;
use crate::ipam::{RangeSet, Store, StoreEntry};
use crate::net::{IfName, Mac};
use crate::netlink::link::{self, Link, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::plan::guard::Guard;
use crate::plan::pod::{
    Assigned, BridgePort, LinkIdentity, PodInterface, PodRoutes, RequestedSettings, kernel_route,
    port_flags, routes,
};
use crate::plugin::attach::{self, AttachContext};
use crate::plugin::claim::FoundHost;
use crate::plugin::failure::OrInternal;
use crate::plugin::invocation::CallContext;
use crate::plugin::network::{AttachFailure, PlacedAdd, PlacedInterface};
use crate::plugin::undo_stack::UndoStack;
use crate::plugin::{
    bridge, claim, conntrack, del, further, guard, host_ports, masquerade, netns, policy,
    requested_mac, store, sysctl_allowlist, sysctls, vlans,
};

/// Annotations and labels of a pod that are logged.
const UNKNOWN_KEYS: usize = 3;

/// The pod's interface, third in every result.
const POD_INTERFACE: usize = 2;

/// Attaches the pod and prints the result. If anything fails, everything is undone.
///
/// # Errors
/// Every code of [`crate::cni::error::code`] but those of the other verbs.
pub fn add(add: &Add, call: &mut CallContext<'_>) -> Result<(), CniError> {
    sysctl_allowlist::verify(&add.conf.tuning)?;
    warn_of_unknown_keys(&add.words);
    let mut placed = PlacedAdd::of(add)?;
    loop {
        match attach_once(&placed, call) {
            Err(failure) => placed = placed.again(add, failure)?,
            Ok(()) => return Ok(()),
        }
    }
}

/// A later release may know them: they are no reason to refuse the pod.
fn warn_of_unknown_keys(words: &Words) {
    let (annotations, labels) = (words.annotations.keys(), words.labels.keys());
    let found = pod_keys::unknown(annotations.map(String::as_str), labels.map(String::as_str));
    for key in found.take(UNKNOWN_KEYS) {
        log::warn!("{key} has no effect: it is not known; {}", key.hint());
    }
}

/// Attaches every interface of the pod, or none.
fn attach_once(placed: &PlacedAdd<'_>, call: &mut CallContext<'_>) -> Result<(), AttachFailure> {
    let refused = |interface| move |error| AttachFailure { error, interface, withdrawn: false };
    let first = &*placed.interfaces[0].add;
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket").map_err(refused(0))?;
    let store = store::open(&first.conf).map_err(refused(0))?;
    host_ports::close_ended(&store);
    let mut hosts = Vec::new();
    for (place, interface) in placed.interfaces.iter().enumerate() {
        hosts.push(HostContext::observe(&interface.add, &rtnl).map_err(refused(place))?);
    }
    let mut undo = UndoStack::default();
    let (mut result, mut line) = (CniResult::default(), LineFacts::default());
    for (place, (interface, host)) in placed.interfaces.iter().zip(&hosts).enumerate() {
        let mut withdrawn = false;
        let pod = NewInterface { interface, host, store: &store, since_1970: call.since_1970 };
        let attached = pod.attach(&mut undo, &mut line, &mut withdrawn);
        let attached =
            attached.map_err(|error| AttachFailure { error, interface: place, withdrawn });
        result = match placed.interfaces.len() {
            1 => attached?,
            _ => result.and(attached?.with_gateways()),
        };
    }
    line.note(call);
    let printed = result.to_json(first.conf.version).and_then(|result| call.print(&result));
    printed.map_err(refused(0))?;
    undo.commit();
    Ok(())
}

/// What the log says of all interfaces.
#[derive(Default)]
struct LineFacts {
    networks: Vec<String>,
    policies: Vec<String>,
    guards: usize,
    ips: Vec<String>,
}

impl LineFacts {
    fn note(self, call: &mut CallContext<'_>) {
        for (fact, texts) in [("network", self.networks), ("policies", self.policies)] {
            if !texts.is_empty() {
                call.line.fact(fact, texts.join(","));
            }
        }
        if self.guards > 0 {
            call.line.fact("guards restored", self.guards);
        }
        call.line.fact("ips", self.ips.join(","));
    }
}

/// An interface that is about to be attached.
struct NewInterface<'a> {
    interface: &'a PlacedInterface<'a>,
    host: &'a HostContext<'a>,
    store: &'a Store,
    since_1970: Duration,
}

impl<'a> NewInterface<'a> {
    /// Its part of the result. `withdrawn`: the addresses are not this host's any more.
    fn attach(
        &self,
        undo: &mut UndoStack<'a>,
        line: &mut LineFacts,
        withdrawn: &mut bool,
    ) -> Result<CniResult, CniError> {
        let NewInterface { interface, host, store, .. } = *self;
        let add = &*interface.add;
        let entry = self.reserve(undo)?;
        let addresses = &entry.addresses;
        if !interface.is_still_served(addresses) {
            *withdrawn = true;
            return Err(CniError::try_again("the block of the address has just been given back"));
        }
        self.verify_mac(addresses)?;
        line.networks.extend(interface.network.iter().map(|(network, _)| network.to_string()));
        let asked = add.conf.policy.map(|on_agent_down| policy::ask(add, &entry, on_agent_down));
        let asked = asked.transpose()?;
        let mut plan = AddPlan::new(interface, host, claim::assigned(addresses, &host.sets, add));
        if let Some(guard) = &plan.context.guard {
            line.guards += guard::ensure_shared(host.rtnl, guard, &add.conf, store);
        }
        let put_in_force = || {
            let Some(asked) = asked else { return Ok(None) };
            line.policies.push(asked.wait()?);
            // What a former pod was allowed to get may wait there for its MAC.
            let forget = attach::forget_neighbours(host.gateway.index, addresses);
            host.rtnl.apply(&forget).or_internal("drop packets for a former pod")?;
            let profile = port_profiles::of_port(&add.conf.data_dir, &plan.wanted.host_ifname);
            if let (Some(_), Some(guard)) = (&profile, plan.context.guard.clone()) {
                let guard = guard.with_profile(profile.as_ref());
                line.guards += guard::ensure_shared(host.rtnl, &guard, &add.conf, store);
            }
            Ok(profile)
        };
        let attach = || attach::attach(&plan.context, &plan.wanted, put_in_force, undo);
        let attached = match store.take_swept(addresses) {
            true => attach(),
            false => conntrack::without_former(addresses, attach),
        }?;
        plan.routes.leave_out(&attached.left_out);
        sysctls::write(&host.netns, &plan.wanted.requested.sysctls, attached.link, undo)?;
        host_ports::open(store, host.rtnl, &add.conf, &entry)?;
        line.ips.extend(addresses.iter().map(IpAddr::to_string));
        Ok(plan.result(add))
    }

    /// Refuses the MAC that the pod requests if it is another's.
    fn verify_mac(&self, addresses: &[IpAddr]) -> Result<(), CniError> {
        let NewInterface { interface, host, .. } = *self;
        let Some(mac) = interface.add.requested.mac else { return Ok(()) };
        let own = requested_mac::own(addresses, host.identity.pod_mac());
        requested_mac::verify(host.rtnl, &host.bridge, mac, &own)
    }

    fn reserve(&self, undo: &mut UndoStack<'a>) -> Result<StoreEntry, CniError> {
        let NewInterface { interface, host, store, since_1970 } = *self;
        let cleanup_stale = |former: &StoreEntry| {
            host_ports::close_dead(store, former)?;
            let (conf, attachment) = (&interface.add.conf, &interface.add.attachment);
            for del in further::dels_of(conf, attachment, former) {
                del::detach(&del, &mut Vec::new())?;
            }
            host.cleanup_stale(&former.addresses)
        };
        let segment = Segment { bridge: host.bridge.index, gateway: host.gateway.index };
        let bridge = Some((host.rtnl, segment));
        let found = FoundHost { bridge, link_exists: &|| link_exists(host.rtnl, &host.identity) };
        claim::reserve(store, &interface.add, &host.sets, since_1970, &found, cleanup_stale, undo)
    }
}

/// The host as it was found, with everything that its pods share set up.
struct HostContext<'a> {
    rtnl: &'a Rtnl,
    netns: NetNs,
    bridge: Link,
    /// With the gateways' addresses: the bridge, or an interface for the network's VLAN on it.
    gateway: Link,
    sets: Vec<RangeSet>,
    identity: LinkIdentity<'a>,
}

impl<'a> HostContext<'a> {
    fn observe(add: &'a Add, rtnl: &'a Rtnl) -> Result<HostContext<'a>, CniError> {
        let conf = &add.conf;
        let sets = claim::sets(conf)?;
        let netns = netns::open(&add.netns)?;
        let gateways = if conf.is_gateway { claim::gateways(&sets) } else { Vec::new() };
        let of_vlan = conf.vlans.access.is_some();
        let bridge = bridge::ensure(rtnl, conf, if of_vlan { &[] } else { &gateways })?;
        let gateway = vlans::ensure(rtnl, conf, &bridge, &gateways)?;
        masquerade::ensure(conf, &sets)?;
        let identity = LinkIdentity::of(&conf.name, &add.attachment);
        Ok(HostContext { rtnl, netns, bridge, gateway, sets, identity })
    }

    /// Removes what is left of a dead attachment that had these addresses.
    fn cleanup_stale(&self, addresses: &[IpAddr]) -> Result<(), CniError> {
        let name = self.identity.host_ifname();
        let mut messages = vec![link::delete(LinkRef::Name(&name)).tolerating(Errno::ENODEV)];
        messages.extend(attach::forget_neighbours(self.gateway.index, addresses));
        self.rtnl.apply(&messages).or_internal(format_args!("remove the stale interface {name}"))
    }
}

/// The interface to be created, and the result.
struct AddPlan<'a> {
    context: AttachContext<'a>,
    wanted: PodInterface,
    assigned: Vec<Assigned>,
    routes: PodRoutes,
}

impl<'a> AddPlan<'a> {
    fn new(
        interface: &'a PlacedInterface<'a>,
        host: &'a HostContext<'a>,
        assigned: Vec<Assigned>,
    ) -> AddPlan<'a> {
        let add = &*interface.add;
        let (conf, identity) = (&add.conf, &host.identity);
        let mut routes = routes(&conf.routes, &assigned, conf.is_default_gateway);
        routes.instead = interface.routes_to_network();
        let mac = add.requested.mac.unwrap_or_else(|| own_mac(&assigned, identity));
        let mtu = conf.tuning.mtu.unwrap_or(host.bridge.mtu);
        let route = |route| kernel_route(route, &assigned);
        let ifname = &add.attachment.ifname;
        let wanted = PodInterface {
            host_ifname: identity.host_ifname(),
            host_mac: Some(identity.host_mac()),
            host_mtu: Some(mtu),
            port: port_flags(conf),
            ifname: ifname.clone(),
            mac: Some(mac),
            mtu: Some(mtu),
            addresses: assigned.iter().map(|assigned| assigned.address).collect(),
            routes: routes.configured.iter().map(route).collect(),
            defaults: routes.defaults.iter().map(route).collect(),
            instead: routes.instead.iter().map(route).collect(),
            requested: RequestedSettings::of(&conf.bandwidth, &conf.tuning, ifname, mtu),
        };
        let bridge_port = BridgePort::new(wanted.port, mac);
        let addresses: Vec<IpAddr> = assigned.iter().map(|one| one.address.ip()).collect();
        let context = AttachContext {
            rtnl: host.rtnl,
            bridge: &host.bridge,
            gateway: &host.gateway,
            conf,
            netns: &host.netns,
            netns_path: &add.netns.path,
            host_mac: identity.host_mac(),
            mac,
            mtu,
            alias: identity.alias_of_port(&bridge_port, add.args.pod().as_deref()),
            is_gateway: conf.is_gateway,
            guard: Guard::of(conf, &wanted.host_ifname, mac, &addresses, wanted.host_mac),
        };
        AddPlan { context, wanted, assigned, routes }
    }

    fn result(&self, add: &Add) -> CniResult {
        let (context, wanted) = (&self.context, &self.wanted);
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
        let mut interfaces = vec![
            interface(&context.bridge.name, context.bridge.mac, context.bridge.mtu, None),
            interface(&wanted.host_ifname, wanted.host_mac, context.mtu, None),
            interface(&wanted.ifname, wanted.mac, context.mtu, Some(&add.netns.path)),
        ];
        if context.gateway.index != context.bridge.index {
            let gateway = context.gateway;
            interfaces.push(interface(&gateway.name, gateway.mac, gateway.mtu, None));
        }
        CniResult {
            interfaces,
            ips: self.assigned.iter().map(ip).collect(),
            routes: [&self.routes.configured[..], &self.routes.defaults].concat(),
            dns: add.conf.dns.clone(),
        }
    }
}

fn link_exists(rtnl: &Rtnl, identity: &LinkIdentity<'_>) -> Result<bool, CniError> {
    let name = identity.host_ifname();
    match rtnl.link(&name).or_internal(format_args!("look at {name}"))? {
        None => Ok(false),
        Some(link) if identity.owns(link.alias.as_deref()) => Ok(true),
        Some(link) => Err(CniError::internal(format!(
            "host interface name {name} for this container is already used by {}; remove or rename \
             that interface",
            link.alias.map_or("a foreign interface".to_owned(), |alias| format!("{alias:?}"))
        ))),
    }
}

/// The MAC derived from the pod's first address: a pod that gets the address later gets the MAC.
fn own_mac(assigned: &[Assigned], identity: &LinkIdentity<'_>) -> Mac {
    let first = assigned.first().map(|assigned| Mac::of_address(assigned.address.ip()));
    first.unwrap_or_else(|| identity.pod_mac())
}
