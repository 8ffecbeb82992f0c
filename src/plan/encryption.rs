//! Pure. Encryption between hosts by WireGuard.
//!
//! One device for both families. What is routed to it goes to the host that is allowed to send from the
//! packet's destination, and what comes out of it came from the host that is allowed to send from the packet's
//! source: the allowed networks of a host are its pod subnets.

mod device;
mod keys_in_use;
mod peer;
mod rotation;

pub use device::{EncryptionChange, EncryptionDevice, FoundEncryption, changes, removals};
pub use keys_in_use::with_keys_in_use;
pub use peer::{
    EncryptedPeer, PeerChange, Preshared, device_name, device_names, inner_mtu, missing_peers,
    next_hop, overhead, surplus_peers,
};
pub use rotation::{
    Blocker, KeyState, Rotation, RotationStep, RotationWatch, Sessions, Stage, is_old, is_pending,
    on_second, problem, uses_second,
};
