//! What the operating system offers beside netlink: files, namespaces, sysctls, echoes, processes.

pub mod attended;
pub mod disk_space;
pub mod echo;
pub mod echoes;
pub mod event_loop;
pub mod file_watch;
pub mod files;
pub mod heartbeat;
pub mod identity;
pub mod ip_tables;
pub mod mount;
pub mod netns;
pub mod process;
pub mod random;
pub mod resolver;
pub mod sysctl;
pub mod threads;
pub mod usage;
pub mod wait;
pub mod xtables_lock;
