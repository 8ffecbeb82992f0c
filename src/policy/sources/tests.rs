use super::*;
use crate::policy::members::Member;
use crate::policy::name::Scoped;
use crate::policy::read::documents;

fn update(policy: Option<&str>) -> SourceUpdate {
    let snapshot = policy.map(|name| {
        let policy = format!(
            "{{\"apiVersion\": \"networking.k8s.io/v1\", \"kind\": \"NetworkPolicy\", \
             \"metadata\": {{\"namespace\": \"shop\", \"name\": \"{name}\"}}, \"spec\": \
             {{\"podSelector\": {{}}}}}}"
        );
        let rules = documents::read(&documents::objects(&policy).unwrap(), true).rules;
        PolicySnapshot { rules, ..PolicySnapshot::default() }
    });
    SourceUpdate { provider: Provider::File, snapshot, problems: Vec::new() }
}

fn deny_from(apps: &[&str]) -> SourceUpdate {
    let policy = serde_json::json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"pods": {"namespaceSelector": {},
                "podSelector": {"matchExpressions":
                    [{"key": "app", "operator": "In", "values": apps}]}}}]}]},
    });
    let found = documents::read(&[policy], true);
    assert_eq!(found.problems, []);
    let snapshot = Some(PolicySnapshot { rules: found.rules, ..PolicySnapshot::default() });
    SourceUpdate { provider: Provider::File, snapshot, problems: Vec::new() }
}

fn groups(update: &SourceUpdate) -> BTreeSet<Selector> {
    update.snapshot.iter().flat_map(|said| denied(&said.rules)).collect()
}

/// Other hosts have this pod in each of `groups`.
fn members(groups: &BTreeSet<Selector>) -> Members {
    let addresses = vec!["10.1.9.9".parse().unwrap()];
    let found: BTreeSet<_> = [Member { addresses, ports: Vec::new() }].into();
    groups.iter().map(|group| (group.clone(), Arc::new(found.clone()))).collect()
}

fn none() -> PodDefaults {
    PodDefaults::default()
}

const SHARED: [Provider; 2] = [Provider::File, Provider::Members];

#[test]
fn a_source_that_loses_its_groups_takes_none_away_before_the_other_one_has_said_them() {
    const BOTH: [Provider; 2] = [Provider::Kubernetes, Provider::Etcd];
    let said = |provider, name: Option<&str>, without_objects| {
        let read = update(Some(name.unwrap_or("none"))).snapshot.unwrap();
        let rules = if name.is_some() { read.rules } else { Rules::default() };
        let snapshot = Some(PolicySnapshot { rules, without_objects, ..PolicySnapshot::default() });
        SourceUpdate { provider, snapshot, problems: Vec::new() }
    };
    let names = |policies: &Policies| -> Vec<String> {
        let rules = policies.snapshot().map(|known| known.rules.clone()).unwrap_or_default();
        let names: BTreeSet<String> =
            rules.iter().map(|rule| rule.origin.name.to_string()).collect();
        names.into_iter().collect()
    };
    let mut policies = Policies::default();
    policies.want(&BOTH, none());
    let at = SystemTime::UNIX_EPOCH;
    policies.take(said(Provider::Kubernetes, None, true), at);
    policies.take(said(Provider::Etcd, Some("of-etcd"), false), at);
    assert_eq!(names(&policies), ["of-etcd"]);
    // The setting has changed, and the API does not answer.
    policies.take(said(Provider::Etcd, None, true), at);
    assert_eq!(names(&policies), ["of-etcd"]);
    let of_sources = policies.of_sources().unwrap();
    assert!(
        Arc::ptr_eq(of_sources, policies.snapshot().unwrap()),
        "nor do other hosts learn of it"
    );
    assert!(policies.in_force().unwrap()[&Provider::Etcd].rules.iter().count() > 0);
    policies.take(said(Provider::Kubernetes, Some("of-api"), false), at);
    assert_eq!(names(&policies), ["of-api"]);
    // Back, and this time the new one is the first to speak.
    policies.take(said(Provider::Etcd, Some("of-etcd"), false), at);
    assert_eq!(names(&policies), ["of-api", "of-etcd"]);
    policies.take(said(Provider::Kubernetes, None, true), at);
    assert_eq!(names(&policies), ["of-etcd"]);
    // The API is followed no longer.
    policies.take(said(Provider::Kubernetes, Some("of-api"), false), at);
    policies.take(said(Provider::Etcd, None, true), at);
    policies.want(&BOTH[1..], none());
    assert_eq!(names(&policies), ["of-api"]);
}

#[test]
fn a_denied_group_is_not_left_before_the_members_of_the_next_one_are_known() {
    let mut policies = Policies::default();
    policies.want(&SHARED, none());
    let (former, new) = (deny_from(&["bad"]), deny_from(&["bad", "worse"]));
    policies.take(former.clone(), SystemTime::UNIX_EPOCH);
    assert!(policies.snapshot().is_none() && policies.in_force().is_none());
    assert!(policies.take_members(members(&groups(&former)), &BTreeSet::new(), Vec::new()));
    let before = policies.snapshot().unwrap().clone();
    assert_eq!(before.members, members(&groups(&former)));
    assert_eq!(policies.problems().count(), 0);

    policies.take(new.clone(), SystemTime::UNIX_EPOCH);
    assert_eq!(policies.snapshot(), Some(&before));
    assert_eq!(policies.of_sources().unwrap().rules, new.snapshot.as_ref().unwrap().rules);
    let problems: Vec<_> = policies.problems().map(|problem| problem.what).collect();
    assert!(problems.len() == 1 && problems[0].contains("the former ones hold"), "{problems:?}");
    // etcd is away: the former group is needed no longer, and the new one has not been read.
    policies.take_members(Members::new(), &groups(&new), Vec::new());
    assert_eq!(policies.snapshot(), Some(&before));

    // What is kept meanwhile is what is in force, and a start does not change that.
    let kept = policies.in_force().unwrap().into_iter();
    let kept = kept.map(|(provider, said)| (provider, said.clone())).collect();
    let mut restarted = Policies::kept(kept, &SHARED, none());
    assert_eq!(restarted.snapshot(), Some(&before));
    restarted.take(new.clone(), SystemTime::UNIX_EPOCH);
    assert_eq!(restarted.snapshot(), Some(&before));

    // Of a host it is not known which members it has.
    policies.take_members(members(&groups(&new)), &groups(&new), Vec::new());
    assert_eq!(policies.snapshot(), Some(&before));

    assert!(policies.take_members(members(&groups(&new)), &BTreeSet::new(), Vec::new()));
    let after = policies.snapshot().unwrap();
    assert_eq!(after.rules, new.snapshot.as_ref().unwrap().rules);
    assert_eq!(after.members, members(&groups(&new)));
    assert_eq!(policies.problems().count(), 0);
}

#[test]
fn policies_that_were_kept_without_the_members_that_they_deny_do_not_hold() {
    let rules = deny_from(&["bad"]).snapshot.unwrap();
    let kept = Policies::kept([(Provider::File, rules.clone())].into(), &SHARED, none());
    assert_eq!(kept.snapshot(), None);
    let alone = Policies::kept([(Provider::File, rules)].into(), &[Provider::File], none());
    assert!(alone.snapshot().is_some());
}

fn take(policies: &mut Policies, policy: Option<&str>) -> bool {
    policies.take(update(policy), SystemTime::UNIX_EPOCH)
}

#[test]
fn what_cannot_be_used_leaves_the_last_valid_snapshot() {
    let mut policies = Policies::default();
    assert!(!take(&mut policies, None) && policies.snapshot().is_none());
    assert!(take(&mut policies, Some("a")));
    assert!(!take(&mut policies, Some("a")), "nothing changed");
    assert!(!take(&mut policies, None) && policies.snapshot().is_some());
    assert!(take(&mut policies, Some("b")));
}

#[test]
fn a_network_that_is_not_understood_any_longer_stays_as_it_was() {
    let said = |spec: &str| {
        let object = format!(
            "{{\"apiVersion\": \"humanz.io/v1\", \"kind\": \"Network\", \"metadata\": \
             {{\"tenant\": \"blue\", \"name\": \"front\"}}, \"spec\": {spec}}}"
        );
        let read = documents::read(&documents::objects(&object).unwrap(), true);
        let networks = read.networks;
        let snapshot = Some(PolicySnapshot { networks, ..PolicySnapshot::default() });
        SourceUpdate { provider: Provider::Etcd, snapshot, problems: read.problems }
    };
    let mut policies = Policies::default();
    policies.take(said("{\"subnets\": [\"10.1.0.0/16\"]}"), SystemTime::UNIX_EPOCH);
    let rules = |policies: &Policies| policies.snapshot().unwrap().rules.clone();
    let before = rules(&policies);
    assert!(!before.is_empty());
    policies.take(said("{\"subnets\": \"all\"}"), SystemTime::UNIX_EPOCH);
    assert_eq!(rules(&policies), before);
    assert_eq!(policies.problems().count(), 1);
}

/// A ClusterNetworkPolicy in etcd with `field` of its `spec` as `value`.
fn cluster_wide(field: &str, value: serde_json::Value) -> SourceUpdate {
    let peer = |app: &str| serde_json::json!([{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}}]);
    let mut object = serde_json::json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "p"},
        "spec": {"tier": "Baseline", "priority": 7, "subject": {"namespaces": {}},
            "ingress": [{"action": "Accept", "from": peer("a")}, {"action": "Pass", "from": peer("b")},
                {"action": "Deny", "from": peer("c")}],
            "egress": [{"action": "Accept", "to": peer("a")}]},
    });
    match field {
        "" => object["spec"] = value,
        field => object["spec"][field] = value,
    }
    let read = documents::read(&[object], true);
    let (rules, unread) = (read.rules, read.unread);
    let snapshot = Some(PolicySnapshot { rules, unread, ..PolicySnapshot::default() });
    SourceUpdate { provider: Provider::Etcd, snapshot, problems: read.problems }
}

/// What makes it one that is not understood as a whole, and what is left of its rules.
fn broken() -> [(&'static str, serde_json::Value, &'static [&'static str]); 8] {
    use serde_json::json;
    const DENIED: &[&str] = &["Baseline 0 ClusterNetworkPolicy p ingress rule 2"];
    const ADMIN: &[&str] = &["Admin 7 ClusterNetworkPolicy p ingress rule 2"];
    [
        ("", json!("not understood"), &[]),
        ("subject", json!({"namespaces": 7}), &[]),
        ("subject", json!({"namespaces": {}, "pods": {}}), &[]),
        ("tier", json!("Moon"), ADMIN),
        ("priority", json!(1001), DENIED),
        ("priority", json!(null), DENIED),
        (
            "ingress",
            json!("all"),
            &[
                "Baseline 7 ClusterNetworkPolicy p egress rule 0",
                "Baseline 7 ClusterNetworkPolicy p ingress default",
            ],
        ),
        (
            "egress",
            json!({}),
            &[
                "Baseline 7 ClusterNetworkPolicy p egress default",
                "Baseline 7 ClusterNetworkPolicy p ingress rule 0",
                "Baseline 7 ClusterNetworkPolicy p ingress rule 1",
                "Baseline 7 ClusterNetworkPolicy p ingress rule 2",
            ],
        ),
    ]
}

#[test]
fn a_cluster_wide_policy_that_is_not_understood_any_longer_stays_as_it_was() {
    let at = SystemTime::UNIX_EPOCH;
    let rules = |policies: &Policies| policies.snapshot().unwrap().rules.clone();
    let good = || cluster_wide("tier", serde_json::json!("Admin"));
    for (field, value, _) in broken() {
        let mut policies = Policies::default();
        policies.take(good(), at);
        let before = rules(&policies);
        assert_eq!(before.iter().count(), 4);
        policies.take(cluster_wide(field, value.clone()), at);
        assert_eq!(rules(&policies), before, "{field}: {value}");
        let problems: Vec<Problem> = policies.problems().collect();
        assert!(problems[0].what.contains("its rules of before hold"), "{problems:?}");
        // It is broken in another way, and the agent is started again.
        policies.take(cluster_wide("subject", serde_json::json!(7)), at);
        let kept = policies
            .in_force()
            .unwrap()
            .into_iter()
            .map(|(provider, said)| (provider, said.clone()));
        let mut policies = Policies::kept(kept.collect(), &[Provider::Etcd], none());
        policies.take(cluster_wide(field, value.clone()), at);
        assert_eq!(rules(&policies), before, "{field}: {value}");
        // What is understood again holds, and nothing of before comes back.
        policies.take(cluster_wide("ingress", serde_json::json!([])), at);
        assert_eq!(rules(&policies).iter().count(), 1);
        policies.take(SourceUpdate { snapshot: Some(PolicySnapshot::default()), ..good() }, at);
        policies.take(cluster_wide("subject", serde_json::json!(7)), at);
        assert_eq!(rules(&policies), Rules::default(), "it was removed");
    }
}

#[test]
fn of_a_cluster_wide_policy_that_was_never_understood_what_closes_is_left() {
    for (field, value, left) in broken() {
        let case = format!("{field}: {value}");
        let mut policies = Policies::default();
        // The second time nothing of the first is taken for what was understood.
        for (field, value) in [("ingress", serde_json::json!(7)), (field, value)] {
            policies.take(cluster_wide(field, value), SystemTime::UNIX_EPOCH);
        }
        let rules = &policies.snapshot().unwrap().rules;
        let found = rules.iter().map(|rule| format!("{:?} {} {rule}", rule.tier, rule.priority));
        let mut found: Vec<String> = found.collect();
        found.sort();
        assert_eq!(found, left, "{case}");
        let closing = rules.iter().filter(|rule| rule.origin.index.is_none());
        assert!(
            closing.clone().all(|rule| rule.verdict == PolicyVerdict::Deny && rule.peers.is_none())
        );
    }
}

#[test]
fn a_source_that_is_away_is_no_longer_healthy_and_keeps_the_time_of_what_holds() {
    let mut policies = Policies::default();
    let state = |policies: &Policies| policies.states(&[Provider::File]).remove(0);
    assert_eq!(state(&policies), SourceState::silent(Provider::File));
    take(&mut policies, Some("a"));
    let before = state(&policies);
    assert_eq!((before.healthy, before.read), (true, Some(SystemTime::UNIX_EPOCH)));
    assert_eq!(before.policies.len(), 1);
    let away = Problem::new(ProblemKind::KubernetesApi, Object::named("pods"), "away");
    let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9);
    policies.take(SourceUpdate { problems: vec![away], ..update(Some("b")) }, later);
    let after = state(&policies);
    assert_eq!((after.healthy, after.holds, after.problems), (false, true, 1));
    assert_eq!(after.read, before.read);
    assert_ne!(after.policies, before.policies);
}

#[test]
fn a_group_of_the_settings_that_does_not_exist_is_one_problem_once_all_sources_are_known() {
    let group = |name: &str| {
        let group = Some(Scoped::parse(name, &"default".parse().unwrap()).unwrap());
        PodDefaults { group, ..PodDefaults::default() }
    };
    let said = |provider, name: &str| {
        let object = serde_json::json!({"apiVersion": "humanz.io/v1", "kind": "Group",
            "metadata": {"tenant": "default", "name": name}, "spec": {}});
        let profiles = documents::read(&[object], true).profiles;
        let snapshot = Some(PolicySnapshot { profiles, ..PolicySnapshot::default() });
        SourceUpdate { provider, snapshot, problems: Vec::new() }
    };
    let mut policies = Policies::default();
    let sources = [Provider::File, Provider::Etcd];
    policies.want(&sources, group("base"));
    let problems = |policies: &Policies| -> Vec<String> {
        policies.problems().map(|problem| problem.what).collect()
    };
    policies.take(said(Provider::File, "web"), SystemTime::now());
    assert_eq!(problems(&policies), [""; 0], "etcd may have it");
    policies.take(said(Provider::Etcd, "base"), SystemTime::now());
    assert_eq!(problems(&policies), [""; 0]);
    policies.want(&sources, group("blue/base"));
    let wanted = "POLICY_GROUP=blue/base: there is no such group: pods that nothing else puts into one are judged as \
                  without a group";
    assert_eq!(problems(&policies), [wanted]);
    policies.want(&sources, none());
    assert_eq!(problems(&policies), [""; 0]);
}
