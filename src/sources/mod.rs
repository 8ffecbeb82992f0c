//! The sources of policies that are kept elsewhere: each follows a store in a thread of its own, and
//! publishes everything that it knows whenever that changed.
//!
//! An unreachable store is tried again forever, and nothing that was published is revoked.
//!
//! - `kubernetes`: policies, namespaces, nodes and pods of the Kubernetes API
//! - `item`, `cluster_state`, `find`: what is kept of their objects, and what they say, pure

mod cluster_state;
mod find;
mod item;
mod kubernetes;

pub use cluster_state::{ClusterState, PodScope};
pub use item::Item;
pub use kubernetes::{Start, read, spawn};
