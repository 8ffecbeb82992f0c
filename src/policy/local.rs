//! Pure. The pods of this host, by the store of addresses and by what the plugin asks for new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::ipam::StoreEntry;
use crate::net::node_name::NodeName;
use crate::policy::ask::{Index, LocalPod};
use crate::policy::compile::{Compiler, HostPolicy, MarkBits, PolicyTable};
use crate::policy::endpoint::Endpoint;
use crate::policy::held::{HeldReason, PodOwners, Sharing};
use crate::policy::labels::Labels;
use crate::policy::name::ObjectName;
use crate::policy::selector::Selector;
use crate::policy::snapshot::PolicySnapshot;
use crate::policy::sources::denied;
use crate::policy::unconcerned;

/// The netlink group that reports of drops go to.
pub const LOG_GROUP: u16 = 104;

/// Where a runtime has no namespaces.
const DEFAULT_NAMESPACE: &str = "default";

/// What is known of policies on a host.
#[derive(Clone, Debug)]
pub struct HostKnowledge {
    pub host: NodeName,
    /// `None` before any source has said anything.
    pub known: Option<Arc<PolicySnapshot>>,
    /// How other hosts know this one's pods.
    pub sharing: Sharing,
}

impl HostKnowledge {
    /// The table of a host with these pods, of which some were `released` before; without any source all of
    /// them are in quarantine.
    pub fn table<'a>(
        &self,
        pods: &Pods,
        released: &PodOwners,
        subnets: &[IpNetwork],
        compiler: &'a mut Compiler,
    ) -> &'a PolicyTable {
        let known = self.known.clone().unwrap_or_default();
        let addresses = pods.owners().map(|(address, _)| address).collect();
        let pods: Vec<_> =
            self.endpoints(&known, pods, released).into_iter().map(Arc::new).collect();
        compiler.compile(&HostPolicy {
            known: &known,
            pods: &pods,
            addresses: &addresses,
            subnets,
            mark_bits: MarkBits::DEFAULT,
            log_group: LOG_GROUP,
        })
    }

    /// What plugins go by while there is no agent.
    pub fn index(&self, pods: &Pods) -> Index {
        match &self.sharing {
            Sharing::Off => Index { open: self.unconcerned(pods), held: BTreeSet::new() },
            Sharing::On(published) if !published.is_known() => Index::default(),
            Sharing::On(published) => {
                Index { open: self.unconcerned(pods), held: published.addresses() }
            }
        }
    }

    /// The namespaces of `pods` that no policy concerns.
    fn unconcerned(&self, pods: &Pods) -> BTreeSet<ObjectName> {
        let found = |known: &Arc<PolicySnapshot>| {
            unconcerned::namespaces(&known.rules, &pods.endpoints(known, &self.host))
        };
        self.known.as_ref().map(found).unwrap_or_default()
    }

    /// The addresses of `pods` that are in no quarantine, and whose they are.
    pub fn released(&self, pods: &Pods, released: &PodOwners) -> PodOwners {
        let Some(known) = &self.known else { return PodOwners::new() };
        let open = self.judged(known, pods, released).filter(|(_, _, held)| held.is_none());
        let addresses = open.flat_map(|(pod, ..)| {
            pod.addresses.iter().map(|address| (*address, pod.container_id.clone()))
        });
        addresses.collect()
    }

    /// The containers of `pods` whose policies are known, and which are in quarantine until other hosts know
    /// them.
    pub fn held(&self, pods: &Pods, released: &PodOwners) -> BTreeMap<String, HeldReason> {
        let known = self.known.iter();
        let judged = known.flat_map(|known| self.judged(known, pods, released));
        judged.filter_map(|(pod, _, held)| Some((pod.container_id.clone(), held?))).collect()
    }

    fn endpoints(
        &self,
        known: &PolicySnapshot,
        pods: &Pods,
        released: &PodOwners,
    ) -> Vec<Endpoint> {
        let judged = self.judged(known, pods, released);
        judged.filter_map(|(_, endpoint, held)| held.is_none().then_some(endpoint)).collect()
    }

    fn judged<'a>(
        &'a self,
        known: &'a PolicySnapshot,
        pods: &'a Pods,
        released: &'a PodOwners,
    ) -> impl Iterator<Item = (&'a LocalPod, Endpoint, Option<HeldReason>)> {
        let denied: BTreeSet<Selector> = match self.sharing {
            Sharing::Off => BTreeSet::new(),
            Sharing::On(_) => denied(&known.rules).collect(),
        };
        pods.described(known, &self.host).map(move |(pod, endpoint)| {
            let held = self.sharing.hold((pod, &endpoint), &denied, released);
            (pod, endpoint, held)
        })
    }
}

/// By container and interface. In JSON a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<LocalPod>", into = "Vec<LocalPod>")]
pub struct Pods(BTreeMap<(String, String), LocalPod>);

impl Pods {
    /// Those of a network, and no others.
    pub fn of(network: &str, entries: &[StoreEntry]) -> Pods {
        let mut pods = Pods::default();
        entries.iter().for_each(|entry| pods.add(local_pod(network, entry)));
        pods
    }

    /// A new pod: a former one that had one of its addresses has it no longer.
    pub fn add(&mut self, pod: LocalPod) {
        for former in self.0.values_mut() {
            former.addresses.retain(|address| !pod.addresses.contains(address));
        }
        self.0.insert((pod.container_id.clone(), pod.ifname.clone()), pod);
    }

    /// Those with an address.
    pub fn iter(&self) -> impl Iterator<Item = &LocalPod> {
        self.0.values().filter(|pod| !pod.addresses.is_empty())
    }

    /// What policies say of these pods: as their source knows them; else, on a host without Kubernetes,
    /// as their runtime describes them. A pod that nobody knows is not among them: it stays in quarantine, as one
    /// does whose source still knows an earlier pod of its name.
    pub fn endpoints(&self, known: &PolicySnapshot, host: &NodeName) -> Vec<Endpoint> {
        self.described(known, host).map(|(_, endpoint)| endpoint).collect()
    }

    fn described<'a>(
        &'a self,
        known: &'a PolicySnapshot,
        host: &'a NodeName,
    ) -> impl Iterator<Item = (&'a LocalPod, Endpoint)> {
        let by_name: BTreeMap<(&ObjectName, &ObjectName), &Endpoint> =
            known.pods.iter().map(|pod| ((pod.namespace.name(), &pod.name), pod)).collect();
        let endpoint = move |pod: &'a LocalPod| {
            let (namespace, name) = names(pod)?;
            let addresses = pod.addresses.clone();
            if known.standalone.as_ref().is_some_and(|cluster| cluster.is_closed(&namespace)) {
                return None;
            }
            if let Some(known) = by_name.get(&(&namespace, &name)) {
                let is_other = |uid: &str| known.uid.as_deref().is_some_and(|known| known != uid);
                if pod.uid.as_deref().is_some_and(is_other) {
                    return None;
                }
                return Some((pod, Endpoint { addresses, ..(*known).clone() }));
            }
            let cluster = known.standalone.as_ref()?;
            let words = |words: &BTreeMap<String, String>| -> Labels {
                words
                    .iter()
                    .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                    .collect()
            };
            let (annotations, labels) = (words(&pod.annotations), words(&pod.labels));
            let (endpoint, _) =
                cluster.standalone((namespace, name), &annotations, labels, host.clone());
            Some((pod, Endpoint { addresses, ..endpoint }))
        };
        self.iter().filter_map(endpoint)
    }

    /// The container of each address.
    pub fn owners(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        let owner = |pod: &'_ LocalPod| pod.addresses.clone();
        self.0.values().flat_map(move |pod| {
            owner(pod).into_iter().map(|address| (address, pod.container_id.as_str()))
        })
    }
}

impl From<Vec<LocalPod>> for Pods {
    fn from(all: Vec<LocalPod>) -> Pods {
        let keyed =
            all.into_iter().map(|pod| ((pod.container_id.clone(), pod.ifname.clone()), pod));
        Pods(keyed.collect())
    }
}

impl From<Pods> for Vec<LocalPod> {
    fn from(pods: Pods) -> Vec<LocalPod> {
        pods.0.into_values().collect()
    }
}

fn local_pod(network: &str, entry: &StoreEntry) -> LocalPod {
    LocalPod {
        network: network.to_owned(),
        container_id: entry.container_id.clone(),
        ifname: entry.ifname.clone(),
        pod: entry.pod.clone(),
        uid: entry.words.uid.clone(),
        addresses: entry.addresses.clone(),
        labels: entry.words.labels.clone(),
        annotations: entry.words.annotations.clone(),
    }
}

/// The line that asks for a new pod's policies.
pub fn question(network: &str, entry: &StoreEntry) -> Vec<u8> {
    let text = serde_json::to_vec(&local_pod(network, entry)).expect("texts are always JSON");
    [text, vec![b'\n']].concat()
}

/// A container without a pod is one of its own.
fn names(pod: &LocalPod) -> Option<(ObjectName, ObjectName)> {
    let text = pod.pod.as_deref().unwrap_or(&pod.container_id);
    let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
    Some((namespace.parse().ok()?, name.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::cluster::Cluster;
    use crate::policy::read::documents;

    fn pod(container_id: &str, pod: Option<&str>, address: &str) -> LocalPod {
        LocalPod {
            network: "net".to_owned(),
            container_id: container_id.to_owned(),
            ifname: "eth0".to_owned(),
            pod: pod.map(str::to_owned),
            uid: None,
            addresses: vec![address.parse().unwrap()],
            labels: [("app".to_owned(), container_id.to_owned())].into(),
            annotations: BTreeMap::new(),
        }
    }

    fn check(pods: &Pods, standalone: bool, wanted: &[&str]) {
        let cluster = standalone.then(|| Cluster::new(true));
        let known = PolicySnapshot { standalone: cluster, ..PolicySnapshot::default() };
        let found = pods.endpoints(&known, &"n1".parse().unwrap());
        let text = |pod: &Endpoint| format!("{pod} {:?} {:?}", pod.addresses, pod.labels);
        assert_eq!(found.iter().map(text).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn an_address_belongs_to_the_pod_that_got_it_last() {
        let mut pods = Pods::default();
        pods.add(pod("c1", Some("shop/web"), "10.1.2.3"));
        pods.add(pod("c2", None, "10.1.2.3"));
        check(&pods, true, &[r#"default/c2 [10.1.2.3] {"app": "c2"}"#]);
    }

    #[test]
    fn a_pod_with_another_uid_than_the_known_one_is_in_quarantine() {
        let known = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop",
            "name": "web", "uid": "u1"}, "spec": {"nodeName": "n1"}, "status": {"podIP": "10.1.2.9"}}"#;
        let mut objects = documents::objects(known).unwrap();
        let mut snapshot = |uid: Option<&str>| {
            match uid {
                Some(uid) => objects[0]["metadata"]["uid"] = uid.into(),
                None => drop(objects[0]["metadata"].as_object_mut().unwrap().remove("uid")),
            }
            let documents = documents::read(&objects, true);
            let standalone = Some(documents.cluster);
            PolicySnapshot {
                pods: documents.endpoints.pods,
                standalone,
                ..PolicySnapshot::default()
            }
        };
        for (known, own, is_found) in [
            (Some("u1"), Some("u1"), true),
            (Some("u1"), Some("u2"), false),
            (Some("u1"), None, true),
            (None, Some("u2"), true),
        ] {
            let mut pods = Pods::default();
            let uid = own.map(str::to_owned);
            pods.add(LocalPod { uid, ..pod("c1", Some("shop/web"), "10.1.2.3") });
            let found = pods.endpoints(&snapshot(known), &"n1".parse().unwrap());
            assert_eq!(found.len(), usize::from(is_found), "{known:?} {own:?}");
        }
    }

    #[test]
    fn a_pod_that_the_api_does_not_know_yet_is_in_quarantine() {
        let mut pods = Pods::default();
        pods.add(pod("c1", Some("shop/web"), "10.1.2.3"));
        pods.add(pod("c2", Some("a b/web"), "10.1.2.4"));
        check(&pods, false, &[]);
        check(&pods, true, &[r#"shop/web [10.1.2.3] {"app": "c1"}"#]);
    }
}
