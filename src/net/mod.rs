//! Pure. The field's words: address family, subnet, range, MAC address, interface
//! name, host port, moment, key, object, problem.

pub mod failure_reason;
pub mod family;
pub mod gather;
pub mod hash;
pub mod ifname;
pub mod mac;
pub mod nearest;
pub mod node_name;
pub mod object;
pub mod port;
pub mod preshared_key;
pub mod problem;
pub mod range;
pub mod shell;
pub mod shown;
pub mod subnet;
pub mod text;
pub mod time;
pub mod wireguard_key;

pub use failure_reason::{FailureReason, Hint};
pub use family::{Family, PerFamily};
pub use ifname::IfName;
pub use mac::Mac;
pub use object::Object;
pub use port::{HostPort, PortForward, PortMapping, Protocol, ReservedPort};
pub use preshared_key::{PresharedKey, PresharedSecret};
pub use problem::{Problem, ProblemKind, Severity};
pub use range::AddressRange;
pub use wireguard_key::{KeyError, PrivateKey, PublicKey};
