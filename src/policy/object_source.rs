//! Pure. Where groups, their policies, profiles, networks and rules of namespaces are.

/// One source for all of them in the whole cluster, and never a mixture: who may write the other one gives no pod
/// anything. Policies themselves (NetworkPolicy and the like) are those of all sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectSource {
    #[default]
    Etcd,
    /// Custom resources of the group `humanz.io`.
    Kubernetes,
}

impl ObjectSource {
    pub fn name(self) -> &'static str {
        match self {
            ObjectSource::Etcd => "etcd",
            ObjectSource::Kubernetes => "kubernetes",
        }
    }
}
