//! Pure. Which policies have rules for each pod of this host, as its agent knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::net::gather::Gather;
use crate::policy::ask::LocalPod;
use crate::policy::view::{Quarantined, View, WithoutPolicies};
use crate::policy::{Direction, Endpoint, Origin, Rules, Selector, Tier};

/// Policies of a pod that are listed for a direction.
const LISTED: usize = 10;

/// The objects with rules for what a selector finds, in the order in which they are judged.
type PolicyObjects = BTreeSet<(Tier, Origin)>;

/// One for each interface of a pod: `network`, `container`, `interface`; `ingress` and `egress`, the policies that
/// decide there; else `quarantine`, why no rule decides, or `unknown`.
pub fn pod_policies(view: &View) -> Vec<Value> {
    let quarantined = view.quarantined();
    let held: BTreeMap<&[IpAddr], &Quarantined> =
        quarantined.iter().map(|one| (&one.addresses[..], one)).gather();
    let described = view.endpoints();
    let described: BTreeMap<&[IpAddr], &Endpoint> =
        described.iter().map(|endpoint| (&endpoint.addresses[..], endpoint)).gather();
    let subjects = view.known.as_ref().map(|known| subjects(&known.rules)).unwrap_or_default();
    let judged = |pod: &LocalPod| {
        let endpoint = described.get(&pod.addresses[..]);
        let of = |way| endpoint.map(|endpoint| listed(&subjects, way, endpoint));
        let unknown = view.without_policies().map(unknown);
        let held = held.get(&pod.addresses[..]).map(|one| one.reason.to_string());
        json!({
            "network": pod.network,
            "container": pod.container_id,
            "interface": pod.ifname,
            "ingress": of(Direction::Ingress),
            "egress": of(Direction::Egress),
            "quarantine": held,
            "unknown": unknown,
        })
    };
    view.pods.iter().map(|pod| judged(pod)).collect()
}

fn unknown(without: WithoutPolicies) -> &'static str {
    match without {
        WithoutPolicies::NotJudged => "not judged, every packet passes: none could be read yet",
        WithoutPolicies::AsBefore => {
            "cannot be known: the kernel's table of before holds, and none could be read yet"
        }
    }
}

/// The objects whose rules decide, by direction and by what they select.
fn subjects(rules: &Rules) -> BTreeMap<(Direction, &Selector), PolicyObjects> {
    let mut subjects: BTreeMap<(Direction, &Selector), PolicyObjects> = BTreeMap::new();
    for rule in rules.enforced() {
        let objects = subjects.entry((rule.direction, &rule.subject)).or_default();
        objects.insert((rule.tier, rule.origin.object()));
    }
    subjects
}

fn listed(
    subjects: &BTreeMap<(Direction, &Selector), PolicyObjects>,
    way: Direction,
    pod: &Endpoint,
) -> Vec<String> {
    let selects = |of: &Direction, subject: &Selector| *of == way && subject.matches_pod(pod);
    let found = subjects.iter().filter(|((of, subject), _)| selects(of, subject));
    let found: BTreeSet<&(Tier, Origin)> = found.flat_map(|(_, objects)| objects).gather();
    let mut listed: Vec<String> =
        found.iter().take(LISTED).map(|(_, origin)| origin.to_string()).collect();
    if found.len() > LISTED {
        listed.push(format!("{} more", found.len() - LISTED));
    }
    listed
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::policy::PolicySnapshot;
    use crate::policy::held::HeldReason;
    use crate::policy::read::documents;
    use crate::policy::view::Held;

    fn policy(name: &str, app: &str, ways: &[&str]) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ways}})
    }

    /// A host with the pods shop/web and shop/db, which policies know if there are any.
    fn view(policies: Option<&[Value]>) -> View {
        let pods = [("web", "10.1.2.3"), ("db", "10.1.2.4")];
        let described = pods.map(|(name, address)| {
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1"},
                "status": {"podIP": address},
                "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}}})
        });
        let known = policies.map(|policies| {
            let read = documents::read(&[policies, &described].concat(), true);
            assert_eq!(read.problems, []);
            let pods = read.endpoints.pods;
            PolicySnapshot { rules: read.rules, pods, ..PolicySnapshot::default() }
        });
        let pods = pods.map(|(name, address)| LocalPod::in_shop(name, name, address));
        View::of_node(known, pods.into())
    }

    /// `fields` of the pods db and web.
    fn check(view: &View, fields: &[&str], wanted: &Value) {
        let found = pod_policies(view);
        let found = found.iter().map(|pod| fields.iter().map(|field| &pod[field]).collect());
        assert_eq!(json!(found.collect::<Vec<Vec<&Value>>>()), *wanted);
    }

    #[test]
    fn a_pod_has_the_policies_that_select_it_in_each_direction() {
        let policies = [
            policy("db", "db", &["Ingress"]),
            policy("both", "db", &["Ingress", "Egress"]),
            policy("none", "other", &["Ingress"]),
        ];
        let both = "NetworkPolicy shop/both";
        check(
            &view(Some(&policies)),
            &["container", "ingress", "egress", "quarantine", "unknown"],
            &json!([
                ["db", [both, "NetworkPolicy shop/db"], [both], null, null],
                ["web", [], [], null, null],
            ]),
        );
    }

    #[test]
    fn of_many_policies_ten_are_listed() {
        let policies: Vec<Value> =
            (10..23).map(|n| policy(&format!("p{n}"), "db", &["Ingress"])).collect();
        let found = pod_policies(&view(Some(&policies)));
        let listed = found[0]["ingress"].as_array().unwrap();
        assert_eq!((listed.len(), &listed[10]), (11, &json!("3 more")));
    }

    #[test]
    fn of_a_pod_in_quarantine_the_reason_is_known() {
        let mut view = view(Some(&[]));
        let held = Held { reason: HeldReason::FormerOwner, since: SystemTime::UNIX_EPOCH };
        view.held.insert("db".to_owned(), held);
        let why = HeldReason::FormerOwner.to_string();
        check(&view, &["quarantine"], &json!([[why], [null]]));
    }

    #[test]
    fn without_any_policies_it_is_said_what_holds() {
        let mut view = view(None);
        let before =
            "cannot be known: the kernel's table of before holds, and none could be read yet";
        check(&view, &["unknown", "ingress"], &json!([[before, null], [before, null]]));
        view.unjudged = true;
        let passes = "not judged, every packet passes: none could be read yet";
        check(&view, &["unknown", "ingress"], &json!([[passes, null], [passes, null]]));
    }
}
