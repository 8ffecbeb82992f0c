//! Pure. What of a change is as it was typed, and perhaps not as it was meant.

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::command::objects::edit::StoredObjects;
use crate::net::subnet;
use crate::policy::read::documents::NAMESPACE_RULE;
use crate::policy::read::fields::{ObjectField, quoted};
use crate::policy::read::groups::scoped;
use crate::policy::{Networks, Scoped};
use crate::sources::{Change, StoredName};

/// Kinds of what the rule of a namespace allows.
const ALLOWED: [&str; 2] = ["Group", "Network"];

/// What makes one.
const MAKE: &str =
    ": group create or net create makes it (group ls and net ls have those that are there)";

/// Of the objects that `change` puts, with those that are `there`.
pub fn notes(change: &Change, there: &StoredObjects) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, object) in &change.put {
        let spec = &object["spec"];
        if name.kind.name == NAMESPACE_RULE {
            let known = || change.put.keys().chain(there.keys());
            let is_there = |wanted: &Scoped| {
                known().any(|known| {
                    ALLOWED.contains(&known.kind.name)
                        && known.scope.as_ref() == Some(&wanted.tenant)
                        && known.name == wanted.name
                })
            };
            let missing = allowed(spec).into_iter().filter(|one| !is_there(one));
            notes.extend(missing.map(|one| {
                let near = StoredName::meant(&ALLOWED, (Some(&one.tenant), &one.name), known());
                let near = near.as_deref().unwrap_or(MAKE);
                format!("{name}: allow: there is no group or network {one}{near}")
            }));
        }
        masked(spec, &mut |text, read| {
            notes.push(format!("{name}: {} is read as {read}", quoted(text)));
        });
    }
    notes
}

/// What `change` lets pods do if it takes out the last of this number of rules of namespaces.
pub fn freed(change: &Change, there: &StoredObjects, rules: usize) -> Option<String> {
    let is_rule = |name: &&StoredName| name.kind.name == NAMESPACE_RULE;
    let removed = change.remove.iter().filter(is_rule).count();
    let is_last = removed > 0 && removed == rules && !change.put.keys().any(|it| is_rule(&it));
    let is_choice =
        |name: &StoredName| ALLOWED.contains(&name.kind.name) && !change.remove.contains(name);
    (is_last && there.keys().any(is_choice)).then(|| {
        "there is no NamespaceRule any more: pods of all namespaces choose their group and network freely".to_owned()
    })
}

/// What the rule of a namespace allows by name. What is not understood of it is refused elsewhere.
fn allowed(spec: &Value) -> Vec<Scoped> {
    let own = Networks::default_name();
    let spec = ObjectField::root(spec);
    let tenant = spec.get("tenant").and_then(|tenant| tenant.name().ok());
    let tenant = tenant.unwrap_or_else(|| own.tenant.clone());
    let typed = spec.list("allow").unwrap_or_default();
    let named = typed.iter().filter_map(|field| scoped(field, &tenant).ok());
    named.filter(|one| *one != own).collect()
}

/// Subnets with host bits, and how they are read: Kubernetes accepts and ignores these, too.
fn masked(value: &Value, note: &mut dyn FnMut(&str, IpNetwork)) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match (field.as_str(), value) {
                    ("cidr", Value::String(text)) => has_host_bits(text, note),
                    ("except", Value::Array(all)) => {
                        let texts = all.iter().filter_map(Value::as_str);
                        texts.for_each(|text| has_host_bits(text, note));
                    }
                    (_, value) => masked(value, note),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| masked(value, note)),
        _ => {}
    }
}

fn has_host_bits(text: &str, note: &mut dyn FnMut(&str, IpNetwork)) {
    let typed = text.contains('/').then(|| text.parse::<IpNetwork>().ok()).flatten();
    let read = typed.map(subnet::masked);
    if let Some(read) = read.filter(|read| Some(*read) != typed) {
        note(text, read);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_be_meant_otherwise_is_noted() {
        let own = |kind: &str, name: &str, spec: Value| {
            json!({"apiVersion": "humanz.io/v1", "kind": kind,
                "metadata": {"name": name, "tenant": "blue"}, "spec": spec})
        };
        let object = |kind: &str, name: &str| own(kind, name, json!({}));
        let there = Change::put(vec![object("Group", "web")]).unwrap().put;
        let allow =
            json!(["web", "front", "*", "default/default", "web2", "green/web", "db", "a b"]);
        let rule = json!({"apiVersion": "humanz.io/v1", "kind": "NamespaceRule",
            "metadata": {"name": "shop"}, "spec": {"tenant": "blue", "allow": allow}});
        let peer = json!({"cidr": "10.1.2.3/8", "except": ["10.2.0.0/16", "10.3.0.1/16"]});
        let rules = json!([{"direction": "in", "action": "allow", "peer": peer},
            {"direction": "in", "action": "deny", "peer": {"cidr": "fd00::/8"}},
            {"direction": "in", "action": "deny", "peer": {"cidr": "10.1.2.3"}}]);
        let policy = own("GroupPolicy", "p", json!({"rules": rules}));
        let change = Change::put(vec![object("Network", "front"), rule, policy]).unwrap();
        let wanted = [
            "GroupPolicy blue/p: \"10.1.2.3/8\" is read as 10.0.0.0/8",
            "GroupPolicy blue/p: \"10.3.0.1/16\" is read as 10.3.0.0/16",
            "NamespaceRule shop: allow: there is no group or network blue/web2; did you mean blue/web?",
            "NamespaceRule shop: allow: there is no group or network green/web; did you mean blue/web?",
            "NamespaceRule shop: allow: there is no group or network blue/db: group create or net create makes it \
             (group ls and net ls have those that are there)",
        ];
        assert_eq!(notes(&change, &there), wanted);
    }

    #[test]
    fn the_end_of_the_last_rule_of_a_namespace_is_noted_where_there_is_something_to_choose() {
        let object = |kind: &str, metadata: Value| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": metadata, "spec": {}});
        let [shop, bank] =
            ["shop", "bank"].map(|name| object("NamespaceRule", json!({"name": name})));
        let group = object("Group", json!({"name": "web", "tenant": "blue"}));
        let put = |objects: &[&Value]| {
            Change::put(objects.iter().copied().cloned().collect()).unwrap().put
        };
        let there = put(&[&shop, &group]);
        let taken = |removed: &[&Value], added: &[&Value]| Change {
            remove: put(removed).into_keys().collect(),
            put: put(added),
            custom: None,
        };
        let note = freed(&taken(&[&shop], &[]), &there, 1);
        assert!(note.is_some_and(|note| note.contains("choose their group and network freely")));
        assert_eq!(freed(&taken(&[&shop], &[]), &there, 2), None, "one that is not understood");
        assert_eq!(freed(&taken(&[&shop], &[&bank]), &there, 1), None);
        assert_eq!(freed(&taken(&[&shop, &group], &[]), &there, 1), None, "nothing to choose");
        assert_eq!(freed(&taken(&[&group], &[]), &there, 1), None);
        assert_eq!(freed(&taken(&[], &[]), &there, 0), None);
    }
}
