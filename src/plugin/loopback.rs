//! The loopback plugin: sets `lo` up in a pod. containerd runs it beside the network's plugin.

use std::ffi::OsString;
use std::io::{Read, Write};

use crate::cni::env::Netns;
use crate::cni::error::{CniError, code};
use crate::cni::request::{Add, Request, Role};
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::net::{Family, IfName, subnet};
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNsError;
use crate::plugin::invocation::{self, CallContext, Streams};
use crate::plugin::{failure, netns};

/// Serves one call of the loopback plugin; see [`crate::plugin::run`].
pub fn run(
    name: &str,
    env: &dyn Fn(&str) -> Option<OsString>,
    stdin: &mut dyn Read,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> i32 {
    let streams = Streams { stdin, stdout, stderr };
    invocation::run(Role::Loopback, name, env, streams, |request, call| match request {
        Request::Add(request) => add(request, call),
        Request::Check(check) => match look(&Pod::enter(&check.netns)?)? {
            lo if lo.up => Ok(()),
            _ => Err(CniError::new(code::CHECK_FAILED, "interface lo is down in the pod")),
        },
        // lo goes with its namespace, and nothing else was made.
        Request::Del(_) | Request::Gc(_) | Request::Status(_) | Request::Version => Ok(()),
    })
}

/// A pod from inside.
struct Pod {
    rtnl: Rtnl,
    path: String,
}

impl Pod {
    fn enter(netns: &Netns) -> Result<Pod, CniError> {
        let refused = |error: NetNsError| CniError::netns(failure::chain(&error));
        let rtnl = netns::open(netns)?.run(Rtnl::open).map_err(refused)?;
        let rtnl = rtnl.map_err(|error| failure::internal("talk to the kernel", &error))?;
        Ok(Pod { rtnl, path: netns.path.clone() })
    }
}

fn add(request: &Add, call: &mut CallContext<'_>) -> Result<(), CniError> {
    let pod = Pod::enter(&request.netns)?;
    let up = LinkChange { up: true, ..LinkChange::default() };
    let failed = |error| failure::internal(&format!("set lo up in {}", pod.path), &error);
    pod.rtnl.apply(&[link::change(LinkRef::Name(&lo()), &up)]).map_err(failed)?;
    let result = match &request.conf.prev_result {
        Some(previous) => previous.clone(),
        None => result(&pod)?,
    };
    call.print(&result.to_json(request.conf.version)?)
}

/// `lo` with the addresses that the kernel gave it.
fn result(pod: &Pod) -> Result<CniResult, CniError> {
    let lo = look(pod)?;
    let failed = |error| failure::internal(&format!("look at lo in {}", pod.path), &error);
    let addresses = pod.rtnl.addresses(Some(lo.index)).map_err(failed)?;
    let mut ips: Vec<IpConfig> = addresses
        .into_iter()
        .map(|found| IpConfig { address: found.address, gateway: None, interface: Some(0) })
        .collect();
    ips.sort_by_key(|ip| (subnet::family(ip.address) == Family::V6, ip.address));
    let interface = Interface {
        name: lo.name.to_string(),
        mac: lo.mac.map(|mac| mac.to_string()),
        sandbox: Some(pod.path.clone()),
        ..Interface::default()
    };
    Ok(CniResult { interfaces: vec![interface], ips, ..CniResult::default() })
}

fn look(pod: &Pod) -> Result<Link, CniError> {
    let failed = |error| failure::internal(&format!("look at lo in {}", pod.path), &error);
    let found = pod.rtnl.link(&lo()).map_err(failed)?;
    found.ok_or_else(|| CniError::internal(format!("there is no lo in {}", pod.path)))
}

fn lo() -> IfName {
    "lo".parse().expect("it is a name")
}
