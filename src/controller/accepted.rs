//! Pure. Whether a custom resource is understood, in the words of the hosts, which have the same reader.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::controller::condition::{IN_FORCE, NOT_UNDERSTOOD, StatusCondition};
use crate::controller::seen::SeenObject;
use crate::net::Problem;
use crate::policy::Scoped;
use crate::policy::read::documents;
use crate::sources::{Kind, StoredName, references};

/// The condition of `object`, which is no network, where `all` is what there is.
pub fn accepted(object: &SeenObject, all: &BTreeMap<StoredName, Value>) -> StatusCondition {
    let (name, read) = match &object.stored {
        Ok(stored) => stored,
        Err(why) => return StatusCondition::accepted(false, NOT_UNDERSTOOD, why),
    };
    let needed: Vec<&Value> = needed(name, read).iter().filter_map(|it| all.get(it)).collect();
    let known = problems(needed.iter().copied());
    let new = problems(needed.iter().copied().chain([read]));
    let faults: Vec<String> = new
        .into_iter()
        .filter(|problem| !known.contains(problem))
        .map(|problem| problem.what)
        .collect();
    match faults.is_empty() {
        true => StatusCondition::accepted(true, IN_FORCE, "hosts understand it"),
        false => StatusCondition::accepted(false, NOT_UNDERSTOOD, &faults.join("; ")),
    }
}

/// What it cannot do without; peers of rules and groups of namespaces may come later.
fn needed(name: &StoredName, object: &Value) -> Vec<StoredName> {
    if name.kind.name != "Group" {
        return Vec::new();
    }
    let named = references(name, &object["spec"]).into_iter();
    let stored =
        |(kind, name): (&str, Scoped)| StoredName::parse(Kind::find(kind)?, &name.to_string()).ok();
    named.filter_map(stored).collect()
}

fn problems<'a>(objects: impl Iterator<Item = &'a Value>) -> Vec<Problem> {
    documents::read(objects, false).problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::Resource;
    use serde_json::json;

    #[test]
    fn the_reader_of_the_hosts_decides() {
        let object = |resource, name: &str, spec: Value| {
            SeenObject::read(resource, &json!({"metadata": {"name": name}, "spec": spec}))
        };
        let objects = [
            object(
                Resource::Groups,
                "blue.db",
                json!({"policies": ["front", "gone"], "profile": "gold"}),
            ),
            object(Resource::Groups, "blue.web", json!({"policies": ["front"]})),
            object(Resource::Groups, "default.x", json!({})),
            object(
                Resource::GroupPolicies,
                "blue.front",
                json!({"rules": [{"direction": "in", "action": "maybe"}]}),
            ),
            object(Resource::NetProfiles, "blue.gold", json!({"dscp": 46})),
            object(Resource::NamespaceRules, "shop", json!({"tenants": "blue"})),
        ];
        let all: BTreeMap<StoredName, Value> =
            objects.iter().filter_map(|it| it.stored.clone().ok()).collect();
        let said: Vec<String> = objects.iter().map(|it| accepted(it, &all).shown()).collect();
        let has = |at: usize, words: &str| assert!(said[at].contains(words), "{:?}", said[at]);
        has(0, "policies[1]: policy blue/gone does not exist");
        assert_eq!(said[1], "accepted", "its policy says itself what is wrong with it");
        has(2, "the tenant default is left out");
        has(3, "maybe");
        assert_eq!(said[4], "accepted");
        has(5, "field \"tenants\" is not known");
    }
}
