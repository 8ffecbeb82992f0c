//! Pure. Objects of policies as keys and values in etcd.
//!
//! ```text
//! /humanz/v1-policies/Group/blue/web            {"apiVersion": "humanz.io/v1", "kind": "Group", …}
//!                     NetworkPolicy/shop/db     JSON or YAML, one object
//!                     Namespace/shop
//!                     applied                   somebody wrote here: nothing beside it means no policies
//! ```
//!
//! The key says what a value is about, so that one that is not understood can still close it, or leave it as it was.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::net::gather::Gather;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::network::DEFAULT;
use crate::policy::read::cluster_network_policy::NOT_ENFORCED;
use crate::policy::read::documents::{self, NAMESPACE_RULE};
use crate::policy::read::fields::quoted;
use crate::policy::{ObjectName, ObjectSource, Scoped};
use crate::sources::ranges::WrittenValue;

/// Stands beside the objects.
pub const MARK: &str = "applied";

/// Longest value, in bytes: what fits into a request of etcd (1.5 MiB) with others beside it.
pub const VALUE_LIMIT: usize = 512 << 10;

/// Objects …
pub const OBJECTS_LIMIT: usize = 20_000;

/// … and bytes that are read. With more than that nothing new holds.
pub const BYTES_LIMIT: usize = 64 << 20;

/// Problems that are listed.
pub(super) const PROBLEMS_LIMIT: usize = 100;

/// A kind of object that may stand in etcd.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub name: &'static str,
    /// Values of `apiVersion`, the first one preferred.
    versions: &'static [&'static str],
    /// The field of `metadata` that its name is unique in.
    scope: Option<&'static str>,
}

const OWN: &[&str] = &["humanz.io/v1"];

/// All of them. Pods are described by the host that they run on.
pub const KINDS: [Kind; 11] = [
    Kind { name: "Group", versions: OWN, scope: Some("tenant") },
    Kind { name: "GroupPolicy", versions: OWN, scope: Some("tenant") },
    Kind { name: NAMESPACE_RULE, versions: OWN, scope: None },
    Kind { name: "Network", versions: OWN, scope: Some("tenant") },
    Kind { name: "NetProfile", versions: OWN, scope: Some("tenant") },
    Kind { name: "Pin", versions: OWN, scope: Some("namespace") },
    Kind { name: "Namespace", versions: &["v1"], scope: None },
    Kind { name: "NetworkPolicy", versions: &["networking.k8s.io/v1"], scope: Some("namespace") },
    Kind {
        name: "ClusterNetworkPolicy",
        versions: &["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"],
        scope: None,
    },
    Kind {
        name: "AdminNetworkPolicy",
        versions: &["policy.networking.k8s.io/v1alpha1"],
        scope: None,
    },
    Kind {
        name: "BaselineAdminNetworkPolicy",
        versions: &["policy.networking.k8s.io/v1alpha1"],
        scope: None,
    },
];

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredName {
    pub kind: &'static Kind,
    pub scope: Option<ObjectName>,
    pub name: ObjectName,
}

impl Kind {
    /// There may be custom resources of it.
    pub fn has_custom_resources(&self) -> bool {
        self.versions == OWN && self.name != "Pin"
    }

    /// What etcd has of it is in force where `ruling` has groups and so on: networks and fixed addresses always are,
    /// because what hosts have of them is there.
    pub fn is_in_force(&self, ruling: ObjectSource) -> bool {
        let is_other = self.has_custom_resources() && self.name != "Network";
        ruling == ObjectSource::Etcd || !is_other
    }

    /// What holds of an object whose value is not understood.
    fn of_unread(&self) -> &'static str {
        match self.name {
            "ClusterNetworkPolicy" | "AdminNetworkPolicy" | "BaselineAdminNetworkPolicy" => {
                NOT_ENFORCED
            }
            "Network" | "NetProfile" => "what this host knew of it holds",
            _ => "what it is about is closed",
        }
    }

    /// By its name, in any case, and its plural.
    pub fn find(text: &str) -> Option<&'static Kind> {
        let text = text.to_ascii_lowercase();
        KINDS.iter().find(|kind| {
            let name = kind.name.to_ascii_lowercase();
            let plural = name.strip_suffix('y').map_or(format!("{name}s"), |y| format!("{y}ies"));
            text == name || text == plural
        })
    }
}

impl StoredName {
    /// `tenant/name`, or the name alone: as commands take it.
    pub fn short(&self) -> String {
        let scope = self.scope.iter().map(|scope| format!("{scope}/"));
        scope.collect::<String>() + self.name.as_str()
    }

    /// The name of `object`.
    ///
    /// # Errors
    /// It is of no kind that may stand in etcd, or nameless.
    pub fn of(object: &Value) -> Result<StoredName, String> {
        let text = |field: &Value| field.as_str().map(str::to_owned);
        let kind = text(&object["kind"]).unwrap_or_default();
        let version = text(&object["apiVersion"]).unwrap_or_default();
        let is_it = |known: &&Kind| known.name == kind && known.versions.contains(&&*version);
        let found = KINDS.iter().find(is_it);
        let Some(found) = found else {
            return Err(format!(
                "kind {} of {} is not kept in etcd",
                quoted(&kind),
                quoted(&version)
            ));
        };
        let metadata = &object["metadata"];
        let name = |field: &str, default: Option<&str>| {
            let given = metadata.get(field).filter(|value| !value.is_null());
            let given = given.map(|value| text(value).unwrap_or_default());
            let given = given.or(default.map(str::to_owned));
            let given = given.ok_or_else(|| format!("metadata.{field} is missing"))?;
            given.parse::<ObjectName>().map_err(|error| format!("metadata.{field}: {error}"))
        };
        let default = |field: &str| (field == "tenant").then_some(DEFAULT);
        let scope = found.scope.map(|field| name(field, default(field))).transpose()?;
        Ok(StoredName { kind: found, scope, name: name("name", None)? })
    }

    /// As [`StoredName::of`] of an object that is not in etcd yet.
    ///
    /// # Errors
    /// It is nameless, or says a namespace where it would be of the tenant `default`.
    pub fn of_new(object: &Value) -> Result<StoredName, String> {
        let name = StoredName::of(object)?;
        let is_of_tenant = name.kind.scope == Some("tenant");
        let metadata = &object["metadata"];
        if !is_of_tenant || metadata["namespace"].is_null() {
            return Ok(name);
        }
        let more = match metadata["tenant"].is_null() {
            true => "; without metadata.tenant it is of the tenant default",
            false => "",
        };
        let StoredName { kind, name, .. } = name;
        Err(format!("{} {name}: it is of a tenant: remove metadata.namespace{more}", kind.name))
    }

    /// `web`, `blue/web` or `shop/db` of `kind`.
    ///
    /// # Errors
    /// Not such a name.
    pub fn parse(kind: &'static Kind, text: &str) -> Result<StoredName, String> {
        let one = |text: &str| text.parse::<ObjectName>().map_err(|error| error.to_string());
        let (scope, name) = match (kind.scope, text.split_once('/')) {
            (Some(_), Some((scope, name))) => (Some(one(scope)?), one(name)?),
            (Some("tenant"), None) => (Some(one(DEFAULT)?), one(text)?),
            (Some(scope), None) => {
                return Err(format!("{}: {} {scope}/name is needed", quoted(text), kind.name));
            }
            (None, _) => (None, one(text)?),
        };
        Ok(StoredName { kind, scope, name })
    }

    /// What follows the range in its key.
    pub fn path(&self) -> String {
        format!("{}/{}", self.kind.name, self.scoped())
    }

    /// The name after its scope, if it has one.
    pub fn scoped(&self) -> String {
        match &self.scope {
            Some(scope) => format!("{scope}/{}", self.name),
            None => self.name.to_string(),
        }
    }

    fn of_path(path: &str) -> Option<StoredName> {
        let (kind, rest) = path.split_once('/')?;
        let kind = KINDS.iter().find(|known| known.name == kind)?;
        StoredName::parse(kind, rest).ok().filter(|name| name.path() == path)
    }

    /// An object of this name.
    pub fn object(&self, spec: Value) -> Value {
        let mut metadata = json!({"name": self.name});
        if let (Some(field), Some(scope)) = (self.kind.scope, &self.scope) {
            metadata[field] = json!(scope);
        }
        json!({"apiVersion": self.kind.versions[0], "kind": self.kind.name,
            "metadata": metadata, "spec": spec})
    }

    /// An object of this name that closes what it is about.
    fn closed(&self) -> Value {
        let spec = match self.kind.name {
            "Group" => json!({"default": "deny"}),
            "NetworkPolicy" => json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
            // Their readers close what names them, or the pods of the namespace, or go by what they knew.
            _ => json!("not understood"),
        };
        let mut object = self.object(spec);
        if self.kind.name == "Namespace" {
            object["metadata"]["labels"] = json!("not understood");
        }
        object
    }
}

impl std::fmt::Display for StoredName {
    /// `Group blue/web`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path().replacen('/', " ", 1))
    }
}

/// Everything below the range of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPolicies {
    /// Path below the range → value.
    values: BTreeMap<String, WrittenValue>,
    bytes: usize,
    is_marked: bool,
}

impl StoredPolicies {
    /// Takes over a key, without the range, that has this value now, or none.
    pub fn set(&mut self, path: &[u8], value: Option<WrittenValue>) {
        let path = String::from_utf8_lossy(path).into_owned();
        if path == MARK {
            self.is_marked = value.is_some();
            return;
        }
        let size = |path: &str, value: &WrittenValue| path.len() + value.bytes.len();
        if let Some(old) = self.values.remove(&path) {
            self.bytes -= size(&path, &old);
        }
        if let Some(value) = value {
            self.bytes += size(&path, &value);
            self.values.insert(path, value);
        }
    }

    /// There are more objects or bytes than may be.
    pub fn is_too_much(&self) -> bool {
        self.values.len() > OBJECTS_LIMIT || self.bytes > BYTES_LIMIT
    }

    /// This was never written, or everything was lost.
    pub fn is_untouched(&self) -> bool {
        self.values.is_empty() && !self.is_marked
    }

    /// What writes policies has written here.
    pub fn is_marked(&self) -> bool {
        self.is_marked
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The objects by their names; of a value that is not understood, one that closes. `range`: for messages.
    pub fn objects(&self, range: &str) -> (BTreeMap<StoredName, Value>, Vec<Problem>) {
        let (mut objects, mut faults) = (BTreeMap::new(), Vec::new());
        for (path, value) in &self.values {
            let ReadValue { object, fault } = ReadValue::of(path, &value.bytes);
            faults.extend(fault.map(|what| (path.clone(), what)));
            objects.extend(object);
        }
        let problems = problems(range, faults.iter().map(|(path, what)| (path, what)));
        (objects, problems)
    }

    /// The objects that are understood, and what is wrong with the others.
    pub fn understood(&self, range: &str) -> (Vec<Value>, Vec<Problem>) {
        let mut objects = Vec::new();
        for (path, value) in &self.values {
            let name = StoredName::of_path(path);
            objects.extend(name.and_then(|name| object(&name, &value.bytes).ok()));
        }
        (objects, self.objects(range).1)
    }

    /// By path below the range.
    pub(super) fn values(&self) -> &BTreeMap<String, WrittenValue> {
        &self.values
    }

    /// How many rules of namespaces there are, with those whose keys are not understood: they are not among the objects.
    pub fn namespace_rules(&self) -> usize {
        let prefix = format!("{NAMESPACE_RULE}/");
        self.values.keys().filter(|path| path.starts_with(&prefix)).count()
    }

    /// When the object of each network was written.
    pub(super) fn network_revisions(&self) -> BTreeMap<Scoped, i64> {
        let networks = self.values.iter().filter(|(path, _)| path.starts_with("Network/"));
        let network = |(path, value): (&String, &WrittenValue)| {
            let StoredName { scope, name, .. } = StoredName::of_path(path)?;
            Some((Scoped { tenant: scope?, name }, value.revision))
        };
        networks.filter_map(network).gather()
    }
}

/// A value, and what is wrong with it.
pub(super) struct ReadValue {
    /// One that closes where the value is not understood; `None`: it is the key of no object.
    pub object: Option<(StoredName, Value)>,
    pub fault: Option<String>,
}

impl ReadValue {
    pub fn of(path: &str, bytes: &[u8]) -> ReadValue {
        let Some(name) = StoredName::of_path(path) else {
            let fault = "is the key of no object of policies; it is ignored".to_owned();
            return ReadValue { object: None, fault: Some(fault) };
        };
        match object(&name, bytes) {
            Ok(object) => ReadValue { object: Some((name, object)), fault: None },
            Err(why) => {
                let fault = format!("{why}; {}", name.kind.of_unread());
                let closed = name.closed();
                ReadValue { object: Some((name, closed)), fault: Some(fault) }
            }
        }
    }
}

/// Of values below `range`, each by its path.
pub(super) fn problems<'a>(
    range: &str,
    faults: impl Iterator<Item = (&'a String, &'a String)>,
) -> Vec<Problem> {
    let problem = |(path, what): (&String, &String)| {
        let subject = Object::named(format!("etcd key {}", shown(range, path)));
        Problem::in_object(ProblemKind::Policy, subject, what)
    };
    let mut faults = faults.fuse();
    let mut problems: Vec<Problem> = faults.by_ref().take(PROBLEMS_LIMIT).map(problem).collect();
    if let more @ 1.. = faults.count() {
        let what = format!("{more} further keys are invalid");
        problems.push(Problem::new(ProblemKind::Policy, Object::named("etcd keys"), what));
    }
    problems
}

fn shown(range: &str, path: &str) -> String {
    let text: String = path.chars().take(200).collect();
    format!("{range}{}", text.escape_debug())
}

/// The object in `value`, if it is the one that its key says.
fn object(name: &StoredName, value: &[u8]) -> Result<Value, String> {
    if value.len() > VALUE_LIMIT {
        return Err(format!("more than {VALUE_LIMIT} bytes"));
    }
    let text = std::str::from_utf8(value).map_err(|_| "is not UTF-8".to_owned())?;
    let short = |why: String| why.chars().take(200).collect::<String>();
    let mut objects = documents::objects(text).map_err(short)?;
    let mut object = match (objects.pop(), objects.is_empty()) {
        (Some(only), true) => only,
        _ => return Err("is not one object".to_owned()),
    };
    let found = StoredName::of(&object).map_err(short)?;
    // Earlier versions let it stand there, and `export` is to print what `apply` takes.
    if let (Some("tenant"), Some(fields)) = (found.kind.scope, object["metadata"].as_object_mut()) {
        fields.remove("namespace");
    }
    if found == *name { Ok(object) } else { Err(short(format!("it is about {found}"))) }
}
