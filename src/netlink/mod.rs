//! rtnetlink(7), connection tracking and WireGuard: links, addresses, routes, neighbours, and their events.

pub mod address;
pub mod bridge_vlan;
pub mod connections;
pub mod conntrack;
pub mod ctnetlink;
pub mod events;
pub mod fdb;
pub mod filter;
pub mod link;
pub mod link_settings;
pub mod neighbour;
pub mod nflog;
pub mod packet;
pub mod port_queue;
pub mod qdisc;
pub mod route;
pub mod rtnl;
pub mod rule;
pub mod shaper;
pub mod vxlan;
pub mod vxlan_info;
pub mod wire;
pub mod wireguard;

mod attributes;
mod dump;
mod error;
mod generic;
mod message;
mod monitor;
mod socket;
mod wireguard_info;

pub use attributes::{AttributeList, Attributes};
pub use error::{NetlinkError, Refused};
pub use message::{Message, Replies, Reply, ReplyState};
pub use monitor::Monitor;
pub use socket::{NetlinkProtocol, NetlinkSocket};
