//! Pure. What the plugin asks the agent before a pod's interface is up: one line of JSON each way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ipam::TEST_CONTAINER;
use crate::policy::name::ObjectName;

/// How long the plugin waits for the answer.
pub const DEADLINE: Duration = Duration::from_millis(200);

/// How much longer it waits if the table has something of the pod: of a former one, which the agent alone removes, or
/// what the agent has just put in force and is about to say.
pub const LATE: Duration = Duration::from_secs(2);

/// The longest line, in bytes.
pub const LIMIT: usize = 512 << 10;

/// The agent's socket, below the folder of the store of addresses (`dataDir`), which both know.
pub fn socket(ipam_dir: &Path) -> PathBuf {
    ipam_dir.join(".policy.sock")
}

/// The file that says which namespaces no policy concerns, for plugins while there is no agent.
pub fn index(ipam_dir: &Path) -> PathBuf {
    ipam_dir.join(".policy.index")
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    pub open: BTreeSet<ObjectName>,
    /// Addresses that other hosts know as those of this host's pods, perhaps former ones.
    pub held: BTreeSet<IpAddr>,
}

impl Index {
    /// It opens nothing that `other` does not.
    pub fn is_within(&self, other: &Index) -> bool {
        self.open.is_subset(&other.open) && self.held.is_superset(&other.held)
    }

    /// It has the namespace of this new pod (`namespace/name`), and other hosts know none of its addresses.
    pub fn opens(&self, pod: &str, addresses: &[IpAddr]) -> bool {
        if addresses.iter().any(|address| self.held.contains(address)) {
            return false;
        }
        let namespace = pod.split_once('/').and_then(|(namespace, _)| namespace.parse().ok());
        namespace.is_some_and(|namespace: ObjectName| self.open.contains(&namespace))
    }
}

/// A pod of this host, as its runtime and the store of addresses have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPod {
    pub network: String,
    pub container_id: String,
    pub ifname: String,
    /// `namespace/name`, or `None` from a runtime that has no pods.
    pub pod: Option<String>,
    /// `K8S_POD_UID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    pub addresses: Vec<IpAddr>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl LocalPod {
    /// Container and interface.
    pub fn key(&self) -> (String, String) {
        (self.container_id.clone(), self.ifname.clone())
    }

    /// Root of this host attached it for a test: no source will ever know it.
    pub fn is_test(&self) -> bool {
        self.pod.is_none() && self.container_id.starts_with(TEST_CONTAINER)
    }

    /// The pod shop/`name`, whose label app is its name.
    #[cfg(test)]
    pub fn in_shop(container_id: &str, name: &str, address: &str) -> LocalPod {
        LocalPod {
            network: "net".to_owned(),
            container_id: container_id.to_owned(),
            ifname: "eth0".to_owned(),
            pod: Some(format!("shop/{name}")),
            uid: None,
            addresses: vec![address.parse().unwrap()],
            labels: [("app".to_owned(), name.to_owned())].into(),
            annotations: BTreeMap::new(),
        }
    }
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyAnswer {
    /// The pod's policies are in force; else it is in quarantine.
    pub in_force: bool,
    /// The table of policies judges its addresses, wherever they are.
    #[serde(default)]
    pub judged: bool,
    /// Why it is in quarantine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pod_is_opened_with_an_address_that_other_hosts_know() {
        let [held, free] = ["10.1.2.3", "10.1.2.4"].map(|text| text.parse().unwrap());
        let open = BTreeSet::from(["free".parse().unwrap()]);
        let index = Index { open, held: [held].into() };
        assert!(index.opens("free/web", &[free]) && !index.opens("shop/web", &[free]));
        assert!(!index.opens("free/web", &[held]) && !index.opens("free/web", &[free, held]));
        let wider = Index { open: index.open.clone(), held: BTreeSet::new() };
        assert!(index.is_within(&index) && index.is_within(&wider) && !wider.is_within(&index));
        assert!(Index::default().is_within(&wider) && !Index::default().is_within(&index));
        // An index of before does not say what other hosts know: it opens nothing.
        assert!(serde_json::from_str::<Index>(r#"{"open": ["free"]}"#).is_err());
    }
}
