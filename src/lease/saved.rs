//! Pure. The last known good state of this host, and its text in the state file.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::lease::identity::{Identity, Lease};
use crate::lease::records::{ClusterConfig, NodeName, NodeRecord};
use crate::lease::snapshot::{Cluster, Snapshot, Stored};
use crate::net::{PerFamily, hash};

/// The last known good state.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    pub host: NodeName,
    pub machine_id: String,
    pub lease: Lease,
    /// All hosts. Alive keys and faults are not saved.
    pub snapshot: Arc<Snapshot>,
    /// The last addresses of hosts that publish none, by their names.
    pub resolved: Resolved,
}

/// Addresses that the names of hosts resolve to.
pub type Resolved = BTreeMap<NodeName, PerFamily<IpAddr>>;

/// Version of the file.
const SCHEMA: u32 = 1;

/// Key, value, revision of creation, revision of the last change.
type StoredEntry<K, V> = (K, V, i64, i64);

/// The state in the file, to write.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StateFileView<'a> {
    host: &'a NodeName,
    machine_id: &'a str,
    lease: &'a Lease,
    revision: i64,
    config: Option<StoredEntry<&'a (), &'a ClusterConfig>>,
    hosts: Vec<StoredEntry<&'a NodeName, &'a IpNetwork>>,
    nodes: Vec<StoredEntry<&'a NodeName, &'a NodeRecord>>,
    claims: Vec<StoredEntry<&'a IpNetwork, &'a NodeName>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    resolved: &'a Resolved,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    without_record: &'a BTreeSet<NodeName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Cluster>,
}

/// The state in the file, as read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateFile {
    host: NodeName,
    machine_id: String,
    lease: Lease,
    revision: i64,
    config: Option<StoredEntry<(), ClusterConfig>>,
    hosts: Vec<StoredEntry<NodeName, IpNetwork>>,
    nodes: Vec<StoredEntry<NodeName, NodeRecord>>,
    claims: Vec<StoredEntry<IpNetwork, NodeName>>,
    #[serde(default)]
    resolved: Resolved,
    #[serde(default)]
    without_record: BTreeSet<NodeName>,
    cluster: Option<Cluster>,
}

impl Saved {
    /// It was saved by the host that `identity` describes: not by the one this disk was copied
    /// from.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.host == identity.name && self.machine_id == identity.machine_id
    }

    /// The content of the file.
    pub fn to_text(&self) -> String {
        let state = serde_json::to_string(&self.view()).expect("lists and strings serialise");
        let checksum = hash::stable(&[&state]);
        format!(r#"{{"schema":{SCHEMA},"checksum":"{checksum:016x}"{BEFORE_STATE}{state}}}"#)
    }

    /// What the content of a file says.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub fn from_text(text: &str) -> Result<Saved, String> {
        #[derive(Deserialize)]
        struct Header {
            schema: u32,
            checksum: String,
        }
        let (header, state) = text.split_once(BEFORE_STATE).ok_or("it is no state of humanz")?;
        let header: Header = serde_json::from_str(&format!("{header}}}"))
            .map_err(|error| format!("it is no state of humanz: {error}"))?;
        if header.schema != SCHEMA {
            return Err(format!("it has schema {}, not {SCHEMA}", header.schema));
        }
        let state = state.trim_end().strip_suffix('}').ok_or("it is cut short")?;
        if header.checksum != format!("{:016x}", hash::stable(&[state])) {
            return Err("its checksum is wrong".to_owned());
        }
        let state: StateFile = serde_json::from_str(state).map_err(|error| error.to_string())?;
        Ok(state.saved())
    }

    fn view(&self) -> StateFileView<'_> {
        let snapshot = &self.snapshot;
        StateFileView {
            host: &self.host,
            machine_id: &self.machine_id,
            lease: &self.lease,
            revision: snapshot.revision,
            config: snapshot.config.as_ref().map(|config| entry(&(), config)),
            hosts: snapshot.hosts.iter().map(|(host, stored)| entry(host, stored)).collect(),
            nodes: snapshot.nodes.iter().map(|(host, stored)| entry(host, stored)).collect(),
            claims: snapshot.claims.iter().map(|(subnet, stored)| entry(subnet, stored)).collect(),
            resolved: &self.resolved,
            without_record: &snapshot.without_record,
            cluster: snapshot.cluster,
        }
    }
}

/// What stands between the checksum and what it is the checksum of.
const BEFORE_STATE: &str = r#","state":"#;

impl StateFile {
    fn saved(self) -> Saved {
        let nodes = self.nodes.into_iter().map(|(host, node, created, modified)| {
            stored((host, Arc::new(node), created, modified))
        });
        let snapshot = Snapshot {
            revision: self.revision,
            config: self.config.map(|config| stored(config).1),
            hosts: Arc::new(self.hosts.into_iter().map(stored).collect()),
            nodes: Arc::new(nodes.collect()),
            claims: Arc::new(self.claims.into_iter().map(stored).collect()),
            without_record: Arc::new(self.without_record),
            cluster: self.cluster,
            ..Snapshot::default()
        };
        let snapshot = Arc::new(snapshot);
        let StateFile { host, machine_id, lease, resolved, .. } = self;
        Saved { host, machine_id, lease, snapshot, resolved }
    }
}

fn entry<'a, K, T: Borrow<V>, V>(key: &'a K, stored: &'a Stored<T>) -> StoredEntry<&'a K, &'a V> {
    (key, stored.value.borrow(), stored.created, stored.modified)
}

fn stored<K, V>((key, value, created, modified): StoredEntry<K, V>) -> (K, Stored<V>) {
    (key, Stored { value, created, modified })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::lease::records::Roots;
    use crate::lease::snapshot::Raw;
    use crate::net::subnet;

    pub fn saved() -> Saved {
        let roots =
            Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
        let mut snapshot = Snapshot::default();
        let config = r#"{"schema":1,"id":"a","ipSubnet":"10.0.0.0/16","ipSubnetMargin":8,"backend":"direct"}"#;
        let node = r#"{"schema":1,"machineId":"m2","bootId":"b","version":"0.1.0","subnets":["10.0.2.0/24"],"addresses":["192.0.2.2"],"backend":"direct","mtu":1500,"later":true}"#;
        for (key, value, created, modified) in [
            ("/z/config", config, 2, 2),
            ("/h/h2", "10.0.2.0/24", 3, 5),
            ("/z/nodes/h2", node, 4, 4),
            ("/z/subnets/4/10.0.2.0-24", "h2", 4, 4),
        ] {
            let raw = Raw { key: key.as_bytes(), value: value.as_bytes(), created, modified };
            snapshot.put(&roots, raw);
        }
        snapshot.without_record = Arc::new(["h3".parse().unwrap()].into());
        snapshot.cluster = Some(Cluster { id: u64::MAX, addresses: 7 });
        let mut lease = Lease::default();
        lease.subnets.v4 = subnet::parse("10.0.1.0/24").ok();
        Saved {
            host: "h1".parse().unwrap(),
            machine_id: "m1".to_owned(),
            lease,
            snapshot: Arc::new(snapshot),
            resolved: Resolved::from([(
                "h2".parse().unwrap(),
                PerFamily { v4: "192.0.2.2".parse().ok(), v6: None },
            )]),
        }
    }

    #[test]
    fn the_text_is_read_back() {
        assert_eq!(Saved::from_text(&saved().to_text()), Ok(saved()));
    }

    #[test]
    fn damaged_text_is_refused() {
        let whole = saved().to_text();
        let flipped = whole.replace("10.0.1.0/24", "10.0.9.0/24");
        let newer = whole.replace(r#"{"schema":1"#, r#"{"schema":2"#);
        for (text, reason) in [
            ("", "no state of humanz"),
            ("garbage\n", "no state of humanz"),
            (&whole[..whole.len() / 2], "cut short"),
            (&whole[..whole.len() - 1], "checksum"),
            (&flipped, "checksum"),
            (&newer, "schema 2"),
            (r#"{"schema":1,"checksum":"","state":}"#, "checksum"),
        ] {
            let error = Saved::from_text(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
