//! Pure. The store's entry of one attachment.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::cni::words::Words;
use crate::net::{IfName, PortForward, PortMapping, hash, port};

/// The owner of addresses: one interface of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `namespace/name` of the pod, if the runtime passed it.
    pub pod: Option<String>,
    /// `CNI_NETNS`, as given.
    pub netns: Option<String>,
    /// Seconds since 1970.
    pub time_secs: u64,
    /// The nanoseconds of that second.
    pub time_nanos: u32,
    pub ports: Option<RequestedPorts>,
    /// For policies.
    pub words: Words,
    /// Interfaces of the container that come and go with this one.
    pub further: Vec<IfName>,
}

/// Requested host ports, with what is needed to restore them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedPorts {
    /// The network whose store has the entry.
    pub network: String,
    /// The bridge of the pod.
    pub bridge: IfName,
    pub mappings: Vec<PortMapping>,
}

/// What the container ids of pods of this program's tests begin with; the process and a number follow.
pub const TEST_CONTAINER: &str = "humanz-connectivity-";

/// One attachment and its addresses: one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreEntry {
    /// [`StoreEntry::SCHEMA`].
    pub schema: u32,
    /// The container; empty in an entry imported from a store that kept no owners.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface in it; empty where an imported entry did not say.
    pub ifname: String,
    /// In the order of the range sets.
    pub addresses: Vec<IpAddr>,
    /// `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The path of the pod's network namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The boot that the entry belongs to; it is stale in any other.
    pub boot_id: String,
    /// Seconds since 1970.
    #[serde(rename = "time")]
    pub time_secs: u64,
    /// The nanoseconds of that second, which tell an ADD from a later one; 0 in older entries.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub time_nanos: u32,
    /// The host ports. An unknown format of a later release is ignored, so that the pod keeps its
    /// addresses.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "tolerant")]
    pub ports: Option<RequestedPorts>,
    /// Imported while the older plugin may still change its own store: imported again later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early: bool,
    /// What the container says of itself for policies.
    #[serde(default, skip_serializing_if = "Words::is_empty")]
    pub words: Words,
    /// Interfaces of the container that come and go with this one; each has an entry of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<IfName>,
}

impl StoreEntry {
    /// The format of this release.
    pub const SCHEMA: u32 = 1;

    /// The entry of `owner` with `addresses`.
    pub fn new(owner: &Owner, addresses: Vec<IpAddr>, boot_id: &str) -> StoreEntry {
        StoreEntry {
            schema: StoreEntry::SCHEMA,
            container_id: owner.container_id.clone(),
            ifname: owner.ifname.clone(),
            addresses,
            pod: owner.pod.clone(),
            netns: owner.netns.clone(),
            boot_id: boot_id.to_owned(),
            time_secs: owner.time_secs,
            time_nanos: owner.time_nanos,
            ports: owner.ports.clone(),
            early: false,
            words: owner.words.clone(),
            further: owner.further.clone(),
        }
    }

    /// The entry that `bytes` hold.
    ///
    /// # Errors
    /// Why they are not an entry.
    pub fn parse(bytes: &[u8]) -> Result<StoreEntry, String> {
        let entry: StoreEntry = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if entry.schema != StoreEntry::SCHEMA {
            return Err(format!("schema {} is not {}", entry.schema, StoreEntry::SCHEMA));
        }
        // They are parts of file names.
        if [&entry.container_id, &entry.ifname].iter().any(|name| name.contains('\0')) {
            return Err("a name has a zero byte".to_owned());
        }
        Ok(entry)
    }

    /// One line of JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("strings and numbers are always JSON");
        bytes.push(b'\n');
        bytes
    }

    /// The entry belongs to this attachment.
    pub fn is_of(&self, container_id: &str, ifname: &str) -> bool {
        self.container_id == container_id && self.ifname == ifname
    }

    /// Both were written by the same ADD.
    pub fn is_same(&self, other: &StoreEntry) -> bool {
        self.is_of(&other.container_id, &other.ifname)
            && (self.time_secs, self.time_nanos, &self.addresses)
                == (other.time_secs, other.time_nanos, &other.addresses)
    }

    /// The requested port forwards.
    pub fn forwards(&self) -> Vec<PortForward> {
        let mappings = self.ports.as_ref().map_or(&[][..], |ports| &ports.mappings);
        port::forwards(mappings, &self.addresses)
    }

    /// Its owner is unknown: it was imported from a store that kept no owners.
    pub fn is_unowned(&self) -> bool {
        self.container_id.is_empty()
    }

    /// An earlier plugin attached it: neither its namespace nor its veth is in the store.
    pub fn is_taken_over(&self) -> bool {
        self.netns.is_none()
    }

    /// For messages: `container c1, interface eth0, pod default/web`.
    pub fn owner_text(&self) -> String {
        if self.is_unowned() {
            return "an unknown container of an earlier plugin".to_owned();
        }
        let mut text = format!("container {}", self.container_id);
        let network = self.ports.as_ref().map(|ports| &ports.network);
        for (word, value) in
            [("interface", Some(&self.ifname)), ("pod", self.pod.as_ref()), ("network", network)]
        {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                text.push_str(&format!(", {word} {value}"));
            }
        }
        text
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn tolerant<'de, D: Deserializer<'de>>(value: D) -> Result<Option<RequestedPorts>, D::Error> {
    let value = Option::<Value>::deserialize(value)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// The longest file name, in bytes: NAME_MAX of linux/limits.h.
const NAME_MAX: usize = 255;

/// The file name of an attachment: `<container id>:<ifname>`; where that is no file name of at most
/// 255 bytes, the beginning of it and a hash of the whole (`~` is in no container id).
pub fn file_name(container_id: &str, ifname: &str) -> String {
    let name = format!("{container_id}:{ifname}");
    if name.len() <= NAME_MAX && !name.contains('/') {
        return name;
    }
    let digest = [hash::stable(&[container_id, ifname]), hash::stable(&[ifname, container_id])];
    let kept: String = container_id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    format!("{kept}~{:016x}{:016x}", digest[0], digest[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> StoreEntry {
        let owner = Owner {
            container_id: "c1".to_owned(),
            ifname: "eth0".to_owned(),
            pod: Some("default/web".to_owned()),
            netns: Some("/run/netns/a".to_owned()),
            time_secs: 7,
            ..Owner::default()
        };
        let addresses = vec!["10.1.2.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        StoreEntry::new(&owner, addresses, "b")
    }

    #[test]
    fn an_entry_is_one_line_with_these_keys() {
        let text = String::from_utf8(entry().to_bytes()).unwrap();
        let wanted = r#"{"schema":1,"containerID":"c1","ifname":"eth0","addresses":["10.1.2.2","fd00::2"],"pod":"default/web","netns":"/run/netns/a","bootId":"b","time":7}"#;
        assert_eq!(text, format!("{wanted}\n"));
        assert_eq!(StoreEntry::parse(text.as_bytes()), Ok(entry()));
    }

    #[test]
    fn two_adds_of_one_second_are_not_the_same() {
        let later = StoreEntry { time_nanos: 1, ..entry() };
        assert!(!later.is_same(&entry()) && entry().is_same(&entry()));
        assert_eq!(StoreEntry::parse(&later.to_bytes()), Ok(later));
    }

    #[test]
    fn ports_are_a_key_that_older_releases_ignore() {
        let mapping = r#"{"hostPort":8080,"containerPort":80,"protocol":"udp"}"#;
        let ports = format!(r#"{{"network":"net","bridge":"hz0","mappings":[{mapping}]}}"#);
        let ports: RequestedPorts = serde_json::from_str(&ports).unwrap();
        let entry = StoreEntry { ports: Some(ports), ..entry() };
        assert_eq!(StoreEntry::parse(&entry.to_bytes()), Ok(entry.clone()));
        assert_eq!(entry.forwards().len(), 2);
        assert!(entry.owner_text().ends_with(", network net"), "{}", entry.owner_text());
    }

    #[test]
    fn further_interfaces_are_names() {
        let further = vec!["eth1".parse().unwrap()];
        let entry = StoreEntry { further, ..entry() };
        let text = String::from_utf8(entry.to_bytes()).unwrap();
        assert!(text.contains(r#""further":["eth1"]"#), "{text}");
        assert_eq!(StoreEntry::parse(text.as_bytes()), Ok(entry));
        assert!(StoreEntry::parse(text.replace("eth1", "../x").as_bytes()).is_err());
    }

    #[test]
    fn unknown_ports_of_a_later_release_are_ignored() {
        let text = String::from_utf8(entry().to_bytes()).unwrap();
        let later = text.replace("}", r#","ports":{"network":"net","mappings":"all"}}"#);
        assert_eq!(StoreEntry::parse(later.as_bytes()), Ok(entry()));
    }

    #[test]
    fn invalid_entries_are_refused() {
        let later = String::from_utf8(entry().to_bytes()).unwrap().replace(":1,", ":2,");
        let zero = String::from_utf8(entry().to_bytes()).unwrap().replace("eth0", "e\\u0000");
        for bytes in ["", "{}", "c1\r\neth0", "{\"schema\":1", later.as_str(), zero.as_str()] {
            assert!(StoreEntry::parse(bytes.as_bytes()).is_err(), "{bytes:?} was taken");
        }
    }

    #[test]
    fn a_long_container_id_gets_a_hashed_name_of_fixed_length() {
        let long = "a".repeat(300);
        let names = [file_name(&long, "eth0"), file_name(&long, "eth1")];
        assert_eq!(names.each_ref().map(String::len), [97, 97]);
        assert_ne!(names[0], names[1]);
        assert_eq!(file_name(&"a".repeat(250), "eth0").len(), 255);
        assert_eq!(file_name("c1", "eth0"), "c1:eth0");
    }

    #[test]
    fn the_owner_text_has_container_interface_and_pod() {
        assert_eq!(entry().owner_text(), "container c1, interface eth0, pod default/web");
    }
}
