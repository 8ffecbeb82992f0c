//! Pure. Values of one etcd as they were read, each once for as long as its revision stays: where one of 1,000 policies
//! changes, all hosts read that one.

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::net::gather::Gather;
use crate::net::{Object, Problem};
use crate::policy::ObjectSource;
use crate::policy::read::documents::{self, Documents};
use crate::policy::read::{Parsed, policy};
use crate::sources::custom_resource::unused;
use crate::sources::ranges::WrittenValue;
use crate::sources::stored::{PROBLEMS_LIMIT, ReadValue, StoredName, StoredPolicies, problems};

/// By path.
#[derive(Debug, Default)]
pub struct KnownValues(BTreeMap<String, KnownValue>);

#[derive(Debug)]
struct KnownValue {
    revision: i64,
    object: Option<(StoredName, KnownObject)>,
    /// Why it is not understood.
    fault: Option<String>,
}

#[derive(Debug)]
enum KnownObject {
    Policy(Parsed),
    /// What it says depends on others.
    Other(Value),
}

impl KnownValue {
    fn read(path: &str, value: &WrittenValue) -> KnownValue {
        let ReadValue { object, fault } = ReadValue::of(path, &value.bytes);
        let known = |object: Value| match policy(&object) {
            Some(policy) => KnownObject::Policy(policy),
            None => KnownObject::Other(object),
        };
        let object = object.map(|(name, object)| (name, known(object)));
        KnownValue { revision: value.revision, object, fault }
    }
}

impl KnownValues {
    /// Reads those of `values` that are new or were written again, and forgets those that are gone.
    pub fn update(&mut self, values: &BTreeMap<String, WrittenValue>) {
        self.0.retain(|path, known| {
            values.get(path).is_some_and(|value| value.revision == known.revision)
        });
        for (path, value) in values {
            if !self.0.contains_key(path) {
                self.0.insert(path.clone(), KnownValue::read(path, value));
            }
        }
    }

    /// Path and fault of each value that is not understood.
    pub fn faults(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter().filter_map(|(path, known)| Some((path, known.fault.as_ref()?)))
    }

    fn objects(&self) -> impl Iterator<Item = (&StoredName, &KnownObject)> {
        self.0.values().filter_map(|known| known.object.as_ref()).map(|(name, it)| (name, it))
    }

    pub fn names(&self) -> impl Iterator<Item = &StoredName> {
        self.objects().map(|(name, _)| name)
    }

    /// The objects whose values are not understood, as problems of them have them.
    pub fn unread(&self) -> BTreeSet<Object> {
        let unread = self.0.values().filter(|known| known.fault.is_some());
        let names = unread.filter_map(|known| known.object.as_ref());
        names.map(|(name, _)| Object::named(name.to_string())).gather()
    }

    /// What they say together, as far as they are in force.
    pub fn in_force(&self, ruling: ObjectSource) -> Documents {
        let (mut policies, mut others) = (Parsed::default(), Vec::new());
        for (_, object) in self.objects().filter(|(name, _)| name.kind.is_in_force(ruling)) {
            match object {
                KnownObject::Policy(policy) => policies.append(policy.clone()),
                KnownObject::Other(object) => others.push(object),
            }
        }
        documents::read_beside(policies, others, true)
    }
}

impl StoredPolicies {
    /// What they say together, where those of humanz are `ruling` ones or not.
    pub fn read(&self, range: &str, ruling: ObjectSource) -> Documents {
        self.read_again(&mut KnownValues::default(), range, ruling)
    }

    /// The same, where values that stay as they were need not be read again.
    pub fn read_again(
        &self,
        known: &mut KnownValues,
        range: &str,
        ruling: ObjectSource,
    ) -> Documents {
        known.update(self.values());
        let mut problems = problems(range, known.faults());
        if ruling != ObjectSource::Etcd {
            let mut unused_names = known.names().filter(|name| !name.kind.is_in_force(ruling));
            let first = unused_names.next().map(ToString::to_string);
            let count = usize::from(first.is_some()) + unused_names.count();
            problems.extend(unused(count, first, "etcd", ruling.name()));
        }
        let mut read = known.in_force(ruling);
        if self.namespace_rules() > 0 && ruling == ObjectSource::Etcd {
            read.cluster.note_rule();
        }
        if ruling != ObjectSource::Etcd {
            // The other source may have them.
            let missing: Vec<Problem> = documents::missing_profiles(&read.profiles).collect();
            read.problems.retain(|problem| !missing.contains(problem));
        }
        // The closed object that stands for it is none that somebody wrote.
        if !read.problems.is_empty() {
            let unread = known.unread();
            read.problems.retain(|problem| !unread.contains(&problem.subject));
        }
        problems.append(&mut read.problems);
        problems.truncate(2 * PROBLEMS_LIMIT);
        let networks = read.networks.as_of(self.network_revisions());
        Documents { problems, networks, ..read }
    }
}

/// The pools of the networks in `objects`, values by their paths below the range of policies, each with the name of
/// its network.
pub fn tenant_pools(objects: &[(Vec<u8>, Vec<u8>)]) -> Vec<(IpNetwork, String)> {
    let mut stored = StoredPolicies::default();
    for (path, bytes) in objects {
        stored.set(path, Some(WrittenValue { bytes: bytes.clone(), revision: 0 }));
    }
    stored.read("", ObjectSource::Etcd).networks.named_pools()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::read::cluster_network_policy::NOT_ENFORCED;

    fn values(of: &[(&str, i64, Value)]) -> BTreeMap<String, WrittenValue> {
        let value = |(path, revision, object): &(&str, i64, Value)| {
            let bytes = object.to_string().into_bytes();
            ((*path).to_owned(), WrittenValue { bytes, revision: *revision })
        };
        of.iter().map(value).collect()
    }

    fn policy(name: &str, direction: &str) -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"podSelector": {}, "policyTypes": [direction]},
        })
    }

    #[test]
    fn what_was_written_again_or_is_gone_is_not_as_it_was() {
        let group = json!({
            "apiVersion": "humanz.io/v1", "kind": "Group", "metadata": {"name": "web"},
            "spec": {"default": "deny"},
        });
        let one = |direction| policy("one", direction);
        let [first, second] = ["NetworkPolicy/shop/one", "NetworkPolicy/shop/two"];
        let histories = [
            vec![(first, 5, one("Ingress")), ("Group/default/web", 6, group.clone())],
            vec![(first, 5, one("Ingress")), (second, 7, policy("two", "Ingress"))],
            vec![(first, 8, one("Egress")), (second, 7, policy("two", "Ingress"))],
            vec![(first, 9, json!("none")), ("Group/default/web", 10, group)],
            vec![(first, 11, one("Ingress"))],
            vec![],
        ];
        let mut known = KnownValues::default();
        for history in histories {
            let values = values(&history);
            known.update(&values);
            let mut fresh = KnownValues::default();
            fresh.update(&values);
            let (read, wanted) =
                (known.in_force(ObjectSource::Etcd), fresh.in_force(ObjectSource::Etcd));
            assert_eq!((read.rules, read.problems), (wanted.rules, wanted.problems));
            assert!(known.faults().eq(fresh.faults()) && known.names().eq(fresh.names()));
        }
    }

    #[test]
    fn a_value_that_is_not_understood_says_what_holds_of_it() {
        let mut stored = StoredPolicies::default();
        let paths = ["ClusterNetworkPolicy/p", "Group/blue/web", "Network/blue/front"];
        for path in paths {
            let value = WrittenValue { bytes: b"{".to_vec(), revision: 1 };
            stored.set(path.as_bytes(), Some(value));
        }
        let read = stored.read("/p/", ObjectSource::Etcd);
        let unread: Vec<String> = read.unread.iter().map(ToString::to_string).collect();
        assert_eq!(unread, ["ClusterNetworkPolicy p"], "its rules of before are kept");
        assert_eq!(read.problems.len(), paths.len(), "one problem of each: {:?}", read.problems);
        assert!(read.rules.iter().all(|rule| rule.origin.name.as_str() != "p"));
        for (path, holds) in paths.into_iter().zip([
            NOT_ENFORCED,
            "what it is about is closed",
            "what this host knew of it holds",
        ]) {
            let key = format!("etcd key /p/{path}");
            let problem = read.problems.iter().find(|it| it.subject.to_string().contains(&key));
            let what = problem.map(|problem| problem.what.as_str()).unwrap_or_default();
            assert!(what.ends_with(holds), "{path}: {what}");
        }
    }
}
