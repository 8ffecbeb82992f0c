//! Pure. The field's words: address family, subnet, range, MAC address, interface
//! name.

pub mod family;
pub mod hash;
pub mod ifname;
pub mod mac;
pub mod range;
pub mod subnet;

pub use family::{Family, PerFamily};
pub use ifname::IfName;
pub use mac::Mac;
pub use range::AddressRange;
