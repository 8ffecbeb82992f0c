//! Pure. What the controller keeps of custom resources.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::kube::{ObjectKey, Resource, ResourceUpdate};
use crate::net::FailureReason;
use crate::net::gather::Gather;
use crate::sources::{StoredName, document};

/// Holds a Network back from being deleted until etcd has it no longer.
pub const FINALIZER: &str = "humanz.io/network";

/// A custom resource.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenObject {
    pub resource: Resource,
    pub name: Box<str>,
    /// Of this object and no other one of its name; empty if the API does not say.
    pub uid: Box<str>,
    /// Every write of it is for this version alone.
    pub version: Box<str>,
    /// Of its `spec`.
    pub generation: i64,
    pub is_deleting: bool,
    pub finalizers: Vec<String>,
    pub status: Value,
    /// Its name and the object that etcd has in its place, or why there is none.
    pub stored: Result<(StoredName, Value), String>,
}

impl SeenObject {
    pub fn read(resource: Resource, object: &Value) -> SeenObject {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().into();
        let read = document(resource, object).map_err(|fault| fault.to_string());
        let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
        SeenObject {
            resource,
            name: text("name"),
            uid: text("uid"),
            version: text("resourceVersion"),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            is_deleting: metadata["deletionTimestamp"].is_string(),
            finalizers: finalizers.filter_map(|it| it.as_str().map(str::to_owned)).collect(),
            status: object["status"].clone(),
            stored: read.and_then(|it| Ok((StoredName::of(&it)?, it))),
        }
    }

    pub fn is_held(&self) -> bool {
        self.finalizers.iter().any(|one| one == FINALIZER)
    }

    /// `found` in etcd was written for it, or is what it says: only that goes with it.
    pub fn owns(&self, found: &Value) -> bool {
        let says = self.stored.as_ref().is_ok_and(|(_, wanted)| wanted["spec"] == found["spec"]);
        says || (!self.uid.is_empty() && found["metadata"]["uid"] == *self.uid)
    }

    /// What etcd is to have in its place, with its mark.
    pub fn written(&self, name: &StoredName, spec: Value) -> Value {
        let mut object = name.object(spec);
        if !self.uid.is_empty() {
            object["metadata"]["uid"] = (*self.uid).into();
        }
        object
    }

    /// Its finalizers with ours or without.
    pub fn finalizers_with(&self, ours: bool) -> Vec<&str> {
        let others = self.finalizers.iter().map(String::as_str).filter(|one| *one != FINALIZER);
        others.chain(ours.then_some(FINALIZER)).collect()
    }

    pub fn path(&self) -> String {
        format!("{}/{}", self.resource.query().path, self.name)
    }

    /// `Network blue.front`
    pub fn subject(&self) -> String {
        format!("{} {}", self.resource.kind(), self.name)
    }
}

/// All custom resources.
#[derive(Debug, Default)]
pub struct SeenObjects {
    objects: BTreeMap<Resource, BTreeMap<ObjectKey, SeenObject>>,
    listed: BTreeSet<Resource>,
    disconnected: BTreeMap<Resource, FailureReason>,
}

impl SeenObjects {
    /// Takes in what was received; false if that changes nothing.
    pub fn take(&mut self, resource: Resource, received: ResourceUpdate<SeenObject>) -> bool {
        let objects = self.objects.entry(resource).or_default();
        match received {
            ResourceUpdate::All(all) => {
                *objects = all;
                self.listed.insert(resource);
            }
            ResourceUpdate::Put(key, object) => drop(objects.insert(key, object)),
            ResourceUpdate::Gone(key) => drop(objects.remove(&key)),
            ResourceUpdate::Connected => drop(self.disconnected.remove(&resource)),
            ResourceUpdate::Disconnected { why } => {
                self.disconnected.insert(resource, why);
                return false;
            }
        }
        true
    }

    /// Every resource has been listed: what is missing is not there.
    pub fn is_whole(&self) -> bool {
        Resource::OWN.iter().all(|resource| self.listed.contains(resource))
    }

    /// Why one of them is not followed.
    pub fn trouble(&self) -> Option<&FailureReason> {
        self.disconnected.values().next()
    }

    pub fn of(&self, resource: Resource) -> impl Iterator<Item = &SeenObject> {
        self.objects.get(&resource).into_iter().flat_map(BTreeMap::values)
    }

    /// Those that stand in place of objects in etcd, by their names there: all but networks.
    pub fn custom(&self) -> BTreeMap<StoredName, Value> {
        let others = Resource::OWN.into_iter().filter(|resource| *resource != Resource::Networks);
        others
            .flat_map(|resource| self.of(resource))
            .filter_map(|it| it.stored.clone().ok())
            .gather()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_anybody_may_have_written_is_read_and_breaks_nothing() {
        let whole = json!({"metadata": {"name": "blue.front", "resourceVersion": "7", "generation": 3,
            "deletionTimestamp": "2026-11-26T09:00:00Z", "finalizers": ["a/b", FINALIZER, 7]},
            "spec": {"subnets": ["10.1.0.0/16"]}, "status": {"conditions": "x"}});
        let read = SeenObject::read(Resource::Networks, &whole);
        assert!(read.is_deleting && read.is_held() && read.generation == 3);
        assert_eq!(read.path(), "/apis/humanz.io/v1alpha1/networks/blue.front");
        assert_eq!(read.stored.as_ref().unwrap().0.path(), "Network/blue/front");
        assert_eq!(read.finalizers_with(false), ["a/b"]);
        assert_eq!(read.finalizers_with(true), ["a/b", FINALIZER]);
        for bad in
            [json!(null), json!({"metadata": []}), json!({"metadata": {"name": "default.x"}})]
        {
            let read = SeenObject::read(Resource::Networks, &bad);
            assert!(read.stored.is_err() && !read.is_held(), "{bad}");
        }
    }
}
