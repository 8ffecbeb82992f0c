//! Pure. Custom resources of the group `humanz.io` as the objects that etcd has: the same reader is for both.
//!
//! They belong to the whole cluster: what an owner of a namespace may write in it gives its pods no group and no
//! network. A name is unique there, so it has the tenant: `blue.web` is `web` of the tenant `blue`, and `web` alone
//! is of the tenant `default`. A NamespaceRule is called as its namespace.

use serde_json::{Value, json};

use crate::kube::Resource;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::network::DEFAULT;
use crate::policy::read::documents::Documents;
use crate::policy::read::fields::{Fault, ObjectField, quoted};

/// The object that is kept in etcd in its place; its reader judges `spec`.
///
/// # Errors
/// It has no name that stands for one object of the cluster.
pub fn document(resource: Resource, object: &Value) -> Result<Value, Fault> {
    let metadata = ObjectField::root(object).need("metadata")?;
    if let Some(namespace) = metadata.get("namespace") {
        return Err(namespace.fault("is of a namespace, whose owners may write it: not read"));
    }
    let field = metadata.need("name")?;
    let text = field.text()?;
    let names = match text.split_once('.') {
        Some(_) if resource == Resource::NamespaceRules => {
            return Err(field.fault("is not the name of a namespace"));
        }
        Some((DEFAULT, name)) => {
            let why = format!("the tenant {DEFAULT} is left out of names: {}", quoted(name));
            return Err(field.fault(why));
        }
        Some((tenant, name)) => json!({"tenant": tenant, "name": name}),
        None => json!({"name": text}),
    };
    let spec = object.get("spec").unwrap_or(&Value::Null);
    Ok(
        json!({"apiVersion": "humanz.io/v1", "kind": resource.kind(), "metadata": names, "spec": spec}),
    )
}

/// Without networks of tenants: the pods of a namespace that should be in one stay in quarantine.
pub fn without_networks(mut read: Documents) -> Documents {
    let rules = read.cluster.rules.iter();
    let named =
        rules.filter_map(|(name, rule)| Some((name.clone(), rule.networks().next()?.clone())));
    for (namespace, network) in named.collect::<Vec<_>>() {
        let what =
            format!("network {network} has no addresses: pods of the namespace stay in quarantine");
        let fix = "kubectl get namespacerules.humanz.io # leave network out of it: hosts share networks of tenants by etcd (SUBNET_SOURCE=etcd)";
        let subject = Object::named(format!("NamespaceRule {namespace}"));
        read.problems.push(Problem::in_object(ProblemKind::Policy, subject, what).with_fix(fix));
        read.cluster.close(namespace);
    }
    read
}

/// Objects that are not in force, because the other source has them; nothing if there are none.
pub fn unused(count: usize, first: Option<String>, place: &str, ruling: &str) -> Option<Problem> {
    let first = first?;
    let what = format!(
        "{count} of them, as {first}, {} not in force: those of {ruling} are (POLICY_OBJECTS)",
        if count == 1 { "is" } else { "are" }
    );
    let fix = "humanz-agent policy ls # remove them once those in force say the same, or change POLICY_OBJECTS on all hosts";
    let subject = Object::named(format!("objects of humanz in {place}"));
    Some(Problem::in_object(ProblemKind::Policy, subject, what).with_fix(fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    fn named(resource: Resource, metadata: Value) -> Result<String, String> {
        let object = json!({"metadata": metadata, "spec": {}});
        let read = document(resource, &object).map_err(|fault| fault.to_string())?;
        let text = |field: &str| read["metadata"][field].as_str().unwrap_or("-").to_owned();
        Ok(format!("{} {}/{}", read["kind"].as_str().unwrap(), text("tenant"), text("name")))
    }

    #[test]
    fn a_name_says_the_tenant_and_stands_for_one_object() {
        for (name, wanted) in
            [("web", "Group -/web"), ("blue.web", "Group blue/web"), ("blue.a.b", "Group blue/a.b")]
        {
            assert_eq!(named(Resource::Groups, json!({"name": name})).as_deref(), Ok(wanted));
        }
        let rule = named(Resource::NamespaceRules, json!({"name": "shop"}));
        assert_eq!(rule.as_deref(), Ok("NamespaceRule -/shop"));
        // Two objects for one name would be a choice that anybody who may write one of them could make.
        let twice = named(Resource::Groups, json!({"name": "default.web"})).unwrap_err();
        assert!(twice.contains("metadata.name: the tenant default is left out"), "{twice}");
    }

    #[test]
    fn what_an_owner_of_a_namespace_may_write_is_not_read() {
        for resource in Resource::ALL.into_iter().filter(|it| it.is_own()) {
            let own = named(resource, json!({"name": "web", "namespace": "shop"})).unwrap_err();
            assert!(own.contains("is of a namespace"), "{own}");
        }
        assert!(named(Resource::Groups, json!({})).unwrap_err().contains("name is missing"));
        assert!(document(Resource::Groups, &json!(null)).is_err());
    }

    #[test]
    fn an_object_without_a_spec_closes_what_it_is_about() {
        let bare = |resource, name: &str| {
            document(resource, &json!({"metadata": {"name": name}})).unwrap()
        };
        let objects = [bare(Resource::Groups, "blue.web"), bare(Resource::NamespaceRules, "shop")];
        let read = documents::read(&objects, false);
        assert_eq!(read.problems.len(), 2, "{:?}", read.problems);
        assert_eq!(
            read.rules.iter().count(),
            2,
            "nothing reaches the group, and it reaches nothing"
        );
        assert!(read.cluster.is_closed(&"shop".parse().unwrap()));
    }

    #[test]
    fn a_rule_with_a_network_that_cannot_be_closes_its_namespace() {
        let rule = |name: &str, spec: Value| {
            document(Resource::NamespaceRules, &json!({"metadata": {"name": name}, "spec": spec}))
                .unwrap()
        };
        let objects = [
            rule("all", json!({"tenant": "blue", "network": "front"})),
            rule("some", json!({"pods": [{"match": "db-*", "network": "blue/front"}]})),
            rule("own", json!({"network": "default", "group": "web"})),
            rule("none", json!({"tenant": "blue", "group": "web"})),
        ];
        let read = without_networks(documents::read(&objects, false));
        let closed = |name: &str| read.cluster.is_closed(&name.parse().unwrap());
        assert_eq!(["all", "some", "own", "none"].map(closed), [true, true, false, false]);
        let about: Vec<String> = read.problems.iter().map(|it| it.subject.to_string()).collect();
        assert_eq!(about, ["NamespaceRule all", "NamespaceRule some"]);
    }
}
