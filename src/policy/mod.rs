//! Pure. Policy: rules from every source in one model, what they decide for a connection, and why.
//!
//! Sources (NetworkPolicy, ClusterNetworkPolicy, groups) become [`Rules`]: one ordered list in which
//! the first match decides. Everything that a pod, a peer or a port can be is a value of this room.

pub mod ask;
pub mod change;
pub mod compile;
pub mod described;
pub mod drops;
pub mod endpoint;
mod entries;
pub mod evaluate;
pub mod held;
pub mod isolation;
pub mod keeping;
pub mod knowledge;
pub mod labels;
pub mod line_use;
pub mod lines;
pub mod list;
pub mod local;
pub mod members;
pub mod name;
pub mod network;
pub mod network_plan;
pub mod object_source;
pub mod pairs;
pub mod partial;
pub mod pin;
pub mod profile;
pub mod read;
pub mod rule;
pub mod running;
pub mod selector;
pub mod selector_index;
pub mod served;
pub mod service;
pub mod shares;
pub mod snapshot;
pub mod sorted;
pub mod sources;
pub mod tuple;
pub mod unconcerned;
pub mod unread;
pub mod view;

pub use endpoint::{Endpoint, Endpoints, NamedPort, Namespace, Node};
pub use evaluate::{Decision, Judgement, Reason, evaluate};
pub use labels::{LabelSelector, Labels, Requirement};
pub use members::{Member, Members};
pub use name::{ObjectName, PodName, Scoped};
pub use network::{Networks, TenantNetwork};
pub use object_source::ObjectSource;
pub use pin::PinnedAddress;
pub use profile::{Dscp, NetProfile, ProfileUser, Profiles};
pub use rule::{Direction, Origin, PolicyKind, PolicyPeer, PolicyVerdict, Rule, Rules, Tier};
pub use selector::{Namespaces, Selector};
pub use service::{PortRange, Service};
pub use shares::Shares;
pub use snapshot::{PodDefaults, PolicySnapshot, Provider, SourceUpdate};
pub use tuple::{Transport, Tuple};
