//! Pure. Namespaces that no policy concerns: what their pods may do is known without knowing the pods.

use crate::policy::endpoint::Namespace;
use crate::policy::members;
use crate::policy::rule::{PolicyVerdict, Rule, Rules};

/// No rule has any pod of `namespace` as its subject, nor as a peer that it denies: a pod that is not among
/// a rule's peers yet would pass by that rule.
pub fn is_free(rules: &Rules, namespace: &Namespace) -> bool {
    !rules.enforced().any(|rule| concerns(rule, namespace))
}

fn concerns(rule: &Rule, namespace: &Namespace) -> bool {
    let denies = || match rule.verdict {
        PolicyVerdict::Allow => false,
        PolicyVerdict::Deny | PolicyVerdict::Pass => {
            members::peers([rule]).iter().any(|peer| peer.may_match_namespace(namespace))
        }
    };
    rule.subject.may_match_namespace(namespace) || denies()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::policy::read::documents;

    const SHOP: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop",
        "name": "web"}, "spec": {"nodeName": "n1"}, "status": {"podIP": "10.1.2.3"}}"#;
    const OTHER: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "other",
        "name": "web"}, "spec": {"nodeName": "n1"}, "status": {"podIP": "10.1.2.4"}}"#;

    fn policy(spec: &str) -> String {
        format!(
            r#"{{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata":
            {{"namespace": "shop", "name": "p"}}, "spec": {spec}}}"#
        )
    }

    fn admin(rule: &str) -> String {
        format!(
            r#"{{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {{"name": "p"}}, "spec": {{"tier": "Admin", "priority": 1, "subject":
            {{"namespaces": {{"matchLabels": {{"kubernetes.io/metadata.name": "shop"}}}}}},
            {rule}}}}}"#
        )
    }

    fn check(policy: &str, wanted: &[&str]) {
        let documents =
            documents::read(&documents::objects(&[SHOP, OTHER, policy].concat()).unwrap(), true);
        assert_eq!(documents.problems, []);
        let pods = documents.endpoints.pods.iter();
        let found = pods.filter(|pod| is_free(&documents.rules, &pod.namespace));
        let found: BTreeSet<&str> = found.map(|pod| pod.namespace.name().as_str()).collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), wanted, "{policy}");
    }

    #[test]
    fn a_namespace_is_free_of_policies_that_neither_judge_nor_deny_its_pods() {
        check("", &["other", "shop"]);
        check(&policy(r#"{"podSelector": {"matchLabels": {"app": "db"}}}"#), &["other"]);
        let from = r#""from": [{"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}]"#;
        let rule = |action: &str| format!(r#""ingress": [{{"action": "{action}", {from}}}]"#);
        check(&admin(&rule("Accept")), &["other"]);
        check(&admin(&rule("Deny")), &[]);
        check(&admin(&rule("Pass")), &[]);
    }
}
