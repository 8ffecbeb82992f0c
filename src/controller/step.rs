//! Pure. What is to be done next for a Network.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::controller::condition::{IN_FORCE, NOT_UNDERSTOOD, REFUSED, StatusCondition};
use crate::controller::seen::SeenObject;
use crate::sources::{Change, StoredName};

/// The next step.
#[derive(Clone, Debug)]
pub enum NetworkStep {
    /// Before etcd has it, it must not be deleted unseen.
    Hold,
    Put(Change),
    /// A change of etcd in any case: whoever read it before puts nothing back.
    Remove(Change),
    /// Nothing: etcd has it, or it cannot be there.
    Stay(StatusCondition),
    /// It is being deleted, and no finalizer of ours is there.
    Leave,
}

/// The step for `object`, where etcd has `there`.
pub fn step(object: &SeenObject, there: &BTreeMap<StoredName, Value>) -> NetworkStep {
    let (name, wanted) = match &object.stored {
        Ok(stored) => stored,
        // It never was in etcd: names do not change.
        Err(_) if object.is_deleting && object.is_held() => {
            return NetworkStep::Remove(Change::default());
        }
        Err(why) => {
            return NetworkStep::Stay(StatusCondition::accepted(false, NOT_UNDERSTOOD, why));
        }
    };
    let found = there.get(name);
    if object.is_deleting {
        let own = found.filter(|found| object.owns(found));
        let remove = own.map(|_| name.clone()).into_iter().collect();
        return match object.is_held() {
            true => NetworkStep::Remove(Change { remove, ..Change::default() }),
            false => NetworkStep::Leave,
        };
    }
    if !object.is_held() {
        return NetworkStep::Hold;
    }
    if found.is_some_and(|found| found["spec"] == wanted["spec"]) {
        return NetworkStep::Stay(StatusCondition::accepted(
            true,
            IN_FORCE,
            "etcd has it as it is here",
        ));
    }
    let object = object.written(name, wanted["spec"].clone());
    NetworkStep::Put(Change { put: [(name.clone(), object)].into(), ..Change::default() })
}

/// A change of `object` that cannot be, because of `faults`, where etcd has `there`.
pub fn refused(
    faults: &[String],
    object: &SeenObject,
    there: &BTreeMap<StoredName, Value>,
) -> StatusCondition {
    let found = object.stored.as_ref().ok().and_then(|(name, _)| there.get(name));
    let kept = match found.map(|found| object.owns(found)) {
        Some(true) => "; what was accepted before stays in force",
        Some(false) => {
            "; the network of this name in etcd, which is not of this object, stays in force, even if this object is \
             deleted"
        }
        None => "",
    };
    StatusCondition::accepted(false, REFUSED, &format!("{}{kept}", faults.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::seen::FINALIZER;
    use crate::kube::Resource;
    use serde_json::json;

    fn next(name: &str, held: bool, deleting: bool, there: &[(&str, Value, &str)]) -> String {
        let mut metadata = json!({"name": name, "uid": "u1"});
        if held {
            metadata["finalizers"] = json!([FINALIZER]);
        }
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-11-26T09:00:00Z");
        }
        let object = json!({"metadata": metadata, "spec": {"subnets": ["10.1.0.0/16"]}});
        let object = SeenObject::read(Resource::Networks, &object);
        let there = there.iter().map(|(name, spec, uid)| {
            let kind = crate::sources::Kind::find("Network").unwrap();
            let name = StoredName::parse(kind, name).unwrap();
            let mut object = name.object(spec.clone());
            object["metadata"]["uid"] = json!(uid);
            (name, object)
        });
        match step(&object, &there.collect()) {
            NetworkStep::Hold => "hold".to_owned(),
            NetworkStep::Put(change) => {
                let (name, object) = change.put.into_iter().next().unwrap();
                format!("put {name} {}", object["metadata"]["uid"])
            }
            NetworkStep::Remove(change) => format!("remove {:?}", change.remove.len()),
            NetworkStep::Stay(condition) => condition.reason.to_owned(),
            NetworkStep::Leave => "leave".to_owned(),
        }
    }

    #[test]
    fn each_state_has_one_next_step() {
        let same = || ("blue/front", json!({"subnets": ["10.1.0.0/16"]}), "");
        let other = || ("blue/front", json!({"subnets": ["10.2.0.0/16"]}), "u1");
        let foreign = |uid| ("blue/front", json!({"subnets": ["10.2.0.0/16"]}), uid);
        for (held, deleting, there, wanted) in [
            (false, false, vec![], "hold"),
            (false, false, vec![same()], "hold"),
            (true, false, vec![], r#"put Network blue/front "u1""#),
            (true, false, vec![other()], r#"put Network blue/front "u1""#),
            (true, false, vec![same()], IN_FORCE),
            (true, true, vec![same()], "remove 1"),
            (true, true, vec![other()], "remove 1"),
            (true, true, vec![foreign("")], "remove 0"),
            (true, true, vec![foreign("u2")], "remove 0"),
            (true, true, vec![], "remove 0"),
            (false, true, vec![same()], "leave"),
        ] {
            assert_eq!(next("blue.front", held, deleting, &there), wanted);
        }
        assert_eq!(next("default.front", false, false, &[]), NOT_UNDERSTOOD);
        assert_eq!(next("default.front", true, true, &[]), "remove 0");
    }
}
