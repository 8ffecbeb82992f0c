//! Pure. The last known good state of this host, and its text in the state file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::lease::identity::{Identity, Lease};
use crate::lease::records::{ClusterConfig, KeyClaim, NodeName, NodeRecord};
use crate::lease::snapshot::{EtcdCluster, Snapshot, Stored};
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

/// Addresses that the names of hosts resolve to: none where a name does not; a name that is missing has not been
/// looked up yet.
pub type Resolved = BTreeMap<NodeName, PerFamily<IpAddr>>;

/// Version of the file.
const SCHEMA: u32 = 1;

/// Key, value, revision of creation, revision of the last change.
type StoredEntry<K, V> = (K, V, i64, i64);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateFile<'a> {
    host: Cow<'a, NodeName>,
    machine_id: Cow<'a, str>,
    lease: Cow<'a, Lease>,
    revision: i64,
    config: Option<StoredEntry<(), Cow<'a, ClusterConfig>>>,
    hosts: Vec<StoredEntry<Cow<'a, NodeName>, IpNetwork>>,
    nodes: Vec<StoredEntry<Cow<'a, NodeName>, Cow<'a, NodeRecord>>>,
    claims: Vec<StoredEntry<IpNetwork, Cow<'a, NodeName>>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    wireguard_keys: Vec<StoredEntry<Cow<'a, NodeName>, KeyClaim>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    resolved: Cow<'a, Resolved>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    without_record: Cow<'a, BTreeSet<NodeName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<EtcdCluster>,
}

impl Saved {
    /// It was saved by the host that `identity` describes: not by the one this disk was copied
    /// from.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.host == identity.name && self.machine_id == identity.machine_id
    }

    /// The content of the file.
    pub fn to_text(&self) -> String {
        let state = serde_json::to_string(&self.file()).expect("lists and strings serialise");
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
        let header: Header = serde_json::from_slice(format!("{header}}}").as_bytes())
            .map_err(|error| format!("it is no state of humanz: {error}"))?;
        if header.schema != SCHEMA {
            return Err(format!("it has schema {}, not {SCHEMA}", header.schema));
        }
        let state = state.trim_end().strip_suffix('}').ok_or("it is cut short")?;
        if header.checksum != format!("{:016x}", hash::stable(&[state])) {
            return Err("its checksum is wrong".to_owned());
        }
        let state: StateFile<'_> =
            serde_json::from_slice(state.as_bytes()).map_err(|error| error.to_string())?;
        Ok(state.saved())
    }

    fn file(&self) -> StateFile<'_> {
        use Cow::Borrowed;
        let snapshot = &self.snapshot;
        let config = snapshot.config.as_ref();
        let hosts = snapshot.hosts.iter();
        let nodes = snapshot.nodes.iter();
        let claims = snapshot.claims.iter();
        let wireguard_keys = snapshot.wireguard_keys.iter();
        StateFile {
            host: Borrowed(&self.host),
            machine_id: Borrowed(&self.machine_id),
            lease: Borrowed(&self.lease),
            revision: snapshot.revision,
            config: config.map(|config| entry((), Borrowed(&config.value), config)),
            hosts: hosts.map(|(host, at)| entry(Borrowed(host), at.value, at)).collect(),
            nodes: nodes
                .map(|(host, at)| entry(Borrowed(host), Borrowed(&*at.value), at))
                .collect(),
            claims: claims.map(|(subnet, at)| entry(*subnet, Borrowed(&at.value), at)).collect(),
            wireguard_keys: wireguard_keys
                .map(|(host, at)| entry(Borrowed(host), at.value, at))
                .collect(),
            resolved: Borrowed(&self.resolved),
            without_record: Borrowed(&*snapshot.without_record),
            cluster: snapshot.cluster,
        }
    }
}

/// What stands between the checksum and what it is the checksum of.
const BEFORE_STATE: &str = r#","state":"#;

impl StateFile<'_> {
    fn saved(self) -> Saved {
        let config = self.config.map(|((), config, created, modified)| Stored {
            value: config.into_owned(),
            created,
            modified,
        });
        let hosts = self.hosts.into_iter().map(|(host, value, created, modified)| {
            (host.into_owned(), Stored { value, created, modified })
        });
        let nodes = self.nodes.into_iter().map(|(host, node, created, modified)| {
            let value = Arc::new(node.into_owned());
            (host.into_owned(), Stored { value, created, modified })
        });
        let claims = self.claims.into_iter().map(|(subnet, host, created, modified)| {
            (subnet, Stored { value: host.into_owned(), created, modified })
        });
        let wireguard_keys =
            self.wireguard_keys.into_iter().map(|(host, value, created, modified)| {
                (host.into_owned(), Stored { value, created, modified })
            });
        let snapshot = Snapshot {
            revision: self.revision,
            config,
            hosts: Arc::new(hosts.collect()),
            nodes: Arc::new(nodes.collect()),
            claims: Arc::new(claims.collect()),
            wireguard_keys: Arc::new(wireguard_keys.collect()),
            without_record: Arc::new(self.without_record.into_owned()),
            cluster: self.cluster,
            ..Snapshot::default()
        };
        Saved {
            host: self.host.into_owned(),
            machine_id: self.machine_id.into_owned(),
            lease: self.lease.into_owned(),
            snapshot: Arc::new(snapshot),
            resolved: self.resolved.into_owned(),
        }
    }
}

fn entry<K, V, T>(key: K, value: V, stored: &Stored<T>) -> StoredEntry<K, V> {
    (key, value, stored.created, stored.modified)
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
            ("/z/wireguard/h2", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=", 4, 4),
        ] {
            let raw = Raw { key: key.as_bytes(), value: value.as_bytes(), created, modified };
            snapshot.put(&roots, raw);
        }
        snapshot.without_record = Arc::new(["h3".parse().unwrap()].into());
        snapshot.cluster = Some(EtcdCluster { id: u64::MAX, addresses: 7 });
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
