//! Pure. Policies as objects with rules, and rules in words.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::gather::Gather;
use crate::policy::endpoint::Endpoint;
use crate::policy::name::Scoped;
use crate::policy::rule::{Direction, Origin, PolicyPeer, PolicyVerdict, Rule, Rules, Tier};
use crate::policy::selector::Selector;

/// An object, with what it says in one tier.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyObject<'a> {
    pub tier: Tier,
    /// Without a place.
    pub origin: Origin,
    /// In their order.
    pub rules: Vec<&'a Rule>,
}

/// All of them, in the order in which they are judged.
pub fn policies(rules: &Rules) -> Vec<PolicyObject<'_>> {
    let mut objects: BTreeMap<(Tier, Origin), Vec<&Rule>> = BTreeMap::new();
    for rule in rules.iter() {
        objects.entry((rule.tier, rule.origin.object())).or_default().push(rule);
    }
    let object = |((tier, origin), rules)| PolicyObject { tier, origin, rules };
    objects.into_iter().map(object).collect()
}

impl PolicyObject<'_> {
    pub fn directions(&self) -> BTreeSet<Direction> {
        self.rules.iter().map(|rule| rule.direction).gather()
    }

    /// None of its rules decides anything.
    pub fn is_audited(&self) -> bool {
        self.rules.iter().all(|rule| rule.audit)
    }

    /// Those of `pods` that it has rules for.
    pub fn applies_to<'p>(&self, pods: &'p [Endpoint]) -> Vec<&'p Endpoint> {
        let subjects: BTreeSet<_> = self.rules.iter().map(|rule| &rule.subject).gather();
        let applies = |pod: &&Endpoint| subjects.iter().any(|subject| subject.matches_pod(pod));
        pods.iter().filter(applies).collect()
    }

    /// What of it is for the pods of `group`, of which `pods` are known; `None`: nothing.
    pub fn of_group(mut self, group: &Scoped, pods: &[Endpoint]) -> Option<Self> {
        let is_in = |pod: &&Endpoint| pod.group.as_ref() == Some(group);
        let members: Vec<&Endpoint> = pods.iter().filter(is_in).collect();
        self.rules.retain(|rule| match &rule.subject {
            Selector::Group(name) => name == group,
            subject => members.iter().any(|pod| subject.matches_pod(pod)),
        });
        (!self.rules.is_empty()).then_some(self)
    }

    /// `shop/db`, or the name alone.
    pub fn scoped(&self) -> String {
        let namespace = self.origin.namespace.iter().map(|name| format!("{name}/"));
        namespace.collect::<String>() + self.origin.name.as_str()
    }

    /// `db`, `shop/db` or `NetworkPolicy shop/db`; `policy blue/front` or `GroupPolicy blue/front`.
    pub fn has_name(&self, name: &str) -> bool {
        let origin = &self.origin;
        let is_whole = || name == origin.to_string() || name == origin.subject();
        name == origin.name.as_str() || name == self.scoped() || is_whole()
    }
}

/// `allow tcp/5432 from pods app=web of namespace shop`.
pub fn words(rule: &Rule) -> String {
    let verdict = match rule.verdict {
        PolicyVerdict::Pass => "leave to the next tier".to_owned(),
        verdict => verdict.to_string(),
    };
    let all = |list: Vec<String>, nothing: &str| match list.is_empty() {
        true => nothing.to_owned(),
        false => list.join(", "),
    };
    let services = rule.services.as_ref().map_or("everything".to_owned(), |services| {
        all(services.iter().map(ToString::to_string).collect(), "nothing")
    });
    let peers = rule.peers.as_ref().map_or("anywhere".to_owned(), |peers| {
        all(peers.iter().map(ToString::to_string).collect(), "nowhere")
    });
    let way = match rule.direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let audit = if rule.audit { " (audited: decides nothing)" } else { "" };
    format!("{verdict} {services} {way} {peers}{audit}")
}

impl std::fmt::Display for PolicyPeer {
    /// `pods app=web of namespace shop`, `10.0.0.0/8 except 10.1.0.0/16`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PolicyPeer::Selected(selector) => selector.fmt(f),
            PolicyPeer::Network { cidr, except } => {
                cidr.fmt(f)?;
                let mut before = " except ";
                for network in except {
                    write!(f, "{before}{network}")?;
                    before = " and ";
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    const POLICIES: &str = r#"[{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "db"}, "spec": {
        "podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
                     "ports": [{"port": 5432}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}},
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "all",
                     "annotations": {"humanz.io/audit": "true"}},
        "spec": {"podSelector": {}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "db-0",
         "labels": {"app": "db"}}, "spec": {"nodeName": "n1"},
         "status": {"podIP": "10.1.2.3"}}]"#;

    #[test]
    fn a_policy_is_shown_in_words() {
        let read = documents::read(&documents::objects(POLICIES).unwrap(), true);
        assert_eq!(read.problems, []);
        let [all, db] = &policies(&read.rules)[..] else { panic!("two policies") };
        assert!(all.is_audited() && !db.is_audited());
        assert_eq!(db.applies_to(&read.endpoints.pods).len(), 1);
        assert_eq!(db.directions().len(), 2);
        for name in ["db", "shop/db", "NetworkPolicy shop/db"] {
            assert!(db.has_name(name) && !all.has_name(name), "{name}");
        }
        assert!(!db.has_name("shop") && !db.has_name(""));
        let text = |object: &PolicyObject<'_>| -> Vec<String> {
            object.rules.iter().map(|rule| format!("{}: {}", rule.direction, words(rule))).collect()
        };
        assert_eq!(
            text(db),
            [
                "ingress: allow tcp/5432 from pods app=web of namespace shop",
                "egress: allow everything to 10.0.0.0/8 except 10.1.0.0/16",
                "ingress: deny everything from anywhere",
                "egress: deny everything to anywhere",
            ]
        );
        let audited = "ingress: deny everything from anywhere (audited: decides nothing)";
        assert_eq!(text(all), [audited]);
    }
}
