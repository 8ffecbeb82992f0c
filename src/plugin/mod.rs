//! The CNI plugin: one process per call, which needs nothing but its configuration.
//!
//! ```text
//! invocation  environment, stdin ─▶ Request ─▶ verb ─▶ stdout, log file, exit code
//! add         observe (bridge, namespace) ─▶ plan (addresses, plan::pod) ─▶ apply: each step is
//!             pushed on the undo stack, and undone on failure
//! chained     the same after another plugin: the requested settings on its interface
//! check       observe ─▶ plan::pod::differences: there must be none
//! del, gc     remove what bears our mark, and go on after a failure
//! netavark    podman 5 has no CNI: its call becomes one of CNI, the reply one of netavark's
//! panic       a bug of humanz: an error object all the same
//! ```
//!
//! Only [`invocation`] and [`panic`] write to stdout.

mod add;
mod attach;
mod bridge;
mod call_log;
mod call_time;
mod chained;
mod check;
mod claim;
mod conntrack;
mod default_routes;
mod del;
mod failure;
mod further;
mod gc;
mod guard;
mod host_ports;
mod invocation;
mod log;
pub mod loopback;
mod masquerade;
pub mod netavark;
mod netns;
mod network;
mod panic;
mod pending;
mod pod_state;
mod policy;
mod release;
mod requested_mac;
mod status;
mod store;
mod sysctl_allowlist;
mod sysctls;
mod undo_stack;
mod vlans;
mod wait_oper_up;

pub use invocation::Streams;
pub use pending::pending;

use std::ffi::OsString;

use crate::cni::request::{Request, Role};

/// Answers a panic of any thread as runtimes read it.
pub fn install_panic_hook() {
    panic::install_hook(failure::answer);
}

/// Serves one call of the pod network's plugin, called by `name`; gives the exit code.
///
/// `env` looks up a variable of the environment.
pub fn run(name: &str, env: &dyn Fn(&str) -> Option<OsString>, streams: Streams<'_>) -> i32 {
    invocation::run(Role::Network, name, env, streams, |request, call| match request {
        Request::Add(add) => call_time::of_add(|| match &add.conf.prev_result {
            Some(previous) => chained::add(add, previous, call),
            None => add::add(add, call),
        }),
        Request::Del(del) => del::del(del, call),
        Request::Check(check) if chained::is_chained(check) => chained::check(check),
        Request::Check(check) => check::check(check, call),
        Request::Gc(gc) => gc::gc(gc, call),
        Request::Status(conf) => status::status(conf),
        Request::Version => Ok(()),
    })
}
