//! Pure. Objects of any kind from files: policies, groups, pods, namespaces, nodes.
//!
//! humanz's own objects stand in files as those of Kubernetes do, with `spec` as in etcd:
//!
//! ```yaml
//! apiVersion: humanz.io/v1
//! kind: Group              # or GroupPolicy, NamespaceRule
//! metadata: {tenant: blue, name: web}
//! spec: {policies: [front], default: deny}
//! ```

use serde_json::Value;

use crate::kube::yaml;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::endpoint::Endpoints;
use crate::policy::name::Scoped;
use crate::policy::read::cluster::{Cluster, node};
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::read::groups::{self, Objects};
use crate::policy::read::membership::NamespaceRule;
use crate::policy::read::{Parsed, policy};
use crate::policy::rule::Rules;

/// The `apiVersion` of humanz's own objects.
const OWN: &str = "humanz.io/v1";

/// Lists inside lists.
const DEPTH_LIMIT: u32 = 4;

/// What files say, together.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    pub rules: Rules,
    pub endpoints: Endpoints,
    /// Namespaces and the rules for their pods.
    pub cluster: Cluster,
    pub problems: Vec<Problem>,
}

/// The objects in a text: JSON, or documents of YAML; those of a list one by one.
///
/// # Errors
/// It is neither.
pub fn objects(text: &str) -> Result<Vec<Value>, String> {
    let json = text.trim_start().starts_with(['{', '[']);
    let documents: Vec<Value> = if json {
        let all = serde_json::Deserializer::from_str(text).into_iter();
        all.collect::<Result<_, _>>().map_err(|error| format!("{error}"))?
    } else {
        yaml::documents(text)?
    };
    let mut objects = Vec::new();
    for document in documents {
        flatten(document, &mut objects, DEPTH_LIMIT);
    }
    Ok(objects)
}

fn flatten(value: Value, objects: &mut Vec<Value>, depth: u32) {
    let is_list =
        |object: &Value| object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match value {
        Value::Null => {}
        Value::Array(all) if depth > 0 => {
            all.into_iter().for_each(|one| flatten(one, objects, depth - 1));
        }
        mut list if depth > 0 && is_list(&list) => {
            flatten(list["items"].take(), objects, depth - 1);
        }
        object => objects.push(object),
    }
}

/// What `objects` say, in any order. What is no object of these kinds is a problem.
///
/// `free`: pods may choose their group where their namespace has no rule.
pub fn read(objects: &[Value], free: bool) -> Documents {
    let mut reader = DocumentsReader { cluster: Cluster::new(free), ..DocumentsReader::default() };
    let (pods, others): (Vec<&Value>, Vec<&Value>) =
        objects.iter().partition(|object| kind(object) == ("v1", "Pod"));
    // Pods need what is said of their namespaces.
    for object in others.into_iter().chain(pods) {
        if let Err(fault) = reader.take(object) {
            reader.problem(object, &fault);
        }
    }
    reader.parsed.append(groups::read(&reader.groups, &reader.policies));
    Documents {
        rules: Rules::new(reader.parsed.rules),
        endpoints: reader.endpoints,
        cluster: reader.cluster,
        problems: reader.parsed.problems,
    }
}

#[derive(Default)]
struct DocumentsReader {
    cluster: Cluster,
    parsed: Parsed,
    groups: Objects,
    policies: Objects,
    endpoints: Endpoints,
}

fn kind(object: &Value) -> (&str, &str) {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    (text("apiVersion"), text("kind"))
}

impl DocumentsReader {
    fn take(&mut self, object: &Value) -> Result<(), Fault> {
        if let Some(parsed) = policy(object) {
            self.parsed.append(parsed);
            return Ok(());
        }
        match kind(object) {
            ("v1", "Namespace") => {
                let read = self.cluster.namespace(object);
                read.inspect_err(|_| self.close(object))
            }
            ("v1", "Pod") => {
                let problems = self.cluster.pod(object, &mut self.endpoints)?;
                self.parsed.problems.extend(problems);
                Ok(())
            }
            ("v1", "Node") => {
                self.endpoints.nodes.push(node(object)?);
                Ok(())
            }
            (OWN, own) => self.own(own, object),
            (_, other) => {
                Err(ObjectField::root(object).fault(format!("kind {} is not known", quoted(other))))
            }
        }
    }

    fn own(&mut self, kind: &str, object: &Value) -> Result<(), Fault> {
        let root = ObjectField::root(object);
        let metadata = root.need("metadata")?;
        let name = metadata.need("name")?.name()?;
        root.need("spec")?;
        let spec = &object["spec"];
        let tenant = metadata.get("tenant").map(|field| field.name()).transpose()?;
        let tenant = tenant.unwrap_or_else(|| "default".parse().expect("a name"));
        match kind {
            "Group" => self.groups.insert(Scoped { tenant, name }, spec.clone()),
            "GroupPolicy" => self.policies.insert(Scoped { tenant, name }, spec.clone()),
            "NamespaceRule" => {
                let rule = NamespaceRule::read(spec).inspect_err(|_| self.close(object))?;
                self.cluster.rules.insert(name, rule);
                None
            }
            other => return Err(root.fault(format!("kind {} is not known", quoted(other)))),
        };
        Ok(())
    }

    /// The pods of the namespace that `object` is about stay in quarantine.
    fn close(&mut self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name.parse().into_iter().for_each(|name| self.cluster.close(name));
    }

    fn problem(&mut self, object: &Value, fault: &Fault) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let subject = Object::named(format!("{} {}", quoted(kind(object).1), quoted(name)));
        let problem = Problem::new(ProblemKind::Policy, subject, fault.to_string());
        self.parsed.problems.push(problem);
    }
}
