//! Pure. What is wanted against what is found.
//!
//! Every plan is a function (wanted, found) → changes; no change means all is well. Each change
//! describes itself once, as a [`Line`] about an [`Object`], for the log and for the dry run.

pub mod bandwidth;
pub mod bridge;
pub mod doctor;
pub mod explain;
pub mod firewall;
pub mod forward;
pub mod hostports;
pub mod line;
pub mod object;
pub mod pod;
pub mod ports;
pub mod probe;
pub mod routes;
pub mod surroundings;
pub mod traces;
pub mod tunnel;

pub use line::{Describe, Line, Sign};
pub use object::Object;
