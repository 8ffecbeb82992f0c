//! Pure. The field's words: address family, subnet, range, MAC address, interface
//! name, host port, moment.

pub mod node_name;

pub mod family;
pub mod hash;
pub mod ifname;
pub mod mac;
pub mod port;
pub mod range;
pub mod subnet;
pub mod time;

pub use family::{Family, PerFamily};
pub use ifname::IfName;
pub use mac::Mac;
pub use port::{HostPort, PortForward, PortMapping, Protocol};
pub use range::AddressRange;
