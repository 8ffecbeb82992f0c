//! One look at this host, read only: kernel, disk, cluster.

pub mod host;
pub mod host_ports;
pub mod state_file;
