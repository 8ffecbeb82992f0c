//! What runs the agent of this host.

use crate::checks::service_manager::ServiceManager;

/// Kubernetes in a pod: each has this variable.
pub fn service_manager() -> ServiceManager {
    match std::env::var_os("KUBERNETES_SERVICE_HOST") {
        Some(_) => ServiceManager::Kubernetes,
        None => ServiceManager::Systemd,
    }
}
