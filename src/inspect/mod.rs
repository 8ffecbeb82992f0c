//! One look at this host, read only: kernel, disk, cluster.
//!
//! `Host` is what a command or a dry run sees, once. The agent's loop reads the same parts (`Kernel`, `host_state`)
//! each time it runs, and only those that its trigger concerns; `explain` adds what one path alone needs, most of it
//! from inside the pods' namespaces (`command/explain/observe.rs`).
//!
//! Written are here only files that are read again after a start, and the sockets between agent and plugin.

pub mod agent_socket;
pub mod cluster;
pub mod former_stores;
pub mod guards;
pub mod holders;
mod host;
pub mod host_ports;
pub mod host_state;
pub mod identity;
pub mod interface_counters;
mod kernel;
pub mod last_policies;
pub mod last_settings;
pub mod listeners;
pub mod local_socket;
pub mod names;
pub mod networks;
pub mod nft_parts;
pub mod other_programs;
pub mod pods;
pub mod policies;
pub mod policy_file;
pub mod pool_use;
pub mod port_profiles;
pub mod preflight;
pub mod preshared_secret;
pub mod runtimes;
pub mod service_manager;
pub mod state_file;

pub use host::{Host, HostList};
pub use kernel::Kernel;
