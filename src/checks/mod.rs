//! Pure. What is wrong, and where packets are lost.

pub mod encryption;
pub mod explain;
pub mod forward;
pub mod host_checks;
pub mod interface;
pub mod left_chains;
pub mod limits;
pub mod network_addresses;
pub mod pod_keys;
pub mod probe;
pub mod redact;
pub mod routing;
pub mod service_manager;
