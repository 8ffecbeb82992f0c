//! Pure. All nodes of the cluster as the one snapshot that routes are made of.
//!
//! The attributes that hosts publish in etcd are derived here: the tunnel's MAC from the pod subnet, its
//! identifier and port from this host's settings. So hosts need no write permission.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::kube::object::{self, NodeObject, PageEnd};
use crate::kube::query::{Query, SOON_ASKED};
use crate::lease::identity::HostAttributes;
use crate::lease::records::{Alive, NodeName, NodeRecord, RecordError, Tunnel};
use crate::lease::snapshot::{IgnoredKey, RecordStore, Snapshot, Stored};

/// All nodes, as of a version of the list.
#[derive(Clone, Debug)]
pub struct Nodes {
    own_name: NodeName,
    own: Option<NodeObject>,
    attributes: HostAttributes,
    snapshot: Snapshot,
}

/// All nodes. One has about 10 kB in a real cluster, and up to 1.5 MB.
pub fn query() -> Query {
    Query {
        name: "nodes",
        path: "/api/v1/nodes".into(),
        field_selector: None,
        page: 100,
        limit: 100_000,
        is_optional: false,
        had_objects: false,
        ask_again: SOON_ASKED,
    }
}

impl Nodes {
    /// None yet. `own`: the name of this host; `attributes`: how it is reached, and therefore all others.
    pub fn new(own: NodeName, attributes: HostAttributes) -> Nodes {
        Nodes { own_name: own, own: None, attributes, snapshot: Snapshot::default() }
    }

    /// This host's own node, if there is one.
    pub fn own(&self) -> Option<&NodeObject> {
        self.own.as_ref()
    }

    /// All of them.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Takes in a page of the list.
    ///
    /// # Errors
    /// Not a page of nodes.
    pub fn take_page(&mut self, bytes: &[u8]) -> Result<PageEnd, String> {
        let (nodes, end) = object::page(bytes)?;
        for node in nodes {
            match node {
                Ok(node) => self.put(node),
                Err(fault) => self.put_faulty(fault),
            }
        }
        Ok(end)
    }

    /// Takes in a node as it is now.
    pub fn put(&mut self, node: NodeObject) {
        let Snapshot { hosts, nodes, alive, faults, .. } = &mut self.snapshot;
        let (name, created) = (&node.name, node.created);
        let stored = |value| Stored { value, created, modified: created };
        set(hosts, name, node.subnets.iter().next().map(|subnet| stored(*subnet)));
        let record = Arc::new(record(&node, &self.attributes));
        set(nodes, name, Some(Stored { value: record, created, modified: created }));
        let sign = || Arc::new(Alive::new(&node.machine_id, UNIX_EPOCH));
        let sign = node.ready.then(|| Stored { value: sign(), created, modified: created });
        set(alive, name, sign);
        let fault = node.fault.clone().map(|what| fault(name.as_str(), what, created));
        set(faults, &name.as_str().into(), fault);
        if *name == self.own_name {
            self.own = Some(node);
        }
    }

    pub fn remove(&mut self, name: &NodeName) {
        let Snapshot { hosts, nodes, alive, faults, .. } = &mut self.snapshot;
        set(hosts, name, None);
        set(nodes, name, None);
        set(alive, name, None);
        set(faults, &name.as_str().into(), None);
        if *name == self.own_name {
            self.own = None;
        }
    }

    /// Adds a node that cannot be a host.
    pub fn put_faulty(&mut self, what: RecordError) {
        let key = what.to_string();
        let fault = fault("", what, 0);
        set(&mut self.snapshot.faults, &key.into(), Some(fault));
    }

    /// Sets the version. Versions are opaque; as numbers they are for display.
    pub fn reached(&mut self, version: &str) {
        self.snapshot.revision = version.parse().unwrap_or(0);
    }

    /// Applies other attributes to all hosts.
    pub fn set_attributes(&mut self, attributes: HostAttributes) {
        self.attributes = attributes;
        for stored in Arc::make_mut(&mut self.snapshot.nodes).values_mut() {
            let mut record = NodeRecord::clone(&stored.value);
            describe(&mut record, &self.attributes);
            stored.value = Arc::new(record);
        }
    }
}

/// The record that the host would publish.
fn record(node: &NodeObject, attributes: &HostAttributes) -> NodeRecord {
    let mut record = NodeRecord::new(&node.machine_id, &node.boot_id, "");
    record.subnets = node.subnets;
    record.addresses = node.addresses;
    describe(&mut record, attributes);
    record
}

/// The attributes of this host apply to every host; its MTU is unknown, which is 0.
fn describe(record: &mut NodeRecord, attributes: &HostAttributes) {
    record.backend = attributes.backend.clone();
    record.tunnel = attributes.tunnel.and_then(|vxlan| Tunnel::of(&record.subnets, vxlan));
}

fn fault(key: &str, what: RecordError, revision: i64) -> IgnoredKey {
    IgnoredKey {
        store: RecordStore::Kubernetes,
        key: key.into(),
        what,
        created: revision,
        modified: revision,
    }
}

/// Sets or removes an entry; a map that is shared is copied only if that changes it.
fn set<K: Ord + Clone, V: Clone + PartialEq>(
    map: &mut Arc<BTreeMap<K, V>>,
    key: &K,
    value: Option<V>,
) {
    if map.get(key) == value.as_ref() {
        return;
    }
    let map = Arc::make_mut(map);
    match value {
        Some(value) => drop(map.insert(key.clone(), value)),
        None => drop(map.remove(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::peers::{Peers, peers};
    use crate::lease::records::{Backend, Vxlan};
    use crate::net::PerFamily;
    use crate::net::subnet::{Pool, parse};

    fn nodes() -> Nodes {
        let tunnel = Some(Vxlan { vni: 104, port: 10400 });
        let attributes =
            HostAttributes { backend: Backend::Auto, tunnel, ..HostAttributes::default() };
        Nodes::new("h1".parse().unwrap(), attributes)
    }

    /// Name, pod subnet, address, digits of the time of registration.
    fn node(name: &str, subnet: &str, address: &str, created: i64) -> NodeObject {
        let subnets = PerFamily { v4: parse(subnet).ok(), v6: None };
        NodeObject {
            name: name.parse().unwrap(),
            subnets,
            fault: None,
            addresses: PerFamily { v4: address.parse().ok(), v6: None },
            created,
            machine_id: "m".into(),
            boot_id: "b".into(),
            ready: true,
            unavailable: false,
        }
    }

    fn seen(nodes: &Nodes) -> Peers {
        let own = PerFamily { v4: parse("10.244.1.0/24").ok(), v6: None };
        let pool = Pool::new(parse("10.244.0.0/16").unwrap(), 8).ok();
        peers(nodes.snapshot(), &"h1".parse().unwrap(), &own, &PerFamily { v4: pool, v6: None })
    }

    fn check(found: &[NodeObject], expected: &[&str], faults: &[&str]) {
        let mut nodes = nodes();
        found.iter().for_each(|node| nodes.put(node.clone()));
        let peers = seen(&nodes);
        let shown = peers.by_name.iter().map(|(name, peer)| {
            let (subnet, address) = (peer.subnets.v4.unwrap(), peer.addresses.v4);
            format!("{name} {subnet} {}", address.map_or("-".to_owned(), |a| a.to_string()))
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        let found = peers.faults.iter().map(ToString::to_string);
        let found: Vec<_> =
            found.chain(nodes.snapshot().faults.values().map(ToString::to_string)).collect();
        assert_eq!(found, faults);
    }

    #[test]
    fn every_node_with_a_pod_subnet_is_a_host_whose_tunnel_follows_from_it() {
        let h2 = node("h2", "10.244.2.0/24", "192.0.2.12", 2);
        check(
            &[
                node("h1", "10.244.1.0/24", "192.0.2.11", 1),
                h2.clone(),
                node("h3", "", "192.0.2.13", 3),
            ],
            &["h2 10.244.2.0/24 192.0.2.12"],
            &[],
        );
        let mut nodes = nodes();
        nodes.put(h2);
        let tunnel = |nodes: &Nodes| {
            let peers = seen(nodes);
            let peer = &peers.by_name["h2"];
            assert!(!peer.python && peer.alive);
            peer.tunnel.map(|tunnel| format!("{} {} {}", tunnel.mac, tunnel.vni, tunnel.port))
        };
        assert_eq!(tunnel(&nodes).as_deref(), Some("0a:58:0a:f4:02:00 104 10400"));
        nodes.set_attributes(HostAttributes { tunnel: None, ..HostAttributes::default() });
        assert_eq!(tunnel(&nodes), None);
    }

    #[test]
    fn of_two_nodes_with_one_pod_subnet_the_one_registered_first_has_it() {
        check(
            &[
                node("a", "10.244.2.0/24", "192.0.2.21", 5),
                node("b", "10.244.2.0/25", "192.0.2.22", 4),
                node("c", "10.244.1.128/25", "192.0.2.23", 1),
                node("d", "10.9.9.0/24", "192.0.2.24", 1),
                node("e", "10.244.5.0/24", "127.0.0.1", 1),
            ],
            &["b 10.244.2.0/25 192.0.2.22", "e 10.244.5.0/24 -"],
            &[
                "host c: subnet 10.244.1.128/25 is ignored: it overlaps 10.244.1.0/24 of host h1 (this host)",
                "host d: subnet 10.9.9.0/24 is ignored: it is not in the pool 10.244.0.0/16",
                "host a: subnet 10.244.2.0/24 is ignored: it overlaps 10.244.2.0/25 of host b",
                "host e: address 127.0.0.1 is ignored: it is not an address by which other hosts reach a host",
            ],
        );
    }

    #[test]
    fn a_changed_or_deleted_node_leaves_nothing_behind() {
        let mut nodes = nodes();
        let mut h2 = node("h2", "", "192.0.2.12", 2);
        h2.fault = Some(RecordError::Json("garbage".to_owned()));
        nodes.put(h2);
        assert_eq!(
            nodes.snapshot().faults["h2"].to_string(),
            r#"Kubernetes node "h2": value is not valid: garbage"#
        );
        nodes.put(node("h2", "10.244.2.0/24", "192.0.2.12", 2));
        assert!(nodes.snapshot().faults.is_empty());
        let before = nodes.snapshot().clone();
        nodes.put(node("h2", "10.244.2.0/24", "192.0.2.12", 2));
        nodes.reached("17");
        assert!(before.says_the_same(nodes.snapshot()) && nodes.snapshot().revision == 17);
        nodes.put(node("h1", "10.244.1.0/24", "192.0.2.11", 1));
        assert!(nodes.own().is_some());
        nodes.remove(&"h1".parse().unwrap());
        nodes.remove(&"h2".parse().unwrap());
        assert!(nodes.own().is_none());
        assert!(Snapshot::default().says_the_same(nodes.snapshot()));
    }
}
