//! Pure. Tunnels to the hosts that share no segment with this one.
//!
//! One VXLAN device for each family of the outer packets. A pod subnet of another host needs three
//! things on it: a route via an address of that host, the MAC of that address (a neighbour), and the
//! host that frames for that MAC are sent to (a destination).

mod device;
mod entries;
mod peer;

pub use device::{ALIAS, TunnelChange, TunnelDevice, changes, is_marked, removals};
pub use entries::{Entries, EntryChange, FoundEntries, missing, surplus};
pub use peer::{TunnelPeer, device_name, inner_mtu, less_overhead, next_hop, overhead, via};
