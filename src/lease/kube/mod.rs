//! The connection with the Kubernetes API: this host's subnets and all others from the nodes there.
//!
//! - `object`, `nodes`, `own`, `kubeconfig`, `yaml`: what is told there, pure

pub mod kubeconfig;
pub mod nodes;
pub mod object;
pub mod own;
mod yaml;
