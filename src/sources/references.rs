//! Pure. Names of groups, networks, policies and profiles in objects that stand in etcd, and those that nothing bears.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::net::gather::Gather;
use crate::net::nearest::nearest;
use crate::policy::read::fields::ObjectField;
use crate::policy::read::groups::scoped;
use crate::policy::{Networks, ObjectName, Scoped};
use crate::sources::stored::StoredName;

/// What `objects` refer to and do not hold: the object, and kind and name of what it misses. Fields that are not
/// understood refer to nothing; their readers report them.
pub fn dangling(
    objects: &BTreeMap<StoredName, Value>,
) -> BTreeSet<(StoredName, (&'static str, Scoped))> {
    let known: BTreeSet<(&str, Option<&ObjectName>, &ObjectName)> =
        objects.keys().map(|name| (name.kind.name, name.scope.as_ref(), &name.name)).gather();
    let mut dangling = BTreeSet::new();
    for (name, object) in objects {
        for (kind, wanted) in references(name, &object["spec"]) {
            if !known.contains(&(kind, Some(&wanted.tenant), &wanted.name)) {
                dangling.insert((name.clone(), (kind, wanted)));
            }
        }
    }
    dangling
}

impl StoredName {
    /// `; did you mean blue/front?`, if one of `known` is of one of these kinds and was probably meant by this name of the
    /// `scope`: it is like one there, or that of another one.
    pub fn meant<'a>(
        kinds: &[&str],
        (scope, name): (Option<&ObjectName>, &ObjectName),
        known: impl Iterator<Item = &'a StoredName>,
    ) -> Option<String> {
        let known = known.filter(|it| kinds.contains(&it.kind.name));
        let (own, others): (Vec<_>, Vec<_>) = known.partition(|it| it.scope.as_ref() == scope);
        let names: Vec<&str> = own.iter().map(|it| it.name.as_str()).collect();
        let near = nearest(name.as_str(), &names);
        let mut all = own.iter().filter(|it| Some(it.name.as_str()) == near);
        let same = || others.iter().find(|it| it.name == *name);
        Some(format!("; did you mean {}?", all.next().or_else(same)?.short()))
    }
}

/// The `objects` that refer to this one.
pub fn users(objects: &BTreeMap<StoredName, Value>, name: &StoredName) -> BTreeSet<StoredName> {
    let refers = |(by, object): &(&StoredName, &Value)| {
        references(by, &object["spec"]).iter().any(|(kind, wanted)| {
            *kind == name.kind.name
                && name.scope.as_ref() == Some(&wanted.tenant)
                && name.name == wanted.name
        })
    };
    objects.iter().filter(refers).map(|(by, _)| by.clone()).gather()
}

/// Kind and name of each object that this one refers to.
pub fn references(name: &StoredName, spec: &Value) -> Vec<(&'static str, Scoped)> {
    let spec = ObjectField::root(spec);
    let list = |field: &ObjectField<'_>, of: &str| -> Vec<Value> {
        let items = field.list(of).unwrap_or_default();
        items.iter().map(|item| item.value().clone()).collect()
    };
    let tenant = name.scope.clone().unwrap_or_else(|| tenant_of(&spec));
    let read = |value: &Value| scoped(&ObjectField::root(value), &tenant).ok();
    const MEMBERSHIP: [(&str, &str); 2] = [("Group", "group"), ("Network", "network")];
    let of = |value: &Value| MEMBERSHIP.map(|(kind, field)| (kind, value[field].clone()));
    let profile = || ("NetProfile", spec.value()["profile"].clone());
    let values: Vec<(&'static str, Value)> = match name.kind.name {
        "Group" => {
            let policies = list(&spec, "policies").into_iter();
            policies.map(|policy| ("GroupPolicy", policy)).chain([profile()]).collect()
        }
        "Network" => vec![profile()],
        "GroupPolicy" => list(&spec, "rules").iter().flat_map(|rule| of(&rule["peer"])).collect(),
        "NamespaceRule" => {
            let pods = list(&spec, "pods");
            pods.iter().chain([spec.value()]).flat_map(of).collect()
        }
        _ => return Vec::new(),
    };
    let own = ("Network", Networks::default_name());
    let named = values.iter().filter_map(|(kind, value)| Some((*kind, read(value)?)));
    named.filter(|one| *one != own).collect()
}

fn tenant_of(spec: &ObjectField<'_>) -> ObjectName {
    let given = spec.get("tenant").and_then(|tenant| tenant.name().ok());
    given.unwrap_or_else(|| Networks::default_name().tenant)
}
