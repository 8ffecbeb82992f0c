//! Certificates, key and password: what the files hold, and what a failed handshake means.

pub mod files;
pub mod handshake;
pub mod meaning;
mod validity;
