//! Pure. How many pods the peers of one namespace's NetworkPolicies may find in all.
//!
//! What a peer finds takes memory of each host that needs it, and etcd's: whoever may write NetworkPolicies could take all
//! of both. 300,000 found pods took an agent 140 MB.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::gather::Gather;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::members;
use crate::policy::name::ObjectName;
use crate::policy::rule::{PolicyKind, PolicyVerdict, Rules};
use crate::policy::selector::Selector;

/// Found pods of one namespace's peers, in the whole cluster.
pub const CLUSTER_LIMIT: usize = 200_000;

/// At least so many of them each host publishes of its own, and at most …
const HOST_LEAST: usize = 1_000;

/// … so many.
const HOST_MOST: usize = 5_000;

/// The selectors that rules of NetworkPolicies alone have as peers, by namespace, in the order of the policies' names.
/// Others are those of administrators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares(BTreeMap<ObjectName, Vec<Selector>>);

/// What exceeds the shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// They find nothing.
    pub selectors: BTreeSet<Selector>,
    /// Whose shares are used up.
    pub namespaces: BTreeSet<ObjectName>,
    pub limit: usize,
}

impl Shares {
    pub fn of(rules: &Rules) -> Shares {
        let (mut shares, mut seen) = (BTreeMap::<_, Vec<Selector>>::new(), BTreeSet::new());
        let mut of_others = BTreeSet::new();
        for rule in rules.iter() {
            let origin = &rule.origin;
            let is_limited =
                origin.source == PolicyKind::NetworkPolicy && rule.verdict == PolicyVerdict::Allow;
            let payer = origin.namespace.as_ref().filter(|_| is_limited);
            for selector in members::peers([rule]) {
                match payer {
                    None => drop(of_others.insert(selector)),
                    Some(namespace) if seen.insert((namespace, selector.clone())) => {
                        shares.entry(namespace.clone()).or_default().push(selector);
                    }
                    Some(_) => {}
                }
            }
        }
        shares.values_mut().for_each(|own| own.retain(|selector| !of_others.contains(selector)));
        Shares(shares)
    }

    /// What exceeds `limit` of those that are `wanted`; `size`: how much one finds, asked for no more of a namespace once
    /// its share is used up. A selector that another namespace can afford is none of them.
    pub fn excess(
        &self,
        wanted: &BTreeSet<Selector>,
        limit: usize,
        mut size: impl FnMut(&Selector) -> usize,
    ) -> Excess {
        let (mut sizes, mut afforded) = (BTreeMap::new(), BTreeSet::new());
        let mut namespaces = BTreeSet::new();
        for (namespace, selectors) in &self.0 {
            let mut used = 0;
            for selector in selectors.iter().filter(|selector| wanted.contains(selector)) {
                used += *sizes.entry(selector).or_insert_with(|| size(selector));
                if used > limit {
                    namespaces.insert(namespace.clone());
                    break;
                }
                afforded.insert(selector);
            }
        }
        let limited = self.0.values().flatten().filter(|selector| wanted.contains(selector));
        let selectors: BTreeSet<Selector> =
            limited.filter(|selector| !afforded.contains(selector)).cloned().gather();
        namespaces.retain(|namespace| self.0[namespace].iter().any(|it| selectors.contains(it)));
        Excess { selectors, namespaces, limit }
    }
}

impl Excess {
    /// One for each namespace. `found`: what is counted.
    pub fn problems(&self, found: &str) -> Vec<Problem> {
        let problem = |namespace: &ObjectName| {
            let subject = Object::named(format!("NetworkPolicies of namespace {namespace}"));
            let what = format!(
                "{subject}: their peers find more than {} {found} in all; those of the last policies by name find none",
                self.limit
            );
            let fix = format!(
                "kubectl -n {namespace} get networkpolicies # fewer peers that find many pods each"
            );
            Problem::new(ProblemKind::Policy, subject, what).with_fix(fix)
        };
        self.namespaces.iter().map(problem).collect()
    }
}

/// How many found pods of one namespace's peers each of so many hosts publishes.
pub fn host_limit(hosts: usize) -> usize {
    (CLUSTER_LIMIT / hosts.max(1)).clamp(HOST_LEAST, HOST_MOST)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::read::cluster_network_policy::{self, ClusterPolicyKind};
    use crate::policy::read::network_policy;
    use crate::policy::rule::Rule;

    /// Of pods with these labels, in this namespace.
    fn policy(namespace: &str, name: &str, apps: &[&str]) -> Value {
        let peer = |app: &&str| json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}});
        let from: Vec<Value> = apps.iter().map(peer).collect();
        json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"podSelector": {}, "ingress": [{"from": from}]}})
    }

    /// The `app` of each selector that exceeds the share of ten, and the namespaces; `x3` finds three pods.
    fn excess(policies: &[Value], others: &[Value]) -> (String, String, usize) {
        let rules = policies.iter().flat_map(|object| network_policy::read(object).rules);
        let others = others.iter().flat_map(policies_of);
        let rules = Rules::new(rules.chain(others).collect());
        let app = |selector: &Selector| {
            let text: Value = serde_json::from_str(&selector.text()).unwrap();
            let text = text.to_string();
            let at = text.find("\"x").unwrap();
            text[at + 1..].split('"').next().unwrap().to_owned()
        };
        let mut asked = 0;
        let excess = Shares::of(&rules).excess(&members::peers(rules.iter()), 10, |selector| {
            asked += 1;
            app(selector)[1..].parse().unwrap()
        });
        let namespaces: Vec<&str> = excess.namespaces.iter().map(ObjectName::as_str).collect();
        let selectors: Vec<String> = excess.selectors.iter().map(app).collect();
        assert_eq!(excess.problems("pods").len(), namespaces.len());
        (selectors.join(" "), namespaces.join(" "), asked)
    }

    fn policies_of(object: &Value) -> Vec<Rule> {
        let read = cluster_network_policy::read(ClusterPolicyKind::Cluster, object);
        assert_eq!(read.problems, []);
        read.rules
    }

    #[test]
    fn the_first_policies_by_name_hold_and_nothing_is_looked_for_beyond() {
        let all = [policy("a", "2", &["x1", "x2", "x3"]), policy("a", "1", &["x5", "x4"])];
        assert_eq!(excess(&all, &[]), ("x2 x3".into(), "a".into(), 4));
        assert_eq!(excess(&all[..1], &[]), (String::new(), String::new(), 3));
    }

    #[test]
    fn what_another_namespace_affords_or_an_administrator_asks_for_is_found() {
        let greedy = policy("a", "1", &["x8", "x7", "x9"]);
        let lost = |other: Value| excess(&[greedy.clone(), other], &[]);
        assert_eq!(lost(policy("b", "1", &["x7"])), ("x8 x9".into(), "a".into(), 2));
        assert_eq!(lost(policy("b", "1", &["x9"])), ("x8".into(), "a".into(), 3));
        let both = [policy("a", "1", &["x8", "x7"]), policy("b", "1", &["x8"])];
        assert_eq!(excess(&both, &[]), (String::new(), String::new(), 2), "nothing is lost");
        let deny = json!({"metadata": {"name": "p"}, "spec": {"tier": "Admin", "priority": 1,
            "subject": {"namespaces": {}}, "ingress": [{"action": "Deny", "from": [
                {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "x8"}}}}]}]}});
        assert_eq!(excess(&[greedy], &[deny]), ("x9".into(), "a".into(), 2));
    }

    #[test]
    fn a_host_publishes_less_the_more_there_are() {
        assert_eq!(
            [0, 1, 40, 100, 400, 10_000].map(host_limit),
            [5_000, 5_000, 5_000, 2_000, 1_000, 1_000]
        );
    }
}
