//! Observe and apply: the kernel and the file system.

pub mod address;
pub mod beat;
pub mod connections;
pub mod conntrack;
pub mod echo;
pub mod events;
pub mod fdb;
pub mod files;
pub mod forward;
pub mod identity;
pub mod link;
pub mod neighbour;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod process;
pub mod qdisc;
pub mod resolver;
pub mod route;
pub mod rtnl;
pub mod space;
pub mod sysctl;
pub mod tuning;
pub mod vxlan;
pub mod wait;
mod wire;
pub mod xtables_lock;
