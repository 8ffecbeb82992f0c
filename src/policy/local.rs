//! Pure. The pods of this host, by the store of addresses and by what the plugin asks for new ones.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::ipam::StoreEntry;
use crate::net::Problem;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::policy::ask::LocalPod;
use crate::policy::endpoint::Endpoint;
use crate::policy::labels::Labels;
use crate::policy::name::ObjectName;
use crate::policy::read::cluster::Cluster;
use crate::policy::snapshot::PolicySnapshot;

/// What pods of tests go by where their source says nothing of namespaces.
static UNKNOWN: LazyLock<Cluster> = LazyLock::new(Cluster::default);

/// Where a runtime has no namespaces.
const DEFAULT_NAMESPACE: &str = "default";

/// Container and interface.
pub type PodKey = (String, String);

/// By container and interface. In JSON a list. Copies share what they have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<LocalPod>", into = "Vec<LocalPod>")]
pub struct Pods(Arc<BTreeMap<Arc<PodKey>, Arc<LocalPod>>>);

impl Pods {
    /// Those of a network, and no others: an address is that of the last of `entries` that has it. Pods that
    /// are as in `before` are the same values.
    pub fn of(network: &str, entries: &[Arc<StoreEntry>], before: &Pods) -> Pods {
        let mut last = BTreeMap::new();
        for (place, entry) in entries.iter().enumerate() {
            last.extend(entry.addresses.iter().map(|address| (*address, place)));
        }
        let pod = |(place, entry): (usize, &Arc<StoreEntry>)| {
            let own = entry.addresses.iter().filter(|address| last.get(address) == Some(&place));
            let addresses: Vec<IpAddr> = own.copied().collect();
            let key = (entry.container_id.clone(), entry.ifname.clone());
            match before.0.get_key_value(&key) {
                Some((key, known)) if is_of(known, network, entry, &addresses) => {
                    (Arc::clone(key), Arc::clone(known))
                }
                _ => (Arc::new(key), Arc::new(local_pod(network, entry, addresses))),
            }
        };
        Pods(Arc::new(entries.iter().enumerate().map(pod).gather()))
    }

    /// A new pod: a former one that had one of its addresses has it no longer.
    pub fn add(&mut self, pod: LocalPod) {
        let pods = Arc::make_mut(&mut self.0);
        let is_taken = |address: &IpAddr| pod.addresses.contains(address);
        for former in pods.values_mut().filter(|former| former.addresses.iter().any(is_taken)) {
            Arc::make_mut(former).addresses.retain(|address| !is_taken(address));
        }
        pods.insert(Arc::new(pod.key()), Arc::new(pod));
    }

    /// The same value in memory.
    pub fn is_same(&self, other: &Pods) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn get(&self, key: &PodKey) -> Option<&Arc<LocalPod>> {
        self.0.get(key)
    }

    /// Those with an address.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<LocalPod>> {
        self.by_key().map(|(_, pod)| pod)
    }

    /// The same in the order of their keys.
    pub fn by_key(&self) -> impl Iterator<Item = (&PodKey, &Arc<LocalPod>)> {
        let has_address = |(_, pod): &(&PodKey, &Arc<LocalPod>)| !pod.addresses.is_empty();
        self.0.iter().map(|(key, pod)| (&**key, pod)).filter(has_address)
    }

    /// What policies say of these pods: as their source knows them; else, on a host without Kubernetes,
    /// as their runtime describes them, and everywhere those of tests. A pod that no source describes is not among
    /// them: it stays in quarantine, as one does whose source still knows an earlier pod of its name.
    pub fn endpoints(&self, known: &PolicySnapshot, host: &NodeName) -> Vec<Endpoint> {
        let judged = Pods::judge(self.iter().map(|pod| &**pod), known, host);
        judged.map(|(_, endpoint, _)| endpoint).collect()
    }

    /// What is wrong with what pods ask for that only their runtimes describe, and which of all are in a group that
    /// does not exist, or may not have that of the settings.
    pub fn refused(&self, known: &PolicySnapshot, host: &NodeName) -> Vec<Problem> {
        let judged = Pods::judge(self.iter().map(|pod| &**pod), known, host);
        let wrong = |(_, pod, problem): (_, Endpoint, Option<Problem>)| {
            problem.or_else(|| known.missing_group(&pod))
        };
        let mut refused: Vec<Problem> = judged.filter_map(wrong).collect();
        // A pod with several interfaces asks with each.
        refused.dedup();
        refused
    }

    /// Those of `pods` that policies know, with what they say of each, and what is wrong with what it asks for.
    pub fn judge<'a>(
        pods: impl Iterator<Item = &'a LocalPod>,
        known: &'a PolicySnapshot,
        host: &'a NodeName,
    ) -> impl Iterator<Item = (&'a LocalPod, Endpoint, Option<Problem>)> {
        let by_name: BTreeMap<(&ObjectName, &ObjectName), &Endpoint> =
            known.pods.iter().map(|pod| ((pod.namespace.name(), &pod.name), pod)).gather();
        let cluster_of = |pod: &LocalPod| -> Option<&'a Cluster> {
            known.standalone.as_ref().or(pod.is_test().then_some(&*UNKNOWN))
        };
        let placed = move |pod: &'a LocalPod, mut endpoint: Endpoint, problem: Option<Problem>| {
            endpoint.place(&known.networks);
            // Where the source of pods has the rules of namespaces, it has put them into their groups.
            let configured =
                cluster_of(pod).and_then(|it| it.configure(&mut endpoint, known.group.as_ref()));
            Some((pod, endpoint, problem.or(configured)))
        };
        let endpoint = move |pod: &'a LocalPod| {
            let (namespace, name) = names(pod.pod.as_deref(), &pod.container_id)?;
            let addresses = pod.addresses.clone();
            if known.standalone.as_ref().is_some_and(|cluster| cluster.is_closed(&namespace)) {
                return None;
            }
            if let Some(described) = by_name.get(&(&namespace, &name)) {
                let is_other =
                    |uid: &str| described.uid.as_deref().is_some_and(|known| known != uid);
                if pod.uid.as_deref().is_some_and(is_other) {
                    return None;
                }
                let mut endpoint = Endpoint { addresses, ..(*described).clone() };
                known.assign(&mut endpoint);
                return placed(pod, endpoint, None);
            }
            let cluster = cluster_of(pod).filter(|it| it.trusts_runtimes() || pod.is_test())?;
            let (annotations, labels) = (words(&pod.annotations), words(&pod.labels));
            let (endpoint, problem) =
                cluster.standalone((namespace, name), &annotations, labels, host.clone());
            placed(pod, Endpoint { addresses, ..endpoint }, problem)
        };
        pods.filter_map(endpoint)
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
        let with_key = |pod: LocalPod| (Arc::new(pod.key()), Arc::new(pod));
        Pods(Arc::new(all.into_iter().map(with_key).gather()))
    }
}

impl From<Pods> for Vec<LocalPod> {
    fn from(pods: Pods) -> Vec<LocalPod> {
        pods.0.values().map(|pod| LocalPod::clone(pod)).collect()
    }
}

fn words(all: &BTreeMap<String, String>) -> Labels {
    all.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).gather()
}

fn local_pod(network: &str, entry: &StoreEntry, addresses: Vec<IpAddr>) -> LocalPod {
    LocalPod {
        network: network.to_owned(),
        container_id: entry.container_id.clone(),
        ifname: entry.ifname.clone(),
        pod: entry.pod.clone(),
        uid: entry.words.uid.clone(),
        addresses,
        labels: entry.words.labels.clone(),
        annotations: entry.words.annotations.clone(),
    }
}

/// `pod` is what [`local_pod`] gives.
fn is_of(pod: &LocalPod, of: &str, entry: &StoreEntry, own: &[IpAddr]) -> bool {
    let LocalPod { network, container_id, ifname, pod, uid, addresses, labels, annotations } = pod;
    let words = &entry.words;
    (network.as_str(), addresses.as_slice()) == (of, own)
        && (container_id, ifname, pod) == (&entry.container_id, &entry.ifname, &entry.pod)
        && (uid, labels, annotations) == (&words.uid, &words.labels, &words.annotations)
}

/// The line that asks for a new pod's policies.
pub fn question(network: &str, entry: &StoreEntry) -> Vec<u8> {
    let pod = local_pod(network, entry, entry.addresses.clone());
    let text = serde_json::to_vec(&pod).expect("texts are always JSON");
    [text, vec![b'\n']].concat()
}

/// A container without a pod is one of its own.
pub fn names(pod: Option<&str>, container_id: &str) -> Option<(ObjectName, ObjectName)> {
    let text = pod.unwrap_or(container_id);
    let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
    Some((namespace.parse().ok()?, name.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::described::DescribedPods;
    use crate::policy::name::Scoped;
    use crate::policy::read::documents;
    use crate::policy::read::pod::Pod;
    use crate::policy::snapshot::PodDefaults;

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

    #[test]
    fn pods_of_tests_are_judged_although_no_source_knows_them() {
        let mut pods = Pods::default();
        pods.add(pod("humanz-connectivity-7-1", None, "10.1.2.3"));
        pods.add(pod("humanz-connectivity-7-2", Some("shop/web"), "10.1.2.4"));
        pods.add(pod("other", None, "10.1.2.5"));
        check(
            &pods,
            false,
            &["default/humanz-connectivity-7-1 [10.1.2.3] {\"app\": \"humanz-connectivity-7-1\"}"],
        );
    }

    /// The group of the pod shop/web, and what is wrong, where POLICY_GROUP is default/base, the pod asks for `asked`
    /// and its namespace has this rule. `by_api`: the API describes the pod, and etcd has the rule.
    fn grouped(by_api: bool, rule: Option<&str>, asked: Option<&str>) -> (String, String) {
        let rule = rule.map(|spec| {
            format!(
                r#"{{"apiVersion": "humanz.io/v1", "kind": "NamespaceRule", "metadata": {{"name": "shop"}}, "spec": {spec}}}"#
            )
        });
        let of_etcd =
            documents::read(&documents::objects(&rule.unwrap_or("[]".into())).unwrap(), true);
        let of_etcd = PolicySnapshot { standalone: Some(of_etcd.cluster), ..Default::default() };
        let words: BTreeMap<String, String> =
            asked.iter().map(|group| ("humanz.io/group".into(), (*group).into())).collect();
        let described = json!({"metadata": {"namespace": "shop", "name": "web", "annotations": words},
            "spec": {"nodeName": "n1"}});
        let (cluster, host) = (Cluster::new(false), "n1".parse().unwrap());
        let described = cluster.unassigned(Pod::read(&described).unwrap(), host);
        let standalone = Some(cluster);
        let of_api = PolicySnapshot { pods: vec![described], standalone, ..Default::default() };
        let said = if by_api { vec![&of_api, &of_etcd] } else { vec![&of_etcd] };
        let group = Some(Scoped::parse("base", &"default".parse().unwrap()).unwrap());
        let known = PolicySnapshot::merged(said, &PodDefaults { group, ..Default::default() });
        let mut pods = Pods::default();
        pods.add(LocalPod { annotations: words, ..LocalPod::in_shop("c1", "web", "10.1.2.3") });
        let (host, known) = ("n1".parse().unwrap(), Arc::new(known));
        let found = pods.endpoints(&known, &host).remove(0).group;
        let refused = pods.refused(&known, &host);
        let mut described = DescribedPods::default();
        described.update(&known, &host, &pods);
        assert_eq!(described.refused(), refused);
        described.update(&known, &host, &Pods::default());
        assert_eq!(described.refused(), []);
        let wrong = refused.into_iter().chain(known.refused());
        let wrong: Vec<String> = wrong.map(|problem| problem.what).collect();
        (found.map_or("-".to_owned(), |group| group.to_string()), wrong.join(", "))
    }

    #[test]
    fn a_pod_that_nothing_else_puts_into_a_group_is_in_that_of_the_settings() {
        let not_allowed =
            |what: &str| format!("pod shop/web: {what} is not allowed for pods of this namespace");
        let configured = not_allowed("POLICY_GROUP: group default/base");
        let missing = |group: &str| {
            format!(
                "pod shop/web: group {group} does not exist: the pod is judged as one without a group"
            )
        };
        for by_api in [false, true] {
            for (rule, asked, group, wrong) in [
                (None, None, "default/base", String::new()),
                (Some(r#"{"group": "web"}"#), None, "default/web", missing("default/web")),
                (Some(r#"{"allow": ["web"]}"#), Some("web"), "default/web", missing("default/web")),
                (Some(r#"{"network": "front"}"#), None, "-", configured.clone()),
                (Some(r#"{"tenant": "blue", "allow": ["*"]}"#), None, "-", configured.clone()),
                (Some(r#"{"allow": ["base"]}"#), None, "default/base", String::new()),
                (Some(r#"{"allow": ["*"]}"#), None, "default/base", String::new()),
                (
                    Some(r#"{"tenant": "blue", "allow": ["default/base"]}"#),
                    Some("web"),
                    "default/base",
                    not_allowed("group blue/web"),
                ),
            ] {
                let found = grouped(by_api, rule, asked);
                assert_eq!(found, (group.to_owned(), wrong), "{by_api} {rule:?} {asked:?}");
            }
        }
    }
}
