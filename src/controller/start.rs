//! Pure. What the controller is started with.

use ipnetwork::IpNetwork;

use crate::etcd::EtcdSettings;
use crate::kube::KubeSettings;
use crate::lease::records::Roots;

/// Where etcd and the API are.
#[derive(Clone, Debug)]
pub struct ControllerStart {
    pub etcd: EtcdSettings,
    pub roots: Roots,
    pub api: KubeSettings,
    /// The pools of the settings, which no network may share addresses with.
    pub pools: Vec<IpNetwork>,
}
