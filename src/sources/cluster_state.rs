//! Pure. Everything that is known of a cluster from its API, and what that says of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::kube::{ObjectKey, Resource, ResourceUpdate};
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::{FailureReason, Object, Problem, ProblemKind};
use crate::policy::read::Parsed;
use crate::policy::read::cluster::Cluster;
use crate::policy::read::documents::{self, Documents};
use crate::policy::read::network_policy_limit;
use crate::policy::read::pod::Pod;
use crate::policy::unread::UnderstoodRules;
use crate::policy::{
    Endpoint, ObjectName, ObjectSource, PolicySnapshot, Provider, Rules, Scoped, Shares,
    SourceUpdate,
};
use crate::sources::custom_resource::{unused, without_networks};
use crate::sources::doubtful::with_denials;
use crate::sources::find::{ClusterPods, find, needed};
use crate::sources::item::{HostNode, Item};
use crate::sources::refused_pods::{limited, refuse, without_address};

/// Which pods are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodScope {
    /// Those of all hosts.
    All,
    /// This host's, as an object of `etcd` may put them into groups; hosts publish their members there.
    Own,
}

/// The objects of a cluster.
#[derive(Debug)]
pub struct ClusterState {
    host: NodeName,
    scope: PodScope,
    /// Whether custom resources of humanz are in force.
    ruling: ObjectSource,
    /// That of pods that nothing else puts into a group, where they are those of all hosts.
    pub group: Option<Scoped>,
    objects: BTreeMap<Resource, BTreeMap<ObjectKey, Item>>,
    listed: BTreeSet<Resource>,
    /// Why a resource is not followed now.
    disconnected: BTreeMap<Resource, FailureReason>,
    /// What policies and custom resources say, until one of them changes.
    read: Option<Arc<ReadObjects>>,
    /// The rules of before.
    last: UnderstoodRules,
    /// This host's pods when all that rules depend on was followed last; `None`: it never was.
    released: Option<BTreeSet<String>>,
}

/// What policies and custom resources say.
#[derive(Debug)]
struct ReadObjects {
    /// Of both.
    understood: UnderstoodRules,
    /// Policies with more than their namespace may have.
    beyond_limit: Vec<Problem>,
    own: Documents,
}

/// The pods of all hosts.
#[derive(Default)]
struct ClusterEndpoints {
    own: Vec<Endpoint>,
    /// With an address, by namespace.
    others: BTreeMap<ObjectName, Vec<Endpoint>>,
}

impl ClusterState {
    /// Nothing yet. `ruling`: the source of groups, networks and so on; `last`: the rules that were in force.
    pub fn new(
        host: NodeName,
        scope: PodScope,
        ruling: ObjectSource,
        last: UnderstoodRules,
    ) -> ClusterState {
        ClusterState {
            host,
            scope,
            ruling,
            group: None,
            objects: BTreeMap::new(),
            listed: BTreeSet::new(),
            disconnected: BTreeMap::new(),
            read: None,
            last,
            released: None,
        }
    }

    /// Takes in what was received; false if that changes nothing.
    pub fn take(&mut self, resource: Resource, received: ResourceUpdate<Item>) -> bool {
        let objects = self.objects.entry(resource).or_default();
        match received {
            ResourceUpdate::All(all) => {
                *objects = all;
                self.listed.insert(resource);
            }
            ResourceUpdate::Put(key, item) => drop(objects.insert(key, item)),
            ResourceUpdate::Gone(key) => drop(objects.remove(&key)),
            ResourceUpdate::Connected => return self.disconnected.remove(&resource).is_some(),
            ResourceUpdate::Disconnected { why } => {
                self.disconnected.insert(resource, why);
                return true;
            }
        }
        if !matches!(resource, Resource::Namespaces | Resource::Nodes | Resource::Pods) {
            self.read = None;
        }
        true
    }

    /// Without it nothing is known of the cluster. What is not in force is only looked at.
    fn is_needed(&self, resource: Resource) -> bool {
        !resource.is_own() || self.ruling == ObjectSource::Kubernetes
    }

    /// Nothing is missing of what rules say and of namespaces: a pod may be there for which there is no rule yet.
    fn follows_rules(&self) -> bool {
        let is_missed = |resource: &Resource| {
            self.is_needed(*resource) && !matches!(resource, Resource::Nodes | Resource::Pods)
        };
        !self.disconnected.keys().any(is_missed)
    }

    /// What the API says, once every resource that is needed has been listed, and those of rules were followed.
    pub fn update(&mut self) -> SourceUpdate {
        let mut problems = self.disconnections();
        let mut needed = Resource::ALL.into_iter().filter(|it| self.is_needed(*it));
        let whole = needed.all(|resource| self.listed.contains(&resource))
            && (self.released.is_some() || self.follows_rules());
        let snapshot = whole.then(|| self.snapshot(&mut problems));
        SourceUpdate { provider: Provider::Kubernetes, snapshot, problems }
    }

    fn snapshot(&mut self, problems: &mut Vec<Problem>) -> PolicySnapshot {
        let read = self.read();
        let faults = read.beyond_limit.iter().cloned().chain(self.faults());
        let faults = faults.chain(read.own.problems.iter().cloned()).collect();
        problems.append(&mut limited(faults, "parts of policies", "are not understood"));
        problems.extend(self.unused());
        let cluster = self.cluster().and(&read.own.cluster);
        let UnderstoodRules { rules, unread } = read.understood.clone();
        let mut snapshot = match self.scope {
            PodScope::All => self.of_all_pods(rules, &cluster, problems),
            PodScope::Own => self.of_own_pods(rules, cluster, problems),
        };
        self.release(&mut snapshot.pods);
        PolicySnapshot {
            unread,
            profiles: read.own.profiles.clone(),
            without_objects: self.ruling != ObjectSource::Kubernetes,
            ..snapshot
        }
    }

    /// Leaves out the pods of this host that came while policies were not followed: they stay in quarantine until
    /// all of these are known again.
    fn release(&mut self, own: &mut Vec<Endpoint>) {
        let identity = |pod: &Endpoint| format!("{pod} {}", pod.uid.as_deref().unwrap_or_default());
        if self.follows_rules() {
            self.released = Some(own.iter().map(identity).gather());
        } else if let Some(released) = &self.released {
            own.retain(|pod| released.contains(&identity(pod)));
        }
    }

    fn unused(&self) -> Option<Problem> {
        let mut all = self.own().filter(|_| self.ruling != ObjectSource::Kubernetes);
        let name = |object: &Value| {
            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let (names, kind) = (&object["metadata"], text(&object["kind"]));
            let tenant = names["tenant"].as_str().map(|tenant| format!("{tenant}/"));
            format!("{kind} {}{}", tenant.unwrap_or_default(), text(&names["name"]))
        };
        let first = all.next().map(name);
        unused(1 + all.count(), first, "the Kubernetes API", ObjectSource::Etcd.name())
    }

    /// Their addresses are not asked for: this host's own store has them, and other hosts publish theirs.
    fn of_own_pods(
        &self,
        rules: Rules,
        cluster: Cluster,
        problems: &mut Vec<Problem>,
    ) -> PolicySnapshot {
        let is_own = |pod: &&Pod| {
            let is_here = pod.is_endpoint && pod.host.as_ref() == Some(&self.host);
            // Rules find it by its namespace's labels: it stays in quarantine until those are known.
            is_here && cluster.has(&pod.namespace)
        };
        let own = self.pods().filter(is_own).map(|pod| {
            let pod = Pod { addresses: Vec::new(), ..pod.clone() };
            cluster.unassigned(pod, self.host.clone())
        });
        let pods: Vec<_> = own.collect();
        let node = self.nodes().find(|node| node.node.name == self.host);
        if node.is_none() {
            problems.push(self.no_node());
        }
        // Its subnets are those of another source.
        let own = node.map(|HostNode { node, subnets }| {
            let mut node = node.clone();
            node.addresses.retain(|address| !subnets.iter().any(|it| it.contains(*address)));
            node
        });
        // No limit is reached with one node.
        let (needed, shares) = (needed(rules.iter(), &pods), Shares::default());
        let (members, _) = find(&needed, &shares, &ClusterPods::default(), own.iter());
        let node = own.map(|node| node.labels).unwrap_or_default();
        let standalone = Some(cluster);
        PolicySnapshot { rules, pods, members, standalone, node, ..PolicySnapshot::default() }
    }

    fn no_node(&self) -> Problem {
        let what = "the Kubernetes API has no node of this name: no pod of this host is found there, and new \
                    ones stay in quarantine";
        let fix = "kubectl get nodes # set NODE_NAME to the node's name";
        Problem::new(ProblemKind::Policy, Object::Host(self.host.clone()), what).with_fix(fix)
    }

    fn of_all_pods(
        &self,
        rules: Rules,
        cluster: &Cluster,
        problems: &mut Vec<Problem>,
    ) -> PolicySnapshot {
        let shares = Shares::of(&rules);
        let ClusterEndpoints { own, others } = self.endpoints(cluster, problems);
        let mut pods = ClusterPods::default();
        for endpoint in others.values().flatten().chain(&own) {
            let namespace = endpoint.namespace.name();
            pods.by_namespace.entry(namespace).or_default().push(endpoint);
            if !cluster.has(namespace) {
                pods.unknown.insert(namespace);
            }
        }
        let nodes = self.nodes().map(|node| &node.node);
        let rules = with_denials(rules, &pods);
        let (members, excess) = find(&needed(rules.iter(), &own), &shares, &pods, nodes);
        problems.extend(excess.problems("pods and nodes"));
        PolicySnapshot { rules, pods: own, members, ..PolicySnapshot::default() }
    }

    /// All pods, with what is theirs of the addresses and groups that they claim.
    fn endpoints(&self, cluster: &Cluster, problems: &mut Vec<Problem>) -> ClusterEndpoints {
        let nodes: BTreeMap<&NodeName, &HostNode> =
            self.nodes().map(|node| (&node.node.name, node)).gather();
        let (mut pods, mut refused) = (ClusterEndpoints::default(), Vec::new());
        for pod in self.pods().filter(|pod| pod.is_endpoint) {
            let Some(host) = &pod.host else { continue };
            let is_own = *host == self.host;
            // Rules find it by its namespace's labels: it stays in quarantine until those are known, and while
            // what is said of the namespace is not understood.
            let is_known = cluster.has(&pod.namespace) && !cluster.is_closed(&pod.namespace);
            if is_own && !is_known {
                continue;
            }
            let mut pod = pod.clone();
            let subnets = nodes.get(host).map(|node| node.subnets.as_slice()).unwrap_or_default();
            refused.extend(refuse(&mut pod, subnets));
            let (mut endpoint, faults) = cluster.endpoint(pod, host.clone());
            let not_configured = cluster.configure(&mut endpoint, self.group.as_ref());
            if is_own {
                refused.extend(faults.into_iter().chain(not_configured));
                refused.extend(without_address(&endpoint));
                pods.own.push(endpoint);
            } else if !endpoint.addresses.is_empty() {
                let namespace = endpoint.namespace.name().clone();
                pods.others.entry(namespace).or_default().push(endpoint);
            }
        }
        let what = "have addresses or groups that are not theirs";
        problems.append(&mut limited(refused, "pods", what));
        pods
    }

    fn read(&mut self) -> Arc<ReadObjects> {
        if let Some(read) = &self.read {
            return Arc::clone(read);
        }
        let own = match self.ruling {
            ObjectSource::Etcd => Documents::default(),
            ObjectSource::Kubernetes => {
                let read = documents::read(self.own(), false);
                // Where there is etcd it has the networks.
                if self.scope == PodScope::All { without_networks(read) } else { read }
            }
        };
        let rules = self.policies().flat_map(|policy| &policy.rules).chain(own.rules.iter());
        let (rules, beyond_limit) = network_policy_limit::limited(rules.cloned().collect());
        let rules = Rules::new(rules);
        let unread = self.policies().flat_map(|policy| &policy.unread).cloned().gather();
        let understood = UnderstoodRules { rules, unread }.or_of(&self.last);
        self.last = understood.clone();
        let read = Arc::new(ReadObjects { understood, beyond_limit, own });
        self.read = Some(Arc::clone(&read));
        read
    }

    /// Custom resources of humanz, as etcd would have them.
    fn own(&self) -> impl Iterator<Item = &Value> {
        self.objects.values().flat_map(BTreeMap::values).filter_map(|item| match item {
            Item::Own(object) => Some(object),
            _ => None,
        })
    }

    fn items(&self, resource: Resource) -> impl Iterator<Item = &Item> {
        self.objects.get(&resource).into_iter().flat_map(BTreeMap::values)
    }

    fn policies(&self) -> impl Iterator<Item = &Parsed> {
        self.objects.values().flat_map(BTreeMap::values).filter_map(|item| match item {
            Item::Policy(policy) => Some(policy),
            _ => None,
        })
    }

    fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.items(Resource::Pods).filter_map(|item| match item {
            Item::Pod(pod) => Some(pod),
            _ => None,
        })
    }

    fn nodes(&self) -> impl Iterator<Item = &HostNode> + Clone {
        let nodes = self.objects.get(&Resource::Nodes).into_iter().flat_map(BTreeMap::values);
        nodes.filter_map(|item| match item {
            Item::Node(node) => Some(node),
            _ => None,
        })
    }

    fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(false);
        for item in self.items(Resource::Namespaces) {
            if let Item::Namespace(namespace) = item {
                cluster.put(namespace.clone());
            }
        }
        cluster
    }

    /// What is wrong with objects.
    fn faults(&self) -> impl Iterator<Item = Problem> {
        let items = self.objects.values().flat_map(BTreeMap::values);
        let faults = items.flat_map(|item| match item {
            Item::Policy(policy) => policy.problems.as_slice(),
            Item::Faulty(problem) => std::slice::from_ref(problem),
            _ => &[],
        });
        faults.cloned()
    }

    fn disconnections(&self) -> Vec<Problem> {
        let problem = |(resource, why): (&Resource, &FailureReason)| {
            let subject = Object::named(resource.query().name);
            let why = why.clone().at(match resource {
                Resource::Nodes => "not followed; what was known of them stays in force",
                _ => {
                    "not followed; what was known of them stays in force, and pods that start now are in quarantine"
                }
            });
            Problem::of_failure(ProblemKind::KubernetesApi, subject, why)
        };
        self.disconnected.iter().filter(|(it, _)| self.is_needed(**it)).map(problem).collect()
    }
}

#[cfg(test)]
mod tests;
