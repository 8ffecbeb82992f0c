//! Who owns which subnet.
//!
//! ```text
//! etcd ⇄ registry ──▶ Snapshot (all of etcd at one revision) ──▶ peers ──▶ the other hosts
//!            ▲              │
//!            └── dialogue ──┴─ claim, restore, growth: what this host must ask or write next
//! ```
//!
//! Everything but [`registry`], [`kube`], `event_loop` and [`saved`] is pure.

pub mod choose;
pub mod claim;
pub mod dry_run_claim;
pub mod error;
pub mod growth;
pub mod identity;
pub mod peers;
pub mod publish;
pub mod records;
pub mod restore;
pub mod saved;
pub mod session;
pub mod snapshot;
pub mod transaction;
pub mod tunnels;

pub use error::LeaseError;
pub use identity::{Attributes, Identity, Lease, Network};
pub use peers::{Peer, PeerFault, Peers, peers};
pub use records::{NodeName, Roots};
pub use saved::{Resolved, Saved};
pub use snapshot::Snapshot;
pub use tunnels::{TunnelFault, tunnels};
