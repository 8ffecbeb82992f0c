//! The sources of policies that are kept elsewhere: each follows a store in a thread of its own, and
//! publishes everything that it knows whenever that changed.
//!
//! An unreachable store is tried again forever, and nothing that was published is revoked.
//!
//! - `kubernetes`: policies, namespaces, nodes and pods of the Kubernetes API
//! - `policies`: policies and groups in etcd
//! - `exchange`, `exchanged`, `ranges`: members of groups on other hosts, through etcd
//! - `known_members`: what is known of these, and for how long a part holds up a group, pure
//! - `own_members`, `published`: those of this host, and what is noted of that
//! - `generations`, `kept_generations`: which of two statements of a host is the newer one, pure, and what is noted of that
//! - `blocks`, `kept_blocks`: blocks of tenants' networks that hosts have, through etcd
//! - `following`: starts and ends them
//! - `item`, `custom_resource`, `cluster_state`, `find`, `doubtful`, `refused_pods`: what is kept of objects of the API, and what they say, pure
//! - `stored`, `known_values`, `change`, `references`, `other_use`, `stored_hosts`: keys and values of policies in etcd, and what hosts have there, pure
//! - `publication`, `shared`, `inputs`: keys and values of members, and what a host says and needs, pure

mod blocks;
mod change;
mod cluster_state;
mod custom_resource;
mod doubtful;
mod exchange;
mod exchanged;
mod find;
mod following;
mod generations;
mod inputs;
mod item;
mod kept_blocks;
pub mod kept_file;
mod kept_generations;
mod known_members;
mod known_values;
mod kubernetes;
mod other_use;
mod own_members;
mod policies;
mod publication;
pub mod published;
mod ranges;
mod references;
mod refused_pods;
mod shared;
mod stored;
mod stored_hosts;

/// What is kept in the state directory.
pub const KEPT: [&str; 3] = [kept_blocks::FILE, kept_generations::FILE, published::FILE];

pub use blocks::{Blocks, BlocksStart, BlocksUpdate, blocks};
pub use change::{Change, Effect, Planned};
pub use cluster_state::{ClusterState, PodScope};
pub use custom_resource::document;
pub use exchange::{Exchange, exchange};
pub use exchanged::{ExchangeInputs, ExchangeStart, Exchanged, ExchangedMembers, retry};
pub use following::{Followed, Following, PoliciesInForce};
pub use inputs::{ExchangedFrom, hosts};
pub use item::Item;
pub use kept_blocks::KeptBlocks;
pub use known_values::tenant_pools;
pub use kubernetes::{ApiStart, read, spawn};
pub use policies::{PoliciesStart, policies, read_policies, read_stored};
pub use ranges::WrittenValue;
pub use references::{references, users};
pub use shared::{GroupId, HostAddresses, Hosts};
pub use stored::{KINDS, Kind, MARK, StoredName, StoredPolicies, VALUE_LIMIT};
pub use stored_hosts::StoredHosts;
