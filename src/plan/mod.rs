//! Pure. What is wanted against what is found.

pub mod firewall;
