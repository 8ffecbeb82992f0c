//! Pure. Plans: functions (wanted, found) → changes. No change means all is well.
//!
//! `describe` makes each change a [`Line`] for the log and for the dry run.

pub mod bandwidth;
pub mod bridge;
pub mod bridge_ports;
mod describe;
pub mod encryption;
pub mod firewall;
pub mod guard;
pub mod host_ports;
pub mod line;
pub mod local_macs;
pub mod ownership;
pub mod peer_routes;
pub mod pod;
pub mod policy_table;
pub mod port_queues;
pub mod profiles;
pub mod routes;
pub mod tunnel;

pub use line::{Describe, Line, Sign};
