//! Pure. Ownership of pod subnets: what hosts record in etcd, and how a host claims its subnets.
//!
//! ```text
//! etcd ⇄ etcd/ ──▶ Snapshot (both key ranges at one revision) ──▶ peers ──▶ the other hosts
//!          ▲              │
//!          └── session ───┴─ claim, restore, growth: what this host reads or writes next
//! ```

pub mod blocks;
pub mod choose;
pub mod claim;
pub mod error;
pub mod etcd_error;
pub mod growth;
pub mod identity;
pub mod key_owners;
pub mod known_config;
pub mod node_error;
pub mod peers;
pub mod publish;
pub mod records;
pub mod restore;
pub mod right;
pub mod roles;
pub mod saved;
pub mod session;
pub mod snapshot;
pub mod tenant_pools;
pub mod transaction;
pub mod tunnels;

pub use error::LeaseError;
pub use etcd_error::EtcdError;
pub use identity::{Claimant, HostAttributes, Identity, Lease, Network};
pub use node_error::NodeError;
pub use peers::{Peer, PeerFault, Peers, peers};
pub use records::{NodeName, Roots};
pub use saved::{Resolved, Saved};
pub use snapshot::Snapshot;
pub use tenant_pools::TenantPools;
pub use tunnels::{TunnelFault, tunnels};
