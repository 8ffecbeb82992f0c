//! Pure. The CNI protocol as values.
//!
//! ```text
//! variables ─▶ env::Environment ─┐
//!                                ├─▶ request::Request ─▶ (plugin) ─▶ result::CniResult ─▶ stdout
//! stdin ─────▶ config::NetConf ──┘                                   error::CniError
//! ```

pub mod args;
pub mod attachment;
pub mod bandwidth;
pub mod config;
pub mod dns;
pub mod env;
pub mod error;
mod json;
pub mod name;
pub mod netavark;
pub mod pod_keys;
mod port_mappings;
#[cfg(test)]
mod properties;
pub mod request;
pub mod requested;
pub mod result;
pub mod route;
pub mod sysctl;
pub mod tuning;
pub mod version;
pub mod words;

pub use attachment::Attachment;
pub use bandwidth::{Bandwidth, Limit};
pub use config::{NetConf, RangeConf};
pub use error::CniError;
pub use json::FieldError;
pub use name::Name;
pub use request::Request;
pub use result::CniResult;
pub use route::CniRoute;
pub use sysctl::{Sysctl, SysctlKey};
pub use tuning::Tuning;
pub use version::Version;
