//! Pure. Names of groups and policies in objects that stand in etcd, and those that nothing bears.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::policy::read::fields::ObjectField;
use crate::policy::read::groups::scoped;
use crate::policy::{Networks, ObjectName, Scoped};
use crate::sources::stored::StoredName;

/// What `objects` refer to and do not hold: the object, and what it misses. Fields that are not understood
/// refer to nothing; their readers report them.
pub fn dangling(objects: &BTreeMap<StoredName, Value>) -> BTreeSet<(StoredName, String)> {
    let known: BTreeSet<(&str, Option<&ObjectName>, &ObjectName)> =
        objects.keys().map(|name| (name.kind.name, name.scope.as_ref(), &name.name)).collect();
    let mut dangling = BTreeSet::new();
    for (name, object) in objects {
        for (kind, wanted) in references(name, &object["spec"]) {
            if !known.contains(&(kind, Some(&wanted.tenant), &wanted.name)) {
                dangling.insert((name.clone(), format!("{kind} {wanted} does not exist")));
            }
        }
    }
    dangling
}

/// Kind and name of each object that this one refers to.
fn references(name: &StoredName, spec: &Value) -> Vec<(&'static str, Scoped)> {
    let spec = ObjectField::root(spec);
    let list = |field: &ObjectField<'_>, of: &str| -> Vec<Value> {
        let items = field.list(of).unwrap_or_default();
        items.iter().map(|item| item.value().clone()).collect()
    };
    let tenant = name.scope.clone().unwrap_or_else(|| tenant_of(&spec));
    let read = |value: &Value| scoped(&ObjectField::root(value), &tenant).ok();
    let (kind, values): (_, Vec<Value>) = match name.kind.name {
        "Group" => ("GroupPolicy", list(&spec, "policies")),
        "GroupPolicy" => {
            let rules = list(&spec, "rules").into_iter();
            ("Group", rules.map(|rule| rule["peer"]["group"].clone()).collect())
        }
        "NamespaceRule" => {
            let pods = list(&spec, "pods").into_iter().map(|pod| pod["group"].clone());
            let all = spec.get("group").map(|group| group.value().clone());
            ("Group", pods.chain(all).collect())
        }
        _ => return Vec::new(),
    };
    values.iter().filter_map(|value| Some((kind, read(value)?))).collect()
}

fn tenant_of(spec: &ObjectField<'_>) -> ObjectName {
    let given = spec.get("tenant").and_then(|tenant| tenant.name().ok());
    given.unwrap_or_else(|| Networks::default_name().tenant)
}
