//! The kernel and the file system through `netlink`, `nft` and `os`. Every test works in fresh
//! network namespaces, on a thread that ends there; root, or `unshare -rnm`, is all it needs.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

mod address;
mod bridge_entries;
mod events;
mod files;
mod link;
mod netdev;
mod netns;
mod route;
mod vxlan;

use std::net::IpAddr;
use std::thread;

use humanz::net::{IfName, Mac};
use humanz::netlink::NetlinkError;
use humanz::netlink::link::Link;
use humanz::netlink::rtnl::Rtnl;
use humanz::os::netns::NetNs;
use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// Runs `test` in a fresh network namespace.
fn in_namespace<T: Send>(test: impl FnOnce(&Rtnl) -> T + Send) -> T {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("make a network namespace: run the tests with cargo, as root or where user namespaces are allowed");
        test(&Rtnl::open().unwrap())
    };
    thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A namespace that exists as long as the value.
fn namespace() -> NetNs {
    in_namespace(|_| NetNs::current().unwrap())
}

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn bridge(rtnl: &Rtnl, text: &str) -> Link {
    let mac = Mac([0x0a, 0x5a, 0, 0, 0, 1]);
    rtnl.apply(&humanz::netlink::link::add_bridge(&name(text), mac, 1400, "humanz bridge"))
        .unwrap();
    rtnl.link(&name(text)).unwrap().unwrap()
}

fn errno(result: Result<(), NetlinkError>) -> Option<Errno> {
    result.unwrap_err().errno()
}
