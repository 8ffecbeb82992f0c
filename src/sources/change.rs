//! Pure. Changes of the policies in etcd, each as one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value};

use crate::lease::blocks::held::HeldBlock;
use crate::lease::transaction::{Transaction, Write};
use crate::net::Problem;
use crate::policy::network::NetworkOverlap;
use crate::policy::read::documents;
use crate::policy::{Networks, ObjectSource};
use crate::sources::other_use::{OtherUse, other_uses};
use crate::sources::ranges::WrittenValue;
use crate::sources::references::dangling;
use crate::sources::stored::{MARK, OBJECTS_LIMIT, StoredName, StoredPolicies, VALUE_LIMIT};
use crate::sources::stored_hosts::StoredHosts;

/// Writes in one transaction: nested ones, because etcd limits each to 128 (`--max-txn-ops`), and one inside
/// another to what is left.
const TOGETHER: usize = 60;

/// Bytes in one request. Source: etcd's `--max-request-bytes`, 1.5 MiB.
const BYTES: usize = 1_400_000;

/// What is to be put and removed.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub put: BTreeMap<StoredName, Value>,
    pub remove: Vec<StoredName>,
    /// Custom resources that are in force in place of objects here: what refers to them is looked up there.
    pub custom: Option<Arc<BTreeMap<StoredName, Value>>>,
}

/// What a change does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Added,
    Replaced,
    Removed,
    /// It is there as it should be.
    Unchanged,
}

/// A change that may be made.
#[derive(Clone, Debug)]
pub struct Planned {
    pub effects: Vec<(StoredName, Effect)>,
    pub transaction: Transaction,
    /// What was wrong before, and stays so.
    pub problems: Vec<Problem>,
    /// Pools that networks would have and have not, each with the name of its network.
    new_pools: Vec<(IpNetwork, String)>,
    /// Addresses that would be used otherwise.
    pub other_uses: Vec<OtherUse>,
}

impl Planned {
    /// Nothing is changed if a host has a block of what would have another use, with these `blocks` below `range` at
    /// `revision` now.
    ///
    /// # Errors
    /// The networks, and the hosts that have blocks of them.
    pub fn spare_blocks(
        &mut self,
        blocks: &[HeldBlock],
        range: &str,
        revision: i64,
    ) -> Result<(), Vec<String>> {
        let faults: Vec<String> =
            self.other_uses.iter().filter_map(|it| it.refused(blocks)).collect();
        self.transaction.range_unchanged(range, revision);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Nothing is changed if the settings in etcd are not as `hosts` had them: their pool may have grown.
    ///
    /// # Errors
    /// The networks that would be given addresses of hosts.
    pub fn spare_hosts(&mut self, hosts: &StoredHosts) -> Result<(), Vec<String>> {
        let (key, modified) = &hosts.settings;
        self.transaction.unchanged(key, *modified);
        let refused = |(pool, name): &(IpNetwork, String)| {
            Some(format!("Network {name}: {}", hosts.refuses(*pool)?))
        };
        let faults: Vec<String> = self.new_pools.iter().filter_map(refused).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

impl Change {
    /// It gives networks their addresses.
    pub fn has_networks(&self) -> bool {
        self.put.keys().any(|name| name.kind.name == "Network")
    }

    /// Puts `objects`, each of which stands once among them.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn put(objects: Vec<Value>) -> Result<Change, Vec<String>> {
        let (mut put, mut faults) = (BTreeMap::new(), Vec::new());
        for object in objects {
            match StoredName::of_new(&object) {
                Err(why) => faults.push(why),
                Ok(name) => {
                    if put.insert(name.clone(), bare(object)).is_some() {
                        faults.push(format!("{name} is given twice"));
                    }
                }
            }
        }
        if faults.is_empty() { Ok(Change { put, ..Change::default() }) } else { Err(faults) }
    }

    /// The transaction for this, with `stored` below `range` at `revision` now, and `pools` of the settings.
    ///
    /// # Errors
    /// Everything that would be wrong then and is not now, or why it is too much.
    pub fn plan(
        &self,
        stored: &StoredPolicies,
        range: &str,
        revision: i64,
        pools: &[IpNetwork],
    ) -> Result<Planned, Vec<String>> {
        let before = self.in_force(stored.objects(range).0);
        let mut after = before.clone();
        after.extend(self.put.clone());
        let mut faults = Vec::new();
        for name in &self.remove {
            if after.remove(name).is_none() {
                let near = StoredName::meant(
                    &[name.kind.name],
                    (name.scope.as_ref(), &name.name),
                    before.keys(),
                );
                faults.push(format!("{name} is not there{}", near.unwrap_or_default()));
            }
        }
        faults.extend(new_faults(&before, &after, pools));
        let count = after.len() - self.custom.as_ref().map_or(0, |custom| custom.len());
        if count > OBJECTS_LIMIT {
            faults.push(format!("{count} objects: {OBJECTS_LIMIT} is the limit"));
        }
        let effects = self.effects(&before);
        let transaction = self.transaction(&effects, range, revision, &mut faults);
        if !faults.is_empty() {
            return Err(faults);
        }
        let (had, has) = (networks(&before), networks(&after));
        let other_uses = other_uses(&had, &has);
        let had = had.named_pools();
        let mut new_pools = has.named_pools();
        new_pools.retain(|pool| !had.contains(pool));
        let problems = self.applied(stored).read(range, ObjectSource::Etcd).problems;
        Ok(Planned { effects, transaction, problems, new_pools, other_uses })
    }

    /// What etcd has then.
    fn applied(&self, stored: &StoredPolicies) -> StoredPolicies {
        let mut after = stored.clone();
        for (name, object) in &self.put {
            let value = WrittenValue { bytes: object.to_string().into_bytes(), revision: 0 };
            after.set(name.path().as_bytes(), Some(value));
        }
        self.remove.iter().for_each(|name| after.set(name.path().as_bytes(), None));
        after
    }

    /// With custom resources in place of the objects of etcd that are not in force beside them.
    fn in_force(&self, mut objects: BTreeMap<StoredName, Value>) -> BTreeMap<StoredName, Value> {
        if let Some(custom) = &self.custom {
            objects.retain(|name, _| name.kind.is_in_force(ObjectSource::Kubernetes));
            objects.extend(custom.iter().map(|(name, object)| (name.clone(), object.clone())));
        }
        objects
    }

    fn effects(&self, before: &BTreeMap<StoredName, Value>) -> Vec<(StoredName, Effect)> {
        let put = self.put.iter().map(|(name, object)| {
            let effect = match before.get(name) {
                None => Effect::Added,
                Some(found) if found == object || bare(found.clone()) == *object => {
                    Effect::Unchanged
                }
                Some(_) => Effect::Replaced,
            };
            (name.clone(), effect)
        });
        put.chain(self.remove.iter().map(|name| (name.clone(), Effect::Removed))).collect()
    }

    fn transaction(
        &self,
        effects: &[(StoredName, Effect)],
        range: &str,
        revision: i64,
        faults: &mut Vec<String>,
    ) -> Transaction {
        let (mut writes, mut bytes) = (Vec::new(), 0);
        for (name, effect) in effects {
            if *effect == Effect::Unchanged {
                continue;
            }
            let key = format!("{range}{}", name.path());
            bytes += key.len();
            match self.put.get(name) {
                Some(object) => {
                    let value = object.to_string();
                    if value.len() > VALUE_LIMIT {
                        faults.push(format!("{name}: more than {VALUE_LIMIT} bytes"));
                    }
                    bytes += value.len();
                    writes.push(Write::Put { key, value, lease: 0 });
                }
                None => writes.push(Write::Delete { key }),
            }
        }
        if writes.len() > TOGETHER * TOGETHER || bytes > BYTES {
            let why = format!("{} changes with {bytes} bytes", writes.len());
            // With it each part would take out the others.
            faults.push(format!(
                "{why} are too much for one transaction: apply them in parts, without --prune"
            ));
        }
        let mut transaction = Transaction::default();
        transaction.range_unchanged(range, revision);
        for some in writes.chunks(TOGETHER) {
            let inner = Transaction { conditions: Vec::new(), writes: some.to_vec() };
            transaction.writes.push(Write::Try(inner));
        }
        // Every change writes it: what was read before is not the state any more.
        transaction.put(format!("{range}{MARK}"), "");
        transaction
    }
}

/// What is wrong with `after` and not with `before`.
fn new_faults(
    before: &BTreeMap<StoredName, Value>,
    after: &BTreeMap<StoredName, Value>,
    pools: &[IpNetwork],
) -> Vec<String> {
    let read = |objects: &BTreeMap<StoredName, Value>| {
        let objects: Vec<Value> = objects.values().cloned().collect();
        let read = documents::read(&objects, true);
        let overlaps = read.networks.beside(pools.to_vec()).overlaps().into_iter();
        let with_settings = overlaps.filter(NetworkOverlap::is_with_settings);
        let problems = read.problems.into_iter().chain(with_settings.map(|it| it.problem()));
        problems.map(|problem| problem.to_string()).collect::<Vec<_>>()
    };
    let had = read(before);
    let mut faults: Vec<String> =
        read(after).into_iter().filter(|fault| !had.contains(fault)).collect();
    // A group that misses a policy is closed, and its reader says so; as one does of a missing profile.
    let missing = dangling(before);
    let new = dangling(after).into_iter().filter(|one| !missing.contains(one));
    let new = new.filter(|(name, _)| !["Group", "Network"].contains(&name.kind.name));
    faults.extend(new.map(|(name, (kind, wanted))| {
        let near = StoredName::meant(&[kind], (Some(&wanted.tenant), &wanted.name), after.keys());
        format!("{name}: {kind} {wanted} does not exist{}", near.unwrap_or_default())
    }));
    faults
}

/// The networks among `objects`.
fn networks(objects: &BTreeMap<StoredName, Value>) -> Networks {
    let networks = objects.iter().filter(|(name, _)| name.kind.name == "Network");
    documents::read(&networks.map(|(_, it)| it.clone()).collect::<Vec<_>>(), true).networks
}

/// What is kept of an object: no status, and nothing that a server adds.
fn bare(mut object: Value) -> Value {
    const KEPT: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];
    const NAMES: [&str; 5] = ["name", "namespace", "tenant", "labels", "annotations"];
    let keep = |value: Option<&mut Map<String, Value>>, kept: &[&str]| {
        if let Some(fields) = value {
            fields.retain(|field, value| kept.contains(&field.as_str()) && !value.is_null());
        }
    };
    keep(object["metadata"].as_object_mut(), &NAMES);
    keep(object.as_object_mut(), &KEPT);
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::Roots;
    use crate::policy::Scoped;
    use serde_json::json;

    const RANGE: &str = "/h-policies/";

    fn own(kind: &str, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    }

    fn stored(objects: &[Value]) -> StoredPolicies {
        let mut stored = StoredPolicies::default();
        for object in objects {
            let path = StoredName::of(object).unwrap().path();
            let value = WrittenValue { bytes: object.to_string().into_bytes(), revision: 3 };
            stored.set(path.as_bytes(), Some(value));
        }
        stored
    }

    fn faults(there: &[Value], put: &[Value], remove: &[&Value]) -> String {
        let change = match Change::put(put.to_vec()) {
            Err(faults) => return faults.join("; "),
            Ok(put) => put,
        };
        let remove = remove.iter().map(|object| StoredName::of(object).unwrap()).collect();
        let planned = Change { remove, ..change }.plan(
            &stored(there),
            RANGE,
            7,
            &["10.244.0.0/16".parse().unwrap()],
        );
        planned.err().unwrap_or_default().join("; ")
    }

    #[test]
    fn a_change_that_leaves_a_name_without_its_object_is_refused() {
        let group = |policies: Value| own("Group", "web", &json!({"policies": policies}));
        let from = |peer: &str| {
            let peer = json!({"group": peer});
            let rule = json!({"direction": "in", "action": "allow", "peer": peer});
            own("GroupPolicy", "front", &json!({"rules": [rule]}))
        };
        assert!(
            faults(&[], &[group(json!(["front"]))], &[])
                .contains("policy default/front does not exist")
        );
        assert!(faults(&[], &[from("web")], &[]).contains("Group default/web does not exist"));
        let both = [group(json!(["front"])), from("web")];
        assert_eq!(faults(&[], &both, &[]), "");
        assert!(
            faults(&both, &[], &[&both[0]])
                .contains("GroupPolicy default/front: Group default/web")
        );
        assert!(faults(&both, &[], &[&both[1]]).contains("does not exist"));
        assert_eq!(faults(&both, &[], &[&both[0], &both[1]]), "");
        let network = |pool: &str| own("Network", "front", &json!({"subnets": [pool]}));
        assert_eq!(faults(&both, &[network("10.1.0.0/16")], &[]), "");
        let wide = faults(&both, &[network("10.0.0.0/8")], &[]);
        assert!(
            wide.contains("10.244.0.0/16 lies in 10.0.0.0/8 of network default/front"),
            "{wide}"
        );
        let rule = own("NamespaceRule", "shop", &json!({"network": "front"}));
        assert_eq!(faults(&both, &[network("10.1.0.0/16"), rule.clone()], &[]), "");
        assert!(faults(&both, &[rule], &[]).contains("Network default/front does not exist"));
        let gold = own("NetProfile", "gold", &json!({"dscp": 46}));
        for user in [own("Group", "fast", &json!({"profile": "gold"})), {
            let subnets = json!({"subnets": ["10.1.0.0/16"], "profile": "gold"});
            own("Network", "fast", &subnets)
        }] {
            let missing = "profile: NetProfile default/gold does not exist";
            assert!(faults(&both, std::slice::from_ref(&user), &[]).ends_with(missing));
            assert_eq!(faults(&both, &[user.clone(), gold.clone()], &[]), "");
            let kind = user["kind"].as_str().unwrap();
            let used = faults(&[user.clone(), gold.clone()], &[], &[&gold]);
            assert_eq!(used, format!("{kind} default/fast: {missing}"));
            assert_eq!(faults(&[user.clone(), gold.clone()], &[], &[&gold, &user]), "");
        }
        let rule = own("NamespaceRule", "shop", &json!({"group": "gone"}));
        assert!(faults(&both, &[rule], &[]).contains("Group default/gone does not exist"));
    }

    #[test]
    fn what_is_not_understood_is_refused_and_what_was_wrong_before_stands_in_no_way() {
        let bad = own("Group", "bad", &json!({"default": "perhaps"}));
        assert!(faults(&[], std::slice::from_ref(&bad), &[]).contains("perhaps"));
        assert_eq!(
            faults(std::slice::from_ref(&bad), &[own("Group", "good", &json!({}))], &[]),
            ""
        );
        assert!(
            faults(&[], &[json!({"kind": "Secret", "apiVersion": "v1"})], &[]).contains("Secret")
        );
        assert!(faults(&[], &[json!("text")], &[]).contains("not kept"));
        let twice = own("Group", "x", &json!({}));
        assert!(faults(&[], &[twice.clone(), twice.clone()], &[]).contains("twice"));
        assert!(faults(&[], &[], &[&twice]).contains("is not there"));
    }

    #[test]
    fn what_a_change_takes_out_or_corrects_is_reported_no_more() {
        let mut there = stored(&[own("Group", "bad", &json!({"default": "perhaps"}))]);
        let unread = WrittenValue { bytes: b"{".to_vec(), revision: 3 };
        there.set(b"Group/default/unread", Some(unread));
        let names =
            ["bad", "unread"].map(|name| StoredName::of(&own("Group", name, &json!({}))).unwrap());
        let left = |put: &[&str], remove: &[StoredName]| {
            let put = put.iter().map(|name| own("Group", name, &json!({}))).collect();
            let change = Change { remove: remove.to_vec(), ..Change::put(put).unwrap() };
            let planned = change.plan(&there, RANGE, 7, &[]).unwrap();
            planned.problems.iter().map(|problem| problem.subject.to_string()).collect::<Vec<_>>()
        };
        let unread = format!("etcd key {RANGE}Group/default/unread");
        assert_eq!(left(&["other"], &[]), [unread.clone(), "Group default/bad".to_owned()]);
        assert_eq!(left(&[], &names[1..]), ["Group default/bad"]);
        let only_unread = [unread];
        assert_eq!(left(&["bad"], &[]), only_unread);
        assert_eq!(left(&[], &names[..1]), only_unread);
        assert_eq!(left(&["unread"], &names[..1]), [""; 0]);
    }

    #[test]
    fn networks_are_known_as_of_the_revision_of_their_objects() {
        let objects = [
            own("Network", "front", &json!({"subnets": ["10.1.0.0/16"]})),
            own("Group", "g", &json!({})),
        ];
        let name = Scoped { tenant: "default".parse().unwrap(), name: "front".parse().unwrap() };
        assert_eq!(
            stored(&objects).read(RANGE, ObjectSource::Etcd).networks.revision(&name),
            Some(3)
        );
        assert_eq!(
            stored(&objects[1..]).read(RANGE, ObjectSource::Etcd).networks.revision(&name),
            None
        );
        let roots = Roots { hosts: "/x".into(), counter: "/c".into(), humanz: "/h".into() };
        let key = format!("{RANGE}{}", StoredName::of(&objects[0]).unwrap().path());
        assert_eq!(roots.network(&name.to_string()), key);
    }

    #[test]
    fn what_the_controller_wrote_for_a_custom_resource_is_the_same_object() {
        let mut network = own("Network", "front", &json!({"subnets": ["10.1.0.0/16"]}));
        let change = Change::put(vec![network.clone()]).unwrap();
        network["metadata"]["uid"] = json!("u1");
        let planned = change.plan(&stored(&[network]), RANGE, 7, &[]).unwrap();
        assert_eq!(planned.effects[0].1, Effect::Unchanged);
    }

    #[test]
    fn a_transaction_is_within_what_etcd_takes_and_changes_only_what_differs() {
        let groups: Vec<Value> =
            (0..1000).map(|number| own("Group", &format!("g{number}"), &json!({}))).collect();
        let change = Change::put(groups.clone()).unwrap();
        let planned = change.plan(&stored(&groups[..999]), RANGE, 7, &[]).unwrap();
        let count = |effect| planned.effects.iter().filter(|(_, found)| *found == effect).count();
        assert_eq!((count(Effect::Added), count(Effect::Unchanged)), (1, 999));
        let all = change.plan(&StoredPolicies::default(), RANGE, 0, &[]).unwrap().transaction;
        assert_eq!(all.writes.len(), 1000usize.div_ceil(TOGETHER) + 1);
        assert!(all.writes.len() <= 64);
    }

    #[test]
    fn what_stays_takes_no_room_and_parts_are_applied_without_prune() {
        let group = |at: usize| own("Group", &format!("g{at}-{}", "a".repeat(230)), &json!({}));
        let groups = |count: usize| (0..count).map(group).collect::<Vec<_>>();
        let many = groups(6000);
        assert_eq!(faults(&many, &many, &[]), "");
        let refused = faults(&[], &groups(TOGETHER * TOGETHER + 1), &[]);
        assert!(refused.contains("apply them in parts, without --prune"), "{refused}");
    }
}
