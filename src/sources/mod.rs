//! The sources of policies that are kept elsewhere: each follows a store in a thread of its own, and
//! publishes everything that it knows whenever that changed.
//!
//! An unreachable store is tried again forever, and nothing that was published is revoked.
//!
//! - `kubernetes`, `following`: policies, namespaces, nodes and pods of the Kubernetes API
//! - `exchange`, `ranges`: members of groups on other hosts, through etcd
//! - `item`, `cluster_state`, `find`: what is kept of their objects, and what they say, pure
//! - `publication`, `shared`: keys and values of members, pure

mod cluster_state;
mod exchange;
mod find;
mod following;
mod item;
mod kubernetes;
mod publication;
mod ranges;
mod shared;

pub use cluster_state::{ClusterState, PodScope};
pub use exchange::{Exchange, ExchangeInputs, ExchangeStart, Exchanged, exchange};
pub use following::Following;
pub use item::Item;
pub use kubernetes::{Start, read, spawn};
pub use shared::{GroupId, HostAddresses, Hosts};
