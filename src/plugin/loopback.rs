//! The loopback plugin: sets `lo` up in a pod. containerd runs it beside the network's plugin.

use std::ffi::OsString;

use crate::cni::env::Netns;
use crate::cni::error::{CniError, code};
use crate::cni::request::{Add, Request, Role};
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::net::{Family, IfName, subnet};
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::plugin::failure::{self, OrInternal};
use crate::plugin::invocation::{self, CallContext, Streams};
use crate::plugin::netns;

/// Serves one call of the loopback plugin; see [`crate::plugin::run`].
pub fn run(name: &str, env: &dyn Fn(&str) -> Option<OsString>, streams: Streams<'_>) -> i32 {
    invocation::run(Role::Loopback, name, env, streams, |request, call| match request {
        Request::Add(request) => add(request, call),
        Request::Check(check) => match LoopbackPod::enter(&check.netns)?.lo()? {
            lo if lo.up => Ok(()),
            _ => Err(CniError::new(code::CHECK_FAILED, "interface lo is down in the pod")),
        },
        // lo disappears with its namespace, and nothing else was created.
        Request::Del(_) | Request::Gc(_) | Request::Status(_) | Request::Version => Ok(()),
    })
}

fn add(request: &Add, call: &mut CallContext<'_>) -> Result<(), CniError> {
    let pod = LoopbackPod::enter(&request.netns)?;
    let up = LinkChange { up: true, ..LinkChange::default() };
    let set = pod.rtnl.apply(&[link::change(LinkRef::Name(&lo()), &up)]);
    set.or_internal(format_args!("set lo up in {}", pod.path))?;
    let result = match &request.conf.prev_result {
        Some(previous) => previous.clone(),
        None => pod.result()?,
    };
    call.print(&result.to_json(request.conf.version)?)
}

struct LoopbackPod {
    /// In the pod's namespace.
    rtnl: Rtnl,
    path: String,
}

impl LoopbackPod {
    fn enter(netns: &Netns) -> Result<LoopbackPod, CniError> {
        let entered = netns::open(netns)?.run(Rtnl::open);
        let rtnl = entered.map_err(|error| CniError::netns(failure::chain(&error)))?;
        let rtnl = rtnl.or_internal("open rtnetlink socket")?;
        Ok(LoopbackPod { rtnl, path: netns.path.clone() })
    }

    fn lo(&self) -> Result<Link, CniError> {
        let found =
            self.rtnl.link(&lo()).or_internal(format_args!("look at lo in {}", self.path))?;
        found.ok_or_else(|| CniError::internal(format!("there is no lo in {}", self.path)))
    }

    /// `lo` with the addresses that the kernel gave it.
    fn result(&self) -> Result<CniResult, CniError> {
        let lo = self.lo()?;
        let addresses = self.rtnl.addresses(Some(lo.index));
        let addresses = addresses.or_internal(format_args!("look at lo in {}", self.path))?;
        let mut ips: Vec<IpConfig> = addresses
            .into_iter()
            .map(|found| IpConfig { address: found.address, gateway: None, interface: Some(0) })
            .collect();
        ips.sort_unstable_by_key(|ip| (subnet::family(ip.address) == Family::V6, ip.address));
        let interface = Interface {
            name: lo.name.to_string(),
            mac: lo.mac.map(|mac| mac.to_string()),
            sandbox: Some(self.path.clone()),
            ..Interface::default()
        };
        Ok(CniResult { interfaces: vec![interface], ips, ..CniResult::default() })
    }
}

fn lo() -> IfName {
    "lo".parse().expect("it is a name")
}
