//! Pure. A pod's attachment: what it should be, and what differs.
//!
//! ADD creates what [`PodInterface`] says; CHECK compares it with what is found: [`differences`] must
//! be none.

mod bridge_port;
mod differences;
mod identity;
mod interface;
mod port_vlans;
mod requested;
mod routes;

pub use bridge_port::{BridgePort, port_flags};
pub use differences::{FoundPod, PodDifference, differences, settings_differences};
pub use identity::{LinkIdentity, MARK, first_name, is_of_network, pod_or_container};
pub use interface::{Assigned, PodInterface};
pub use port_vlans::{ShownVlans, VlanChange, changes as vlan_changes, wanted as wanted_vlans};
pub use requested::{FoundSettings, RequestedSettings};
pub use routes::{PodRoutes, kernel_route, paths, recalled, routes};
