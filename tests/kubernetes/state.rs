//! What the tests' API server knows: objects, their history, and how it behaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use humanz::policy::read::documents;
use serde_json::{Value, json};

use crate::objects::{CRDS, custom};
use crate::rbac::Rule;
use crate::support::definitions::{Definitions, Refusal};

pub type Objects = BTreeMap<String, Value>;

pub const NODES: &str = "/api/v1/nodes";

/// Later versions of the resource at the path that comes first; the objects are the same.
pub const V1BETA1: &str = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies";
pub const V1: &str = "/apis/policy.networking.k8s.io/v1/clusternetworkpolicies";

/// Path, kind, and whether a CustomResourceDefinition brings it.
const RESOURCES: [(&str, &str, bool); 14] = [
    (NODES, "Node", false),
    ("/api/v1/namespaces", "Namespace", false),
    ("/api/v1/pods", "Pod", false),
    ("/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicy", false),
    (
        "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
        "ClusterNetworkPolicy",
        true,
    ),
    (V1BETA1, "ClusterNetworkPolicy", true),
    (V1, "ClusterNetworkPolicy", true),
    ("/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies", "AdminNetworkPolicy", true),
    (
        "/apis/policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies",
        "BaselineAdminNetworkPolicy",
        true,
    ),
    ("/apis/humanz.io/v1alpha1/groups", "Group", true),
    ("/apis/humanz.io/v1alpha1/grouppolicies", "GroupPolicy", true),
    ("/apis/humanz.io/v1alpha1/namespacerules", "NamespaceRule", true),
    ("/apis/humanz.io/v1alpha1/netprofiles", "NetProfile", true),
    ("/apis/humanz.io/v1alpha1/networks", "Network", true),
];

static DEFINITIONS: LazyLock<Definitions> =
    LazyLock::new(|| Definitions::new(&documents::objects(CRDS).unwrap()));

/// Why the definition of a custom resource of humanz refuses `object`.
fn refusal(object: &Value) -> Option<Refusal> {
    let is_own = path_of(object["kind"].as_str().unwrap()).contains("humanz.io");
    if is_own { DEFINITIONS.refusal(object) } else { None }
}

/// A change of an object.
pub struct Event {
    pub version: u64,
    pub path: &'static str,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// The path of the resource of `kind`.
pub fn path_of(kind: &str) -> &'static str {
    RESOURCES.iter().find(|(_, one, _)| *one == kind).unwrap().0
}

fn kind_of(path: &str) -> &'static str {
    RESOURCES.iter().find(|(one, ..)| *one == path).unwrap().1
}

fn key_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Whether `object` is one of the field selector in `query`, as `spec.nodeName=h1`.
fn is_selected(query: &BTreeMap<String, String>, object: &Value) -> bool {
    let Some(selector) = query.get("fieldSelector") else { return true };
    let (field, value) = selector.split_once('=').unwrap();
    let found = field.split('.').fold(object, |object, name| &object[name]);
    found.as_str().unwrap_or_default() == value
}

fn finalizers(object: &Value) -> &[Value] {
    object["metadata"]["finalizers"].as_array().map_or(&[], Vec::as_slice)
}

/// What a server keeps of a custom resource whatever is applied: status, marks of deletion; and its generation, which
/// a change of `spec` raises.
fn as_server(object: &mut Value, before: &Value) {
    let metadata = &before["metadata"];
    let generation = metadata["generation"].as_i64().unwrap_or_default();
    let is_new = object["spec"] != before["spec"];
    object["metadata"]["generation"] = json!(generation + i64::from(is_new));
    if !metadata["deletionTimestamp"].is_null() {
        object["metadata"]["deletionTimestamp"] = metadata["deletionTimestamp"].clone();
    }
    if object["metadata"].get("finalizers").is_none() && !metadata["finalizers"].is_null() {
        object["metadata"]["finalizers"] = metadata["finalizers"].clone();
    }
    match before.get("status") {
        Some(status) => object["status"] = status.clone(),
        None => drop(object.as_object_mut().unwrap().remove("status")),
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return *into = patch.clone() };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        match value.is_null() {
            true => drop(into.as_object_mut().unwrap().remove(name)),
            false => merge(&mut into[name], value),
        }
    }
}

/// How it behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Well,
    /// 403 to everything.
    Forbidden,
    /// Lists and watches are malformed.
    Garbage,
    /// Lists and events without end.
    Huge,
    /// Takes requests and answers nothing.
    Silent,
    /// Ends every watch at once.
    Brief,
    /// Ends every watch after one bookmark.
    Bookmark,
    /// Lists of empty pages, each with another one behind it.
    Endless,
}

#[derive(Default)]
pub struct State {
    /// By the path of their resource, and there by `namespace/name`.
    pub objects: BTreeMap<&'static str, Objects>,
    /// Custom resources that it serves.
    pub custom: BTreeSet<&'static str>,
    pub version: u64,
    pub events: Vec<Event>,
    /// The objects of every list of which a page may still be wanted.
    pub past: BTreeMap<(u64, String), Objects>,
    /// Everything up to this version is forgotten.
    pub compacted: u64,
    /// Running watches at that version continue.
    pub spared: u64,
    pub tokens: BTreeSet<String>,
    pub mode: Mode,
    /// Of single resources, instead of `mode`.
    pub modes: BTreeMap<&'static str, Mode>,
    /// A watch from too long ago is refused by the status of the answer, not by an event.
    pub refuses_by_status: bool,
    pub may_patch: bool,
    /// Compact before the second page.
    pub compacts_between_pages: bool,
    pub bookmarks: u64,
    /// Raised to break every watch.
    pub broken: u64,
    pub requests: Vec<String>,
    /// What its role permits; `None`: everything.
    pub rules: Option<Vec<Rule>>,
}

impl State {
    pub fn mode_of(&self, path: &str) -> Mode {
        self.modes.get(path).copied().unwrap_or(self.mode)
    }

    pub fn serves(&self, path: &str) -> Option<&'static str> {
        let found = RESOURCES.iter().find(|(one, ..)| *one == path);
        let found = found.filter(|(one, _, custom)| !custom || self.custom.contains(one));
        found.map(|(one, ..)| *one)
    }

    /// What it says of itself at `/apis/GROUP` or `/apis/GROUP/VERSION`, of custom resources.
    pub fn describes(&self, path: &str) -> Option<Value> {
        let served = self.custom.iter().filter_map(|one| one.strip_prefix(path)?.strip_prefix('/'));
        let parts: BTreeSet<&str> = served.filter_map(|rest| rest.split('/').next()).collect();
        if parts.is_empty() {
            return None;
        }
        let named =
            |field: &str| -> Vec<Value> { parts.iter().map(|part| json!({field: part})).collect() };
        Some(match path.split('/').count() {
            3 => json!({"kind": "APIGroup", "apiVersion": "v1", "versions": named("version")}),
            4 => json!({"kind": "APIResourceList", "resources": named("name")}),
            _ => return None,
        })
    }

    /// The objects of ClusterNetworkPolicy are the same in all versions.
    fn stored(path: &'static str) -> &'static str {
        if kind_of(path) == "ClusterNetworkPolicy" { path_of("ClusterNetworkPolicy") } else { path }
    }

    /// `verb` on the resource at `path`.
    pub fn permits(&self, verb: &str, path: &str) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.iter().any(|rule| rule.permits(verb, path)))
    }

    pub fn permits_object(&self, verb: &str, path: &str) -> bool {
        let permits = |rule: &Rule| rule.permits_object(verb, path);
        self.rules.as_ref().is_none_or(|rules| rules.iter().any(permits))
    }

    pub fn get(&self, path: &'static str, key: &str) -> Option<Value> {
        self.objects.get(path)?.get(key).cloned()
    }

    /// # Panics
    /// If its definition refuses it.
    pub fn put(&mut self, object: Value) {
        if let Some(refusal) = refusal(&object) {
            panic!("{object} is refused: {refusal:?}");
        }
        self.put_unchecked(object);
    }

    /// As with a definition that has no schema.
    pub fn put_unchecked(&mut self, mut object: Value) {
        let path = path_of(object["kind"].as_str().unwrap());
        if path.contains("humanz.io") {
            let before = self.get(path, &key_of(&object)).unwrap_or_default();
            as_server(&mut object, &before);
            let uid = json!(format!("uid {}", self.version));
            let known = before["metadata"].get("uid").cloned();
            object["metadata"]["uid"] = known.unwrap_or(uid);
        }
        self.store(path, object);
    }

    fn store(&mut self, path: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = self.objects.entry(path).or_default().insert(key_of(&object), object.clone());
        self.events.push(Event { version: self.version, path, before, after: Some(object) });
    }

    /// One with finalizers stays until the last of them is taken away.
    pub fn delete(&mut self, path: &'static str, key: &str) {
        let mut object = self.get(path, key).unwrap();
        if !finalizers(&object).is_empty() {
            object["metadata"]["deletionTimestamp"] = json!("2026-11-26T09:00:00Z");
            return self.store(path, object);
        }
        self.version += 1;
        let mut before = self.objects.get_mut(path).unwrap().remove(key).unwrap();
        before["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.push(Event { version: self.version, path, before: Some(before), after: None });
    }

    pub fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.events.clear();
        self.past.clear();
    }

    /// The list, or status and message of a refusal.
    pub fn list(
        &mut self,
        path: &'static str,
        query: &BTreeMap<String, String>,
    ) -> Result<Value, (u16, &'static str)> {
        let limit: usize = query.get("limit").map_or(0, |limit| limit.parse().unwrap());
        let (version, from) = match query.get("continue") {
            None => {
                let mut found = self.objects.get(Self::stored(path)).cloned().unwrap_or_default();
                found.retain(|_, object| is_selected(query, object));
                self.past.insert((self.version, path.to_owned()), found);
                (self.version, String::new())
            }
            Some(token) => {
                if std::mem::take(&mut self.compacts_between_pages) {
                    self.compact();
                }
                let (version, from) = token.split_once("/+=").unwrap();
                (version.parse().unwrap(), from.to_owned())
            }
        };
        let Some(objects) = self.past.get(&(version, path.to_owned())) else {
            return Err((
                410,
                "The provided continue parameter is too old to display a consistent list result.",
            ));
        };
        let rest = objects.range(from..);
        let limit = if limit == 0 { usize::MAX } else { limit };
        let mut rest = rest.map(|(key, object)| (key.clone(), object.clone()));
        // As servers do: no kind in the objects of a list.
        let bare = |mut object: Value| {
            let fields = object.as_object_mut().unwrap();
            fields.retain(|name, _| name != "kind" && name != "apiVersion");
            object
        };
        let items: Vec<Value> = rest.by_ref().take(limit).map(|(_, object)| bare(object)).collect();
        let next = rest.next().map(|(key, _)| format!("{version}/+={key}")).unwrap_or_default();
        let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
        let kind = format!("{}List", kind_of(path));
        Ok(json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}))
    }

    /// The events of a watch after the version `from`.
    pub fn events(
        &self,
        path: &'static str,
        query: &BTreeMap<String, String>,
        from: u64,
    ) -> Vec<Value> {
        let path = Self::stored(path);
        let new = self.events.iter().filter(|event| event.version > from && event.path == path);
        let said = new.filter_map(|event| {
            let selected =
                |object: &Option<Value>| object.clone().filter(|it| is_selected(query, it));
            let (kind, object) = match (selected(&event.before), selected(&event.after)) {
                (None, Some(after)) => ("ADDED", after),
                (Some(_), Some(after)) => ("MODIFIED", after),
                (Some(before), None) => ("DELETED", before),
                (None, None) => return None,
            };
            Some(json!({"type": kind, "object": object}))
        });
        said.collect()
    }

    /// As a strategic merge of the status of a node: conditions are identified by their type.
    pub fn patch(&mut self, name: &str, patch: &Value) {
        let mut node = self.get(NODES, name).unwrap();
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        for new in patch["status"]["conditions"].as_array().unwrap() {
            conditions.retain(|old| old["type"] != new["type"]);
            conditions.push(new.clone());
        }
        self.put(node);
    }

    /// Resource and key of the path of a custom resource, and whether it is that of its status.
    pub fn object_at(&self, path: &str) -> Option<(&'static str, String, bool)> {
        let (whole, is_status) = match path.strip_suffix("/status") {
            Some(whole) => (whole, true),
            None => (path, false),
        };
        let (resource, name) = whole.rsplit_once('/')?;
        let resource = self.serves(resource).filter(|it| it.contains("humanz.io"))?;
        Some((resource, name.to_owned(), is_status))
    }

    /// A merge patch (RFC 7396) of a custom resource with the subresource `status`: code and message of a refusal.
    pub fn merge(
        &mut self,
        (path, key, is_status): (&'static str, &str, bool),
        patch: &Value,
    ) -> Result<Value, (u16, &'static str)> {
        let before = self.get(path, key).ok_or((404, "not found"))?;
        let version = &patch["metadata"]["resourceVersion"];
        if !version.is_null() && *version != before["metadata"]["resourceVersion"] {
            return Err((409, "the object has been modified"));
        }
        let mut after = before.clone();
        match is_status {
            true => merge(&mut after["status"], &patch["status"]),
            false => {
                merge(&mut after, patch);
                as_server(&mut after, &before);
            }
        }
        if after == before {
            return Ok(before);
        }
        if let (None, Some(refusal)) = (refusal(&before), refusal(&after)) {
            println!("{after} is refused: {refusal:?}");
            return Err((422, "Invalid"));
        }
        self.store(path, after.clone());
        if after["metadata"]["deletionTimestamp"].is_string() && finalizers(&after).is_empty() {
            self.delete(path, key);
        }
        Ok(after)
    }

    pub fn bookmark(&self, path: &str) -> Value {
        let metadata =
            json!({"resourceVersion": self.version.to_string(), "creationTimestamp": null});
        json!({"type": "BOOKMARK", "object": {"kind": kind_of(path), "apiVersion": "v1",
            "metadata": metadata, "spec": {}, "status": {}}})
    }
}

#[test]
fn the_api_of_these_tests_refuses_what_a_definition_refuses() {
    let mut state = State::default();
    state.put(custom("Group", "blue.db", json!({})));
    let mut condition = json!({"type": "Accepted", "status": "True", "reason": "InForce",
        "message": "", "lastTransitionTime": "2026-11-28T01:02:03Z"});
    let mut merge = |field: &str, value: &str| {
        condition[field] = json!(value);
        let status = json!({"status": {"conditions": [condition]}});
        let group = (path_of("Group"), "blue.db", true);
        state.merge(group, &status).map(drop).map_err(|(code, _)| code)
    };
    assert_eq!(merge("message", "hosts understand it"), Ok(()));
    assert_eq!(merge("status", "Perhaps"), Err(422));
    assert_eq!(merge("status", "False"), Ok(()));
    assert_eq!(merge("lastTransitionTime", "yesterday"), Err(422));
    let by_rule = || State::default().put(custom("Group", "default.db", json!({})));
    assert!(std::panic::catch_unwind(by_rule).is_err());
}
