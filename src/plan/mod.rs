//! Pure. What is wanted against what is found.
//!
//! Every plan is a function (wanted, found) → changes; no change means all is well. Each change
//! describes itself once, as a [`Line`] about an [`Object`](crate::net::Object), for the log and for the dry run.

pub mod peer_routes;

pub mod bandwidth;
pub mod bridge;
pub mod bridge_ports;
pub mod firewall;
pub mod guard;
pub mod host_ports;
pub mod line;
pub mod ownership;
pub mod pod;
pub mod routes;
pub mod tunnel;

pub use line::{Describe, Line, Sign};
