//! Pure. The CNI protocol as values.

pub mod config;
