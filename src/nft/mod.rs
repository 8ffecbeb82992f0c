//! nftables over netlink: our tables of the family `inet`, and base chains of others.

pub mod base_chains;
pub mod found;
pub mod frame;
pub mod set;
pub mod userdata;

mod cached_table;
mod claim;
mod edit;
mod expression;
mod handle;
mod inner;
mod message;
mod netdev;
mod numbers;
mod own_steps;
mod probe;
mod ruleset;
mod table_watch;
mod verdict;

pub use cached_table::CachedTable;
pub use edit::TableEdit;
pub use found::{Count, FoundChain, FoundRule, FoundSet, FoundTable, NftChain, TableFamily};
pub use handle::{Fingerprints, Nft};
pub use ruleset::{
    Action, Base, Chain, ChainPolicy, Field, Flowtable, Hook, Match, NftRule, Ruleset,
};
pub use set::{Data, Element, ElementChange, Set, Shape, Type, Value};
pub use table_watch::TableWatch;
pub use userdata::Userdata;
pub use verdict::Verdict;
