//! Pure. Keys and values in etcd, as text and as types.
//!
//! Anybody with write access to etcd may write anything there: every value is parsed here, with
//! limits; what cannot be parsed is a [`RecordError`], never a panic and never half a record.

mod alive;
mod config;
mod error;
mod host_pods;
mod key_claim;
mod node;
mod policy_enforcement;
mod reachability;
mod roots;
mod test_answer;
mod value;

pub use crate::net::node_name::{NodeName, NodeNameError};
pub use alive::{Alive, Contender};
pub use config::{Ancestor, ClusterConfig};
pub use error::RecordError;
pub use host_pods::{HostPod, HostPods};
pub use key_claim::{KeyClaim, wireguard_value};
pub use node::{Backend, NO_GROUP, NodeRecord, Tunnel, Vxlan, WireguardEnd, comparable_group};
pub use policy_enforcement::PolicyEnforcement;
pub use reachability::{PathFault, PathState, ReachabilityReport};
pub use roots::{Key, Roots};
pub use test_answer::{TestAnswer, TestPodsState, TestRequest};
pub use value::{claim_value, host_value};

macro_rules! json_records {
    ($($record:ty),+) => {$(
        impl $record {
            /// # Errors
            /// [`RecordError`] if `value` is no such JSON object.
            pub fn parse(value: &[u8]) -> Result<Self, RecordError> {
                value::json(value)
            }

            pub fn to_json(&self) -> String {
                value::to_json(self)
            }
        }
    )+};
}
json_records!(Alive, ClusterConfig, Contender, NodeRecord);
