//! Observe and apply: the kernel and the file system.

pub mod netlink;
pub mod nft;
