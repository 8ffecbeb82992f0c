//! Pure. The groups that a host knows: by their rules, as a peer of rules, by its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::net::gather::Gather;
use crate::policy::{
    Direction, Endpoint, PolicyKind, PolicyPeer, PolicySnapshot, Rule, Scoped, Selector,
};

/// What is known of a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KnownGroup {
    pub policies: BTreeSet<String>,
    /// Where its default denies.
    pub denies: BTreeSet<Direction>,
    /// Of this host.
    pub pods: BTreeSet<String>,
    /// Pods of other hosts; `None` where no rule names the group as a peer, because they are published for those
    /// alone.
    pub elsewhere: Option<usize>,
}

/// The groups in what is `known`, where this host has `pods`.
pub fn groups(known: &PolicySnapshot, pods: &[Endpoint]) -> BTreeMap<Scoped, KnownGroup> {
    let mut groups: BTreeMap<Scoped, KnownGroup> = BTreeMap::new();
    for rule in known.rules.iter() {
        if let Selector::Group(name) = &rule.subject {
            groups.entry(name.clone()).or_default().add(rule);
        }
        for peer in rule.peers.iter().flatten() {
            if let PolicyPeer::Selected(Selector::Group(name)) = peer {
                groups.entry(name.clone()).or_default().elsewhere = Some(0);
            }
        }
    }
    for pod in pods {
        if let Some(name) = &pod.group {
            groups.entry(name.clone()).or_default().pods.insert(pod.to_string());
        }
    }
    let own: BTreeSet<IpAddr> = pods.iter().flat_map(|pod| pod.addresses.clone()).gather();
    for (selector, found) in &known.members {
        if let Selector::Group(name) = selector {
            let is_other = |addresses: &[IpAddr]| !addresses.iter().any(|it| own.contains(it));
            let count = found.iter().filter(|member| is_other(&member.addresses)).count();
            groups.entry(name.clone()).or_default().elsewhere = Some(count);
        }
    }
    groups
}

impl KnownGroup {
    fn add(&mut self, rule: &Rule) {
        match rule.origin.source {
            PolicyKind::Group => {
                self.denies.insert(rule.direction);
            }
            _ => {
                let tenant = rule.origin.namespace.iter().map(|tenant| format!("{tenant}/"));
                let policy = tenant.collect::<String>() + rule.origin.name.as_str();
                self.policies.insert(policy);
            }
        }
    }

    pub fn json(&self, name: &Scoped) -> Value {
        let denies = self.denies.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({
            "name": name.to_string(),
            "policies": self.policies,
            "denies": denies,
            "pods": self.pods,
            "elsewhere": self.elsewhere,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::members;
    use crate::policy::read::documents;

    fn known(objects: &[Value]) -> (PolicySnapshot, Vec<Endpoint>) {
        let read = documents::read(objects, true);
        let peers = members::peers(read.rules.iter());
        let members = members::find(&peers, &read.endpoints);
        let snapshot = PolicySnapshot { rules: read.rules, members, ..PolicySnapshot::default() };
        (snapshot, read.endpoints.pods)
    }

    fn object(kind: &str, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": "humanz.io/v1", "kind": kind, "spec": spec,
            "metadata": {"name": name, "tenant": "blue"}})
    }

    fn pod(name: &str, group: &str, address: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "h1"}, "status": {"podIP": address},
            "metadata": {"namespace": "shop", "name": name,
                "labels": {"io.contiv.tenant": "blue", "io.contiv.net-group": group}}})
    }

    #[test]
    fn a_group_has_policies_pods_here_and_members_elsewhere() {
        let rule = json!({"direction": "in", "action": "allow", "peer": {"group": "web"}});
        let objects = [
            object("GroupPolicy", "p", &json!({"rules": [rule]})),
            object("Group", "db", &json!({"policies": ["p"], "default": {"in": "deny"}})),
            object("Group", "web", &json!({})),
            pod("db-0", "db", "10.244.1.2"),
            pod("web-0", "web", "10.244.1.3"),
            pod("web-1", "web", "10.244.2.3"),
        ];
        let (known, pods) = known(&objects);
        let here: Vec<Endpoint> =
            pods.into_iter().filter(|pod| pod.name.as_str() != "web-1").collect();
        let shown = groups(&known, &here);
        let shown: Vec<Value> = shown.iter().map(|(name, group)| group.json(name)).collect();
        assert_eq!(
            json!(shown),
            json!([
                {"name": "blue/db", "policies": ["blue/p"], "denies": ["ingress"], "pods": ["shop/db-0"],
                    "elsewhere": null},
                {"name": "blue/web", "policies": [], "denies": [], "pods": ["shop/web-0"], "elsewhere": 1},
            ])
        );
    }
}
