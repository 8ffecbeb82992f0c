//! Policies in force on this host: what their sources say, and whom it concerns.

mod sources;

pub use sources::Policies;
