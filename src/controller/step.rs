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
    /// It is going, and nobody waits for us.
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
        let remove = found.map(|_| name.clone()).into_iter().collect();
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
    let object = name.object(wanted["spec"].clone());
    NetworkStep::Put(Change { put: [(name.clone(), object)].into(), ..Change::default() })
}

/// A change that cannot be, because of `faults`; etcd has one of its name or not.
pub fn refused(faults: &[String], is_there: bool) -> StatusCondition {
    let kept = if is_there { "; what was accepted before stays in force" } else { "" };
    StatusCondition::accepted(false, REFUSED, &format!("{}{kept}", faults.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::seen::FINALIZER;
    use crate::kube::Resource;
    use serde_json::json;

    fn next(name: &str, held: bool, deleting: bool, there: &[(&str, Value)]) -> String {
        let mut metadata = json!({"name": name});
        if held {
            metadata["finalizers"] = json!([FINALIZER]);
        }
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-11-26T09:00:00Z");
        }
        let object = json!({"metadata": metadata, "spec": {"subnets": ["10.1.0.0/16"]}});
        let object = SeenObject::read(Resource::Networks, &object);
        let there = there.iter().map(|(name, spec)| {
            let kind = crate::sources::Kind::find("Network").unwrap();
            let name = StoredName::parse(kind, name).unwrap();
            (name.clone(), name.object(spec.clone()))
        });
        match step(&object, &there.collect()) {
            NetworkStep::Hold => "hold".to_owned(),
            NetworkStep::Put(change) => format!("put {}", change.put.keys().next().unwrap()),
            NetworkStep::Remove(change) => format!("remove {:?}", change.remove.len()),
            NetworkStep::Stay(condition) => condition.reason.to_owned(),
            NetworkStep::Leave => "leave".to_owned(),
        }
    }

    #[test]
    fn each_state_has_one_next_step() {
        let same = || ("blue/front", json!({"subnets": ["10.1.0.0/16"]}));
        let other = || ("blue/front", json!({"subnets": ["10.2.0.0/16"]}));
        for (held, deleting, there, wanted) in [
            (false, false, vec![], "hold"),
            (false, false, vec![same()], "hold"),
            (true, false, vec![], "put Network blue/front"),
            (true, false, vec![other()], "put Network blue/front"),
            (true, false, vec![same()], IN_FORCE),
            (true, true, vec![same()], "remove 1"),
            (true, true, vec![other()], "remove 1"),
            (true, true, vec![], "remove 0"),
            (false, true, vec![same()], "leave"),
        ] {
            assert_eq!(next("blue.front", held, deleting, &there), wanted);
        }
        assert_eq!(next("default.front", false, false, &[]), NOT_UNDERSTOOD);
        assert_eq!(next("default.front", true, true, &[]), "remove 0");
    }
}
