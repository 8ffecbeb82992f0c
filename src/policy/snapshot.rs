//! Pure. What a source of policies knows at one moment, and how it gets to the agent's loop.
//!
//! Each source is a thread that sends a whole [`SourceUpdate`] whenever something changed; the loop keeps
//! the last valid [`PolicySnapshot`] of each source, on disk too, and makes the table of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::net::subnet::gateway;
use crate::net::{Object, PerFamily, Problem, ProblemKind};
use crate::policy::endpoint::Endpoint;
use crate::policy::isolation;
use crate::policy::labels::Labels;
use crate::policy::members::{self, FoundMembers, Members};
use crate::policy::name::Scoped;
use crate::policy::network::Networks;
use crate::policy::profile::Profiles;
use crate::policy::read::cluster::Cluster;
use crate::policy::rule::{Origin, Rules};
use crate::policy::selector::Selector;
use crate::policy::unread::UnderstoodRules;

/// Where policies come from. A pod that two of them know is as the first one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Provider {
    Kubernetes,
    Etcd,
    /// What other hosts say of their pods, through etcd.
    Members,
    /// `POLICY_FILE`.
    File,
}

/// What the settings say of pods of which nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDefaults {
    /// Their addresses.
    pub pools: PerFamily<IpNetwork>,
    pub group: Option<Scoped>,
}

/// Rules, and the pods that they are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySnapshot {
    pub rules: Rules,
    /// Objects that are not understood, and of which no rules of before are known.
    #[serde(default)]
    pub unread: BTreeSet<Origin>,
    /// This host's pods. Their addresses may be missing: the agent takes those that its own store of
    /// addresses gave them, because a source learns them after the pod's start.
    pub pods: Vec<Endpoint>,
    /// What the peers in `rules` find ([`members::peers`]), on all hosts. Addresses in this host's own
    /// subnets count only as far as they are those of `pods`.
    #[serde(with = "pairs")]
    pub members: Members,
    /// What is known of namespaces, where runtimes describe pods that no source knows (hosts without
    /// Kubernetes) or where their rules are another source's; `None`: a pod that is not in `pods` stays in
    /// quarantine.
    #[serde(default)]
    pub standalone: Option<Cluster>,
    /// Labels of this host's node, where hosts publish themselves.
    #[serde(default)]
    pub node: Labels,
    #[serde(default)]
    pub networks: Networks,
    #[serde(default)]
    pub profiles: Profiles,
    /// `POLICY_GROUP`, in what all sources say together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Scoped>,
    /// Groups, networks, profiles and rules of namespaces are those of another source.
    #[serde(default)]
    pub without_objects: bool,
}

/// What a source sends to the loop.
#[derive(Clone, Debug)]
pub struct SourceUpdate {
    pub provider: Provider,
    /// `None`: what is there cannot be used; the last valid snapshot holds.
    pub snapshot: Option<PolicySnapshot>,
    /// Everything that is wrong with its objects now.
    pub problems: Vec<Problem>,
}

impl Provider {
    pub fn name(self) -> &'static str {
        match self {
            Provider::Kubernetes => "kubernetes",
            Provider::Etcd => "etcd",
            Provider::Members => "members",
            Provider::File => "file",
        }
    }
}

impl PolicySnapshot {
    /// What all sources say together.
    pub fn merged<'a>(
        all: impl IntoIterator<Item = &'a PolicySnapshot> + Clone,
        defaults: &PodDefaults,
    ) -> PolicySnapshot {
        let said = all.clone().into_iter().map(|one| &one.networks);
        let networks = said.fold(Networks::default(), Networks::and);
        let networks = networks.beside(defaults.pools.iter().copied().collect());
        let said = all.clone().into_iter().map(|one| &one.profiles);
        let profiles = said.fold(Profiles::default(), Profiles::and);
        let (mut pods, mut members) = (BTreeMap::new(), Members::new());
        let mut rules: Vec<&Rules> = Vec::new();
        let (mut standalone, mut node) = (None::<Cluster>, Labels::new());
        for one in all {
            node.extend(one.node.clone());
            standalone = match (standalone, &one.standalone) {
                (Some(cluster), Some(other)) => Some(cluster.and(other)),
                (cluster, other) => cluster.or_else(|| other.clone()),
            };
            rules.extend((!one.rules.is_empty()).then_some(&one.rules));
            for pod in &one.pods {
                pods.entry((pod.namespace.name(), &pod.name)).or_insert(pod);
            }
            for (selector, found) in &one.members {
                join(members.entry(selector.clone()).or_default(), found);
            }
        }
        let pods = pods.into_values().cloned().collect();
        let isolation = Rules::new(isolation::rules(&networks));
        rules.extend((!isolation.is_empty()).then_some(&isolation));
        let rules = Rules::merged(&rules);
        let without_objects = false;
        PolicySnapshot {
            rules,
            unread: BTreeSet::new(),
            pods,
            members,
            standalone,
            node,
            networks,
            profiles,
            group: defaults.group.clone(),
            without_objects,
        }
    }

    /// Puts one of `pods` into its group and network, where their source has no rules for that; gives what is
    /// wrong with what it asks for.
    pub fn assign(&self, pod: &mut Endpoint) -> Option<Problem> {
        let cluster = self.standalone.as_ref().filter(|cluster| !cluster.trusts_runtimes())?;
        if pod.group.is_some() || pod.network.is_some() { None } else { cluster.assign(pod) }
    }

    /// What is wrong with what `pods` ask for.
    pub fn refused(&self) -> impl Iterator<Item = Problem> {
        self.pods.iter().filter_map(|pod| self.assign(&mut pod.clone()))
    }

    fn is_missing(&self, group: &Scoped) -> bool {
        // What a release of before wrote has the groups by their rules alone.
        let has_rule =
            || self.rules.iter().any(|rule| rule.subject == Selector::Group(group.clone()));
        !self.profiles.has_group(group) && !has_rule()
    }

    /// The group of the settings does not exist.
    pub fn missing_configured_group(&self) -> Option<Problem> {
        let group = self.group.as_ref().filter(|group| self.is_missing(group))?;
        let subject = Object::Setting("POLICY_GROUP", group.to_string());
        let what = "there is no such group: pods that nothing else puts into one are judged as without a group";
        let fix = format!(
            "humanz-agent group create {group} # makes it, where groups are in etcd; or correct POLICY_GROUP"
        );
        Some(Problem::in_object(ProblemKind::Policy, subject, what).with_fix(fix))
    }

    /// A pod in a group that does not exist: no policy holds that somebody meant for it.
    pub fn missing_group(&self, pod: &Endpoint) -> Option<Problem> {
        let is_reported =
            |group: &&Scoped| self.group.as_ref() != Some(*group) && self.is_missing(group);
        let group = pod.group.as_ref().filter(is_reported)?;
        let what =
            format!("group {group} does not exist: the pod is judged as one without a group");
        let fix = format!(
            "humanz-agent endpoint show {pod} # make the group, or correct what the pod or the rule of its namespace says"
        );
        Some(
            Problem::in_object(ProblemKind::Policy, Object::Pod(pod.to_string()), what)
                .with_fix(fix),
        )
    }

    /// Its rules, and which of their objects are not understood.
    pub fn understood(&self) -> UnderstoodRules {
        UnderstoodRules { rules: self.rules.clone(), unread: self.unread.clone() }
    }

    /// Of what is not understood now, what `before` knew.
    pub fn keep_unread(&mut self, before: &PolicySnapshot) {
        self.networks.keep_unread(&before.networks);
        self.profiles.keep_unread(&before.profiles);
        let kept = self.understood().or_of(&before.understood());
        (self.rules, self.unread) = (kept.rules, kept.unread);
    }

    /// What is as in `before` becomes the same values.
    pub fn share(&mut self, before: &PolicySnapshot) {
        if self.rules == before.rules {
            self.rules = before.rules.clone();
        }
        members::share(&mut self.members, &before.members);
    }

    /// With `pods`, which have their addresses, as all pods of the host with these `subnets`: nothing
    /// that a source says gives an address of this host to anything else.
    pub fn on_host(self, pods: Vec<Endpoint>, subnets: &[IpNetwork]) -> PolicySnapshot {
        let members = self.members_on_host(&pods, subnets);
        PolicySnapshot { pods, members, ..self }
    }

    /// The members of [`PolicySnapshot::on_host`].
    fn members_on_host(&self, pods: &[Endpoint], subnets: &[IpNetwork]) -> Members {
        let is_own = |address: &IpAddr| subnets.iter().any(|subnet| subnet.contains(*address));
        let is_gateway = |address: &IpAddr| subnets.iter().any(|it| gateway(*it) == *address);
        let of_others = |(selector, found): (&Selector, &FoundMembers)| {
            // The gateway is the host itself.
            let is_node = matches!(selector, Selector::Nodes(_));
            let kept = found.iter().filter_map(|member| {
                let mut member = member.clone();
                member.addresses.retain(|it| !is_own(it) || is_node && is_gateway(it));
                (!member.addresses.is_empty()).then_some(member)
            });
            (selector.clone(), Arc::new(kept.gather()))
        };
        let mut members: Members = self.members.iter().map(of_others).gather();
        let wanted = members::peers(self.rules.iter());
        let selectors: Vec<&Selector> = wanted.iter().collect();
        let found = members::find_pods(&selectors, pods);
        for (selector, found) in wanted.into_iter().zip(found) {
            join(members.entry(selector).or_default(), &Arc::new(found));
        }
        members
    }
}

/// What two sources find; what one finds alone stays the same value.
fn join(found: &mut FoundMembers, more: &FoundMembers) {
    match found.is_empty() {
        true => *found = Arc::clone(more),
        false => Arc::make_mut(found).extend(more.iter().cloned()),
    }
}

/// Selectors are no keys of JSON.
mod pairs {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::net::gather::Gather;
    use crate::policy::members::{Member, Members};
    use crate::policy::selector::Selector;

    pub fn serialize<S: Serializer>(members: &Members, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(members.iter().map(|(selector, found)| (selector, &**found)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Members, D::Error> {
        let pairs = Vec::<(Selector, BTreeSet<Member>)>::deserialize(from)?;
        Ok(pairs.into_iter().map(|(selector, found)| (selector, Arc::new(found))).gather())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ask::LocalPod;
    use crate::policy::local::Pods;
    use crate::policy::read::documents;
    use crate::policy::read::membership::NamespaceRule;

    fn snapshot(text: &str) -> PolicySnapshot {
        let documents = documents::read(&documents::objects(text).unwrap(), true);
        assert_eq!(documents.problems, []);
        let peers = members::peers(documents.rules.iter());
        let members = members::find(&peers, &documents.endpoints);
        let pods = documents.endpoints.pods;
        PolicySnapshot {
            rules: documents.rules,
            pods,
            members,
            standalone: Some(documents.cluster),
            networks: documents.networks,
            profiles: documents.profiles,
            ..PolicySnapshot::default()
        }
    }

    fn pod(name: &str, address: &str) -> String {
        format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"namespace\": \"shop\", \
             \"name\": \"{name}\", \"labels\": {{\"app\": \"web\"}}}}, \"spec\": {{\"nodeName\": \
             \"n1\"}}, \"status\": {{\"podIP\": \"{address}\"}}}}"
        )
    }

    const POLICY: &str = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "db"}, "spec": {"podSelector": {},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
                     "ports": [{"port": 80, "endPort": 90}, {"port": "http"}]}]}}"#;

    /// What the API says of the pod web, and etcd of its namespace.
    fn beside_etcd(group: &str) -> PolicySnapshot {
        let mut of_api = snapshot(&pod("web", "10.1.2.3"));
        of_api.standalone = Some(Cluster::new(false));
        of_api.pods[0].annotations = [("humanz.io/group".into(), group.into())].into();
        let mut of_etcd =
            PolicySnapshot { standalone: Some(Cluster::new(true)), ..Default::default() };
        let rule = NamespaceRule::read(&serde_json::json!({"allow": ["ops"]})).unwrap();
        of_etcd.standalone.as_mut().unwrap().rules.insert("shop".parse().unwrap(), rule);
        PolicySnapshot::merged([&of_api, &of_etcd], &PodDefaults::default())
    }

    #[test]
    fn a_pod_of_the_api_is_in_the_group_that_the_rule_in_etcd_allows() {
        for (group, is_allowed) in [("ops", true), ("other", false)] {
            let known = beside_etcd(group);
            let mut pod = known.pods[0].clone();
            let refused = known.assign(&mut pod);
            assert_eq!(pod.group.is_some(), is_allowed, "{group}");
            assert_eq!(refused, known.refused().next());
            let why = refused.map(|problem| problem.what);
            let wanted =
                "pod shop/web: group default/other is not allowed for pods of this namespace";
            assert_eq!(why.as_deref(), (!is_allowed).then_some(wanted));
        }
        // What the API does not know is not as its runtime describes it.
        let mut pods = Pods::default();
        pods.add(LocalPod::in_shop("c1", "web", "10.1.2.3"));
        pods.add(LocalPod::in_shop("c2", "late", "10.1.2.4"));
        let found = pods.endpoints(&beside_etcd("ops"), &"n1".parse().unwrap());
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["shop/web"]);
        assert!(found[0].group.is_some());
    }

    #[test]
    fn a_snapshot_is_read_back_as_it_was_written() {
        let before = snapshot(&[POLICY, &pod("web", "10.1.2.3")].concat());
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<PolicySnapshot>(&text).unwrap(), before);
    }

    #[test]
    fn an_address_of_this_host_belongs_to_the_pod_that_has_it_here() {
        let said = snapshot(&[POLICY, &pod("old", "10.1.2.3"), &pod("far", "10.1.9.9")].concat());
        let addresses = |snapshot: &PolicySnapshot| -> Vec<String> {
            let members = snapshot.members.values().flat_map(|found| &**found);
            members.flat_map(|it| &it.addresses).map(ToString::to_string).collect()
        };
        assert_eq!(addresses(&said), ["10.1.2.3", "10.1.9.9"]);
        let subnets = ["10.1.2.0/24".parse().unwrap()];
        assert_eq!(addresses(&said.clone().on_host(Vec::new(), &subnets)), ["10.1.9.9"]);
        let own = snapshot(&pod("new", "10.1.2.4")).pods;
        assert_eq!(addresses(&said.on_host(own, &subnets)), ["10.1.2.4", "10.1.9.9"]);
    }
}
