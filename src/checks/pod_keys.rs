//! Pure. Pods whose annotations or labels look like ours, and have no effect.

use std::collections::{BTreeMap, BTreeSet};

use crate::cni::pod_keys::{UnknownKey, unknown};
use crate::net::problem::LISTED_FIRST;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::view::View;

/// Pods that are reported, and keys of each.
const PODS: usize = 100;
const KEYS: usize = 3;

/// One problem for each such pod of this host, by what its runtime and the source of policies say of it.
pub fn pod_keys(view: &View) -> Vec<Problem> {
    let mut found: BTreeMap<String, BTreeSet<UnknownKey>> = BTreeMap::new();
    let mut note = |pod: String, keys: &mut dyn Iterator<Item = UnknownKey>| {
        let keys: Vec<UnknownKey> = keys.collect();
        if !keys.is_empty() {
            found.entry(pod).or_default().extend(keys);
        }
    };
    for pod in view.pods.iter() {
        let name = pod.pod.clone().unwrap_or_else(|| pod.container_id.clone());
        let annotations = pod.annotations.keys().map(String::as_str);
        note(name, &mut unknown(annotations, pod.labels.keys().map(String::as_str)));
    }
    for pod in view.known.iter().flat_map(|known| &known.pods).filter(|it| it.host == view.host) {
        let annotations = pod.annotations.keys().map(AsRef::as_ref);
        note(pod.to_string(), &mut unknown(annotations, pod.labels.keys().map(AsRef::as_ref)));
    }
    let more = found.len().saturating_sub(PODS);
    let mut problems: Vec<Problem> =
        found.iter().take(PODS).map(|(pod, keys)| problem(pod, keys)).collect();
    if more > 0 {
        let what = format!("{more} more pods have annotations or labels that are not known");
        let problem = Problem::new(ProblemKind::UnknownPodKey, Object::named("pods"), what);
        problems.push(problem.with_fix(LISTED_FIRST));
    }
    problems
}

fn problem(pod: &str, keys: &BTreeSet<UnknownKey>) -> Problem {
    let shown: Vec<String> = keys.iter().take(KEYS).map(ToString::to_string).collect();
    let more = match keys.len().saturating_sub(KEYS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!("{}{more} of pod {pod} has no effect: it is not known", shown.join(", "));
    let problem = Problem::new(ProblemKind::UnknownPodKey, Object::Pod(pod.to_owned()), what);
    match keys.first() {
        Some(first) => problem.with_fix(first.hint()),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::policy::ask::LocalPod;

    fn view(pods: Vec<LocalPod>) -> View {
        View {
            host: "n1".parse().unwrap(),
            subnets: Vec::new(),
            sources: Vec::new(),
            known: None,
            pods: pods.into(),
            held: BTreeMap::new(),
            not_in_force: BTreeSet::new(),
            unjudged: false,
        }
    }

    fn pod(at: usize, annotations: &[&str]) -> LocalPod {
        let pod = LocalPod::in_shop(&format!("c{at}"), &format!("web{at:03}"), "10.1.2.3");
        let annotations = annotations.iter().map(|key| ((*key).to_owned(), String::new()));
        LocalPod { annotations: annotations.collect(), ..pod }
    }

    #[test]
    fn a_pod_is_reported_with_what_was_meant() {
        let fine = pod(1, &["humanz.io/group", "io.contiv.network", "other"]);
        let found = pod_keys(&view(vec![fine, pod(2, &["humanz.io/gruop"])]));
        let [problem] = &found[..] else { panic!("{found:?}") };
        assert_eq!(problem.subject, Object::Pod("shop/web002".to_owned()));
        let what =
            "annotation \"humanz.io/gruop\" of pod shop/web002 has no effect: it is not known";
        assert_eq!(problem.what, what);
        assert_eq!(problem.fix.as_deref(), Some("did you mean humanz.io/group?"));
    }

    #[test]
    fn many_keys_of_many_pods_are_a_bounded_list() {
        let keys: Vec<String> = (0..64).map(|at| format!("humanz.io/x{at}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = pod_keys(&view((0..300).map(|at| pod(at, &keys)).collect()));
        assert_eq!(found.len(), PODS + 1);
        assert!(found[0].what.contains(" and 61 more of pod shop/web000"), "{}", found[0].what);
        assert!(found.iter().all(|it| it.what.len() < 200));
        assert!(found[PODS].what.starts_with("200 more pods"), "{}", found[PODS].what);
    }
}
