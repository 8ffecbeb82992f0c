//! Pure. Encryption between hosts by WireGuard.
//!
//! One device for both families. What is routed to it goes to the host that is allowed to send from the
//! packet's destination, and what comes out of it came from the host that is allowed to send from the packet's
//! source: the allowed networks of a host are its pod subnets.

mod device;
mod peer;

pub use device::{EncryptionChange, EncryptionDevice, FoundEncryption, changes, removals};
pub use peer::{
    EncryptedPeer, PeerChange, device_name, inner_mtu, missing_peers, next_hop, overhead,
    surplus_peers,
};
