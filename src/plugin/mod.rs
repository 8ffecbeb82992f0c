//! The CNI plugin: one process for each call, which needs nothing but its configuration.
//!
//! ```text
//! frame     environment, stdin ─▶ Request ─▶ verb ─▶ stdout, log file, exit code
//! add       observe (bridge, namespace) ─▶ plan (addresses, plan::pod) ─▶ apply: each step is held
//!           in `done`, and undone on failure
//! chained   the same behind another plugin: what is asked for, on the interface that is there
//! check     observe ─▶ plan::pod::differences: nothing may be left to do
//! del, gc   remove what bears our mark, and go on after a failure
//! fault     humanz itself is wrong: an error object all the same
//! ```
//!
//! Only [`frame`] and [`fault`] write to stdout.

mod add;
mod attach;
mod bridge;
mod chained;
mod check;
mod claim;
mod conntrack;
mod del;
mod failure;
mod fault;
mod gc;
mod host_ports;
mod invocation;
mod log;
pub mod loopback;
mod masquerade;
mod netns;
mod pod_state;
mod status;
mod sysctls;
mod undo_stack;
mod wait_oper_up;

pub use fault::tell_faults;

use std::ffi::OsString;
use std::io::{Read, Write};

use crate::cni::attachment::Attachment;
use crate::cni::config::NetConf;
use crate::cni::name::Name;
use crate::cni::request::{Request, Role};
use crate::netlink::link::PortFlags;
use crate::plan::pod::LinkIdentity;

/// Serves one call of the pod network's plugin, called by `name`; gives the exit code.
///
/// `env` looks up a variable of the environment. The reply goes to `stdout`, and nothing else.
pub fn run(
    name: &str,
    env: &dyn Fn(&str) -> Option<OsString>,
    stdin: &mut dyn Read,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> i32 {
    let streams = invocation::Streams { stdin, stdout, stderr };
    invocation::run(Role::Network, name, env, streams, |request, call| match request {
        Request::Add(add) => match &add.conf.prev_result {
            Some(previous) => chained::add(add, previous, call),
            None => add::add(add, call),
        },
        Request::Del(del) => del::del(del, call),
        Request::Check(check) if chained::is_chained(check) => chained::check(check),
        Request::Check(check) => check::check(check),
        Request::Gc(gc) => gc::gc(gc, call),
        Request::Status(conf) => status::status(conf),
        Request::Version => Ok(()),
    })
}

/// What a pod's link is as a port of the bridge.
fn port(conf: &NetConf) -> PortFlags {
    let (hairpin, isolated) = (conf.hairpin_mode, conf.port_isolation);
    PortFlags { hairpin, isolated, locked: conf.mac_spoof_check }
}

/// Whose link `attachment`'s is.
fn identity<'a>(network: &'a Name, attachment: &'a Attachment) -> LinkIdentity<'a> {
    LinkIdentity {
        network: network.as_str(),
        container_id: attachment.container_id.as_str(),
        ifname: attachment.ifname.as_str(),
    }
}
