//! Keeps one kind of thing true, each in its file: observe, plan, apply.

pub mod bridge;
pub mod conf;
pub mod firewall;
pub mod plugin;
pub mod ports;
pub mod routes;
pub mod sysctls;
