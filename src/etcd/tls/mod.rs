//! Certificates, key and password: the content of their files, and TLS errors.

pub mod files;
pub mod meaning;
mod validity;
