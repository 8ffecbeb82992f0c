//! Pure. What policies say of this host's pods, kept from one look at them to the next: only pods that are
//! new or have changed are described.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::net::Problem;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::policy::ask::LocalPod;
use crate::policy::endpoint::{Endpoint, Namespace};
use crate::policy::held::Sharing;
use crate::policy::line_use::LineUse;
use crate::policy::local::{PodKey, Pods};
use crate::policy::name::ObjectName;
use crate::policy::rule::Rules;
use crate::policy::selector::Selector;
use crate::policy::selector_index::SelectorIndex;
use crate::policy::snapshot::PolicySnapshot;
use crate::policy::sources::denied;
use crate::policy::unconcerned;

/// A pod, and what policies say of it; `None`: they do not know it.
type DescribedPod = (Arc<LocalPod>, Option<Arc<Endpoint>>);

/// The pods of a host with what policies say of each. Equal descriptions are the same value in memory.
#[derive(Debug, Default)]
pub struct DescribedPods {
    of: Option<(Arc<PolicySnapshot>, NodeName, Pods)>,
    /// Those with an address.
    pods: BTreeMap<PodKey, DescribedPod>,
    /// What is wrong with what some of them ask for.
    refused: BTreeMap<PodKey, Problem>,
    /// The selectors that rules deny.
    denied: SelectorIndex<Selector>,
    lines: LineUse,
    /// Those that take more of the table than their namespace may have.
    crowded: BTreeSet<PodKey>,
    /// The namespaces of `pods`, and whether no policy concerns them.
    namespaces: BTreeMap<ObjectName, NotedNamespace>,
    /// Those that came since [`DescribedPods::take_new`], if that is all that happened to pods and rules.
    new: Option<Vec<PodKey>>,
    /// At that time.
    sharing: Option<Sharing>,
}

/// A namespace, and whether no policy concerns it.
type NotedNamespace = (Arc<Namespace>, bool);

impl DescribedPods {
    /// Takes over what is known of `pods` on `host` now.
    pub fn update(&mut self, known: &Arc<PolicySnapshot>, host: &NodeName, pods: &Pods) {
        let is_same = |(of, on, those): &(Arc<PolicySnapshot>, NodeName, Pods)| {
            Arc::ptr_eq(of, known) && on == host && those.is_same(pods)
        };
        if self.of.as_ref().is_some_and(is_same) {
            return;
        }
        let Some(before) = self.follow(known, host, pods) else { return };
        let (gone, new) = self.differences(pods);
        match &mut self.new {
            Some(others) if gone.is_empty() => others.extend(new.iter().map(|pod| pod.key())),
            _ => self.new = None,
        }
        for key in &gone {
            self.refused.remove(key);
            if let Some((_, Some(endpoint))) = self.pods.remove(key) {
                self.lines.remove(key, &endpoint);
            }
        }
        let added = self.add(&new, known, host, &before);
        self.crowded = self.lines.crowded();
        match gone.is_empty() && !self.namespaces.is_empty() {
            true => {
                let no_others = &mut BTreeMap::new();
                added.iter().for_each(|it| self.note_namespace(&known.rules, it, no_others));
            }
            false => self.note_namespaces(&known.rules),
        }
    }

    /// The keys of those that are not as in `pods`, and of `pods` those that are new or others.
    fn differences(&self, pods: &Pods) -> (Vec<PodKey>, Vec<Arc<LocalPod>>) {
        let (mut gone, mut new) = (Vec::new(), Vec::new());
        let mut known = self.pods.iter().peekable();
        for (key, pod) in pods.by_key() {
            let is_before =
                |(it, (of, _)): &(&PodKey, &DescribedPod)| !Arc::ptr_eq(of, pod) && *it < key;
            while let Some((key, _)) = known.next_if(is_before) {
                gone.push(key.clone());
            }
            match known.next_if(|(it, (of, _))| Arc::ptr_eq(of, pod) || *it == key) {
                Some((_, (of, _))) if of == pod => {}
                Some((key, _)) => {
                    gone.push(key.clone());
                    new.push(Arc::clone(pod));
                }
                None => new.push(Arc::clone(pod)),
            }
        }
        gone.extend(known.map(|(key, _)| key.clone()));
        (gone, new)
    }

    /// Describes new pods, and gives the descriptions. Those that are as `before` stay the same values.
    fn add(
        &mut self,
        new: &[Arc<LocalPod>],
        known: &PolicySnapshot,
        host: &NodeName,
        before: &BTreeMap<PodKey, DescribedPod>,
    ) -> Vec<Arc<Endpoint>> {
        if new.is_empty() {
            return Vec::new();
        }
        let mut found = BTreeMap::new();
        for (pod, endpoint, problem) in Pods::judge(new.iter().map(|pod| &**pod), known, host) {
            self.refused.extend(problem.map(|problem| (pod.key(), problem)));
            found.insert(pod.key(), endpoint);
        }
        self.share_namespaces(found.values_mut());
        let mut added = Vec::new();
        for pod in new {
            let key = pod.key();
            let former = before.get(&key).and_then(|(_, endpoint)| endpoint.as_ref());
            let endpoint = found.remove(&key).map(|endpoint| match former {
                Some(former) if **former == endpoint => Arc::clone(former),
                _ => Arc::new(endpoint),
            });
            if let Some(endpoint) = &endpoint {
                self.lines.add(&key, endpoint);
            }
            added.extend(endpoint.clone());
            self.pods.insert(key, (Arc::clone(pod), endpoint));
        }
        added
    }

    /// Forgets what depended on what was known before; gives the descriptions that are to be made anew. `None`: nothing
    /// is otherwise.
    fn follow(
        &mut self,
        known: &Arc<PolicySnapshot>,
        host: &NodeName,
        pods: &Pods,
    ) -> Option<BTreeMap<PodKey, DescribedPod>> {
        let before = self.of.replace((Arc::clone(known), host.clone(), pods.clone()));
        let (same_rules, same_pods) = match &before {
            Some((of, ..)) if Arc::ptr_eq(of, known) => (true, true),
            Some((of, ..)) => {
                let same_pods = of.pods == known.pods
                    && of.standalone == known.standalone
                    && of.group == known.group
                    && of.networks == known.networks;
                (of.rules == known.rules, same_pods)
            }
            None => (false, false),
        };
        if !same_rules {
            self.new = None;
            self.denied = SelectorIndex::new(BTreeSet::from_iter(denied(&known.rules)));
            self.namespaces.clear();
            self.lines = LineUse::new(&known.rules);
            for (key, (_, endpoint)) in &self.pods {
                endpoint.iter().for_each(|endpoint| self.lines.add(key, endpoint));
            }
        }
        let (same_host, is_same) = before.map_or((false, false), |(_, on, those)| {
            (on == *host, same_rules && those.is_same(pods))
        });
        match same_pods && same_host {
            true if is_same => None,
            true => Some(BTreeMap::new()),
            false => {
                self.new = None;
                self.lines = LineUse::new(&known.rules);
                self.refused.clear();
                Some(std::mem::take(&mut self.pods))
            }
        }
    }

    /// The pods that came since this was asked last, if nothing else has happened that may hold a pod or release one.
    pub fn take_new(&mut self, sharing: &Sharing) -> Option<Vec<PodKey>> {
        let is_same = self.sharing.as_ref().is_some_and(|before| before.is_same(sharing));
        self.sharing = Some(sharing.clone());
        self.new.replace(Vec::new()).filter(|_| is_same && self.crowded.is_empty())
    }

    /// A pod that policies know.
    pub fn get(&self, key: &PodKey) -> Option<(&LocalPod, &Arc<Endpoint>)> {
        let (pod, endpoint) = self.pods.get(key)?;
        Some((pod, endpoint.as_ref()?))
    }

    /// Equal namespaces become the same value.
    fn share_namespaces<'a>(&self, endpoints: impl Iterator<Item = &'a mut Endpoint>) {
        let known = self.namespaces.values().map(|(namespace, _)| namespace);
        let mut shared: BTreeMap<ObjectName, Arc<Namespace>> =
            known.map(|known| (known.name().clone(), Arc::clone(known))).gather();
        for Endpoint { namespace, .. } in endpoints {
            match shared.get(namespace.name()) {
                Some(known) if known == namespace => *namespace = Arc::clone(known),
                _ => drop(shared.insert(namespace.name().clone(), Arc::clone(namespace))),
            }
        }
    }

    fn note_namespaces(&mut self, rules: &Rules) {
        let mut before = std::mem::take(&mut self.namespaces);
        let all: Vec<_> = self.pods.values().filter_map(|(_, it)| it.clone()).collect();
        all.iter().for_each(|endpoint| self.note_namespace(rules, endpoint, &mut before));
    }

    /// Notes the namespace of a pod; `before`: those that were noted of the same rules.
    fn note_namespace(
        &mut self,
        rules: &Rules,
        Endpoint { namespace, .. }: &Endpoint,
        before: &mut BTreeMap<ObjectName, NotedNamespace>,
    ) {
        let is_known = |(known, _): &NotedNamespace| known == namespace;
        if self.namespaces.get(namespace.name()).is_some_and(is_known) {
            return;
        }
        let known = before.remove(namespace.name()).filter(is_known);
        let judge = || (Arc::clone(namespace), unconcerned::is_free(rules, namespace));
        let judged = known.unwrap_or_else(judge);
        let both = |(_, is_free): &mut NotedNamespace| *is_free &= judged.1;
        let noted = self.namespaces.entry(namespace.name().clone());
        noted.and_modify(both).or_insert(judged.clone());
    }

    /// Each pod that policies know.
    pub fn iter(&self) -> impl Iterator<Item = (&LocalPod, &Arc<Endpoint>)> {
        self.pods.values().filter_map(|(pod, endpoint)| Some((&**pod, endpoint.as_ref()?)))
    }

    /// Of all pods, those that no policies know included.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.pods.values().flat_map(|(pod, _)| pod.addresses.iter().copied())
    }

    /// Of those that policies know.
    pub fn known_addresses(&self) -> BTreeSet<IpAddr> {
        self.iter().flat_map(|(pod, _)| pod.addresses.iter().copied()).gather()
    }

    /// As [`Pods::refused`].
    pub fn refused(&self) -> Vec<Problem> {
        let Some((known, ..)) = &self.of else { return Vec::new() };
        let wrong = |(key, (_, endpoint)): (&PodKey, &DescribedPod)| {
            let missing = || known.missing_group(endpoint.as_ref()?);
            self.refused.get(key).cloned().or_else(missing)
        };
        let mut refused: Vec<Problem> = self.pods.iter().filter_map(wrong).collect();
        refused.dedup();
        refused
    }

    /// It takes more of the table than its namespace may have.
    pub fn is_crowded(&self, pod: &LocalPod) -> bool {
        !self.crowded.is_empty() && self.crowded.contains(&pod.key())
    }

    /// A rule denies a group that this pod is in.
    pub fn is_denied(&self, endpoint: &Endpoint) -> bool {
        !self.denied.matching(endpoint).is_empty()
    }

    /// The namespaces of the pods that no policy concerns.
    pub fn unconcerned(&self) -> BTreeSet<ObjectName> {
        let free = self.namespaces.iter().filter(|(_, (_, is_free))| *is_free);
        free.map(|(name, _)| name.clone()).gather()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    /// A namespace with this label, and a policy that isolates it or another one.
    fn known(tier: &str, isolated: &str) -> Arc<PolicySnapshot> {
        let objects = serde_json::json!([
            {"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "shop", "labels": {"tier": tier}}},
            {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": isolated, "name": "p"}, "spec": {"podSelector": {}}},
        ]);
        let read = documents::read(objects.as_array().unwrap(), true);
        let standalone = Some(read.cluster);
        Arc::new(PolicySnapshot { rules: read.rules, standalone, ..PolicySnapshot::default() })
    }

    fn all(described: &DescribedPods) -> Vec<(LocalPod, Arc<Endpoint>)> {
        described.iter().map(|(pod, endpoint)| (pod.clone(), Arc::clone(endpoint))).collect()
    }

    #[test]
    fn what_is_kept_is_what_a_first_look_would_find() {
        let host: NodeName = "n1".parse().unwrap();
        let (mut pods, mut kept) = (Pods::default(), DescribedPods::default());
        let mut check = |known: &Arc<PolicySnapshot>, pods: &Pods, free: usize| {
            let mut fresh = DescribedPods::default();
            kept.update(known, &host, pods);
            fresh.update(known, &host, pods);
            assert_eq!(all(&kept), all(&fresh));
            assert!(kept.addresses().eq(fresh.addresses()));
            assert_eq!(
                (kept.unconcerned(), free),
                (fresh.unconcerned(), fresh.unconcerned().len())
            );
            all(&kept)
        };
        let front = known("front", "other");
        pods.add(LocalPod::in_shop("c1", "web", "10.1.2.3"));
        let first = check(&front, &pods, 1);
        pods.add(LocalPod::in_shop("c2", "db", "10.1.2.4"));
        let second = check(&front, &pods, 1);
        assert!(Arc::ptr_eq(&first[0].1, &second[0].1) && second.len() == 2);
        // Other rules: the pods are what they were.
        let third = check(&known("front", "shop"), &pods, 0);
        assert!(third.iter().zip(&second).all(|(a, b)| Arc::ptr_eq(&a.1, &b.1)));
        let fourth = check(&known("back", "shop"), &pods, 0);
        assert_ne!(fourth[0].1, first[0].1, "another label of its namespace");
        // Another pod with the address of one, and one of the same container with another name.
        pods.add(LocalPod::in_shop("c3", "late", "10.1.2.3"));
        assert_eq!(check(&front, &pods, 1).len(), 2);
        pods.add(LocalPod::in_shop("c2", "other", "10.1.2.4"));
        assert_eq!(check(&front, &pods, 1)[0].1.name.as_str(), "other");
        let silent = Arc::new(PolicySnapshot::default());
        assert_eq!(check(&silent, &pods, 0).len(), 0);
    }

    #[test]
    fn only_what_came_is_new_unless_something_else_happened() {
        let host: NodeName = "n1".parse().unwrap();
        let (mut pods, mut described) = (Pods::default(), DescribedPods::default());
        let shared = || Sharing::On(Arc::default());
        let (front, sharing) = (known("front", "other"), shared());
        let mut new = |known: &Arc<PolicySnapshot>, pods: &Pods, sharing: &Sharing| {
            described.update(known, &host, pods);
            let new = described.take_new(sharing);
            new.map(|new| new.into_iter().map(|(container, _)| container).collect::<Vec<_>>())
        };
        let none = || Some(Vec::<String>::new());
        pods.add(LocalPod::in_shop("c1", "web", "10.1.2.3"));
        assert_eq!(new(&front, &pods, &sharing), None, "nothing was asked before");
        assert_eq!(new(&front, &pods, &sharing), none());
        pods.add(LocalPod::in_shop("c2", "db", "10.1.2.4"));
        assert_eq!(new(&front, &pods, &sharing), Some(vec!["c2".to_owned()]));
        let peers = Arc::new(PolicySnapshot {
            node: [("a".into(), "b".into())].into(),
            ..(*front).clone()
        });
        assert_eq!(new(&peers, &pods, &sharing), none(), "what rules and pods do not depend on");
        assert_eq!(new(&peers, &pods, &shared()), None, "what other hosts know");
        assert_eq!(new(&peers, &pods, &shared()), None, "once more");
        assert_eq!(new(&known("front", "shop"), &pods, &sharing), None, "rules");
        assert_eq!(new(&known("back", "shop"), &pods, &sharing), None, "labels");
        pods.add(LocalPod::in_shop("c3", "late", "10.1.2.3"));
        assert_eq!(new(&known("back", "shop"), &pods, &sharing), None, "a pod lost its address");
    }
}
