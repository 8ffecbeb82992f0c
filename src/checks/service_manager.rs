//! Pure. What runs the agent, and the commands that an operator types for it.

use std::path::Path;

/// What starts the agent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceManager {
    #[default]
    Systemd,
    /// The DaemonSet of packaging/.
    Kubernetes,
    /// The package was removed; the plugin's copy stays for the pods.
    Removed,
}

/// Shows whether an agent runs, for who cannot know what runs it: the runtime's plugin.
pub const LOOK: &str = "systemctl status humanz-agent # on Kubernetes: kubectl -n kube-system get pods -l \
    app=humanz -o wide";

impl ServiceManager {
    /// Restarts the agent; that of each host in turn on Kubernetes.
    pub fn restart(self) -> &'static str {
        match self {
            ServiceManager::Systemd | ServiceManager::Removed => "systemctl restart humanz-agent",
            ServiceManager::Kubernetes => "kubectl -n kube-system rollout restart ds/humanz",
        }
    }

    /// Stops it; that of each host on Kubernetes.
    pub fn stop(self) -> &'static str {
        match self {
            ServiceManager::Systemd | ServiceManager::Removed => {
                "systemctl disable --now humanz-agent"
            }
            ServiceManager::Kubernetes => {
                "kubectl -n kube-system delete ds/humanz # stops the agents of all nodes"
            }
        }
    }

    /// Starts it, or says why it ends.
    pub fn start(self) -> &'static str {
        match self {
            ServiceManager::Systemd => {
                "systemctl enable --now humanz-agent # journalctl -u humanz-agent says why it ended"
            }
            ServiceManager::Kubernetes => {
                "kubectl -n kube-system describe pods -l app=humanz # says why it does not run"
            }
            ServiceManager::Removed => {
                "systemctl cat humanz-agent # there is no such unit: install the package again, or humanz-agent uninstall"
            }
        }
    }

    /// Shows its log; those of all hosts on Kubernetes.
    pub fn show_log(self) -> &'static str {
        match self {
            ServiceManager::Systemd | ServiceManager::Removed => "journalctl -u humanz-agent",
            ServiceManager::Kubernetes => "kubectl -n kube-system logs -l app=humanz --prefix",
        }
    }

    /// Sets `variable` to a place that the agent writes to.
    pub fn set_place(self, variable: &str, place: &Path) -> String {
        let text = place.display();
        match self {
            ServiceManager::Systemd | ServiceManager::Removed => format!(
                "echo {variable}={text} >>/etc/humanz/agent.env && systemctl restart humanz-agent"
            ),
            ServiceManager::Kubernetes => format!(
                "kubectl -n kube-system patch configmap humanz -p '{{\"data\":{{\"{variable}\":\"{text}\"}}}}' && \
                 kubectl -n kube-system edit ds/humanz # mount the node's {} there",
                place.parent().unwrap_or(place).display()
            ),
        }
    }
}
