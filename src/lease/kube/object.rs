//! Pure. Nodes as the Kubernetes API tells them: pages of a list, events of a watch.
//!
//! Of each object only what is needed is taken in; texts in it may have been written by the kubelet of
//! a host that is no longer anybody's friend.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use crate::lease::records::{NodeName, RecordError};
use crate::net::{Family, PerFamily, subnet};

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its pod subnets, as far as it has been given some.
    pub subnets: PerFamily<IpNetwork>,
    /// What is wrong with those it was given.
    pub fault: Option<RecordError>,
    /// Its addresses of type InternalIP, the first of each family.
    pub addresses: PerFamily<IpAddr>,
    /// When it was registered: the digits of the time, in its order.
    pub created: i64,
    /// `/etc/machine-id` there, as its kubelet says; empty if it does not.
    pub machine_id: Box<str>,
    /// Boot of the kernel there, as its kubelet says; empty if it does not.
    pub boot_id: Box<str>,
    /// Its kubelet is well.
    pub ready: bool,
    /// Pods are kept from it until somebody says that its network works.
    pub unavailable: bool,
}

/// A part of a list.
#[derive(Debug)]
pub struct Page {
    /// The nodes, and the names of those that cannot be hosts.
    pub nodes: Vec<Result<Node, RecordError>>,
    /// The version of the list, to watch from.
    pub version: String,
    /// What to ask for the next part with; `None` if this is the last one.
    pub next: Option<String>,
}

/// What a watch tells.
#[derive(Debug)]
pub enum Event {
    /// A node is new, or is as this says now.
    Put(String, Box<Node>),
    /// A node is gone.
    Gone(String, NodeName),
    /// Nothing; what was told up to this version has been told.
    Bookmark(String),
    /// A node that cannot be a host.
    Faulty(String, RecordError),
    /// The server cannot go on; the status code, and what it says.
    Error(u16, String),
}

/// Longest identifier that is taken in, in bytes; a machine id has 32.
const ID_LIMIT: usize = 64;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    creation_timestamp: Option<String>,
    resource_version: Option<String>,
    r#continue: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    one: Option<String>,
    #[serde(rename = "podCIDRs")]
    several: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    addresses: Option<Vec<Typed>>,
    conditions: Option<Vec<Typed>>,
    node_info: Option<Info>,
}

/// An address or a condition.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Typed {
    r#type: String,
    address: String,
    status: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Info {
    #[serde(rename = "machineID")]
    machine_id: String,
    #[serde(rename = "bootID")]
    boot_id: String,
}

/// A part of a list of nodes.
///
/// # Errors
/// It is none.
pub fn page(bytes: &[u8]) -> Result<Page, String> {
    #[derive(Deserialize)]
    struct List {
        kind: Option<String>,
        metadata: Metadata,
        items: Option<Vec<Object>>,
    }
    let list: List = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if list.kind.as_deref() != Some("NodeList") {
        return Err("it is no NodeList".to_owned());
    }
    let version = list.metadata.resource_version.filter(|version| !version.is_empty());
    Ok(Page {
        nodes: list.items.unwrap_or_default().into_iter().map(|object| node(object).1).collect(),
        version: version.ok_or("it has no resourceVersion")?,
        next: list.metadata.r#continue.filter(|next| !next.is_empty()),
    })
}

/// One line of a watch.
///
/// # Errors
/// It is no event.
pub fn event(line: &[u8]) -> Result<Event, String> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: String,
    }
    #[derive(Deserialize)]
    struct Told<T> {
        object: T,
    }
    let reason = |error: serde_json::Error| error.to_string();
    let kind: Kind = serde_json::from_slice(line).map_err(reason)?;
    if kind.r#type == "ERROR" {
        let told: Told<Refusal> = serde_json::from_slice(line).map_err(reason)?;
        return Ok(Event::Error(told.object.code, told.object.told()));
    }
    let told: Told<Object> = serde_json::from_slice(line).map_err(reason)?;
    let (version, node) = node(told.object);
    let version = version.ok_or("it has no resourceVersion")?;
    match kind.r#type.as_str() {
        "BOOKMARK" => Ok(Event::Bookmark(version)),
        "ADDED" | "MODIFIED" => Ok(match node {
            Ok(node) => Event::Put(version, Box::new(node)),
            Err(fault) => Event::Faulty(version, fault),
        }),
        "DELETED" => Ok(match node {
            Ok(node) => Event::Gone(version, node.name),
            Err(fault) => Event::Faulty(version, fault),
        }),
        other => Err(format!("{other:.40?} is no kind of event")),
    }
}

/// Why the server refuses something, in its own words.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    code: u16,
    reason: String,
    message: String,
}

impl Refusal {
    /// In one line, not too long.
    fn told(&self) -> String {
        let text = if self.message.is_empty() { &self.reason } else { &self.message };
        text.chars().filter(|letter| !letter.is_control()).take(300).collect()
    }
}

/// What the body of a refused request says; empty if it says nothing.
pub fn refusal(body: &[u8]) -> String {
    serde_json::from_slice::<Refusal>(body).map(|refusal| refusal.told()).unwrap_or_default()
}

/// The version of an object, and the node that it is.
fn node(object: Object) -> (Option<String>, Result<Node, RecordError>) {
    let Object { metadata, spec, status } = object;
    let version = metadata.resource_version.filter(|version| !version.is_empty());
    let name: NodeName = match metadata.name.unwrap_or_default().parse() {
        Ok(name) => name,
        Err(fault) => return (version, Err(RecordError::Name(fault))),
    };
    let (subnets, fault) = subnets(spec.unwrap_or_default());
    let status = status.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let is_true =
        |name: &str| conditions.iter().any(|found| found.r#type == name && found.status == "True");
    let info = status.node_info.unwrap_or_default();
    let node = Node {
        name,
        subnets,
        fault,
        addresses: addresses(&status.addresses.unwrap_or_default()),
        created: order(metadata.creation_timestamp.as_deref().unwrap_or_default()),
        machine_id: identifier(info.machine_id),
        boot_id: identifier(info.boot_id),
        ready: is_true("Ready"),
        unavailable: is_true("NetworkUnavailable"),
    };
    (version, Ok(node))
}

/// The pod subnets, the first of each family, and what is wrong with others.
fn subnets(spec: Spec) -> (PerFamily<IpNetwork>, Option<RecordError>) {
    let several = spec.several.filter(|several| !several.is_empty());
    let texts = several.unwrap_or_else(|| spec.one.into_iter().collect());
    let mut subnets = PerFamily::default();
    let mut fault = None;
    for text in texts.iter().filter(|text| !text.is_empty()) {
        let short: String = text.chars().take(ID_LIMIT).collect();
        match subnet::parse(&short) {
            Ok(subnet) if subnets.get(subnet::family(subnet)).is_none() => {
                subnets.set(subnet::family(subnet), Some(subnet));
            }
            Ok(subnet) => {
                let why = format!("podCIDRs: {subnet} is the second {}", subnet::family(subnet));
                fault = Some(RecordError::Json(why));
            }
            Err(error) => fault = Some(RecordError::Subnet(error)),
        }
    }
    (subnets, fault)
}

fn addresses(found: &[Typed]) -> PerFamily<IpAddr> {
    let mut addresses = PerFamily::default();
    let internal = found.iter().filter(|found| found.r#type == "InternalIP");
    for address in internal.filter_map(|found| found.address.parse::<IpAddr>().ok()) {
        let family = Family::of(address);
        if addresses.get(family).is_none() {
            addresses.set(family, Some(address));
        }
    }
    addresses
}

/// The digits of `2026-11-20T18:46:00Z` as a number; what is no time is later than all times.
fn order(time: &str) -> i64 {
    let digits: String = time.chars().filter(char::is_ascii_digit).take(14).collect();
    if digits.len() == 14 { digits.parse().unwrap_or(i64::MAX) } else { i64::MAX }
}

fn identifier(text: String) -> Box<str> {
    if text.len() <= ID_LIMIT { text.into() } else { "".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn full() -> serde_json::Value {
        json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": "h1", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-11-20T18:46:00Z",
                "labels": {"a": "b"}},
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd10:244:0:1::/64"], "taints": [{"key": "x"}]},
            "status": {
                "addresses": [{"type": "Hostname", "address": "h1"}, {"type": "ExternalIP", "address": "198.51.100.1"},
                    {"type": "InternalIP", "address": "192.0.2.11"}, {"type": "InternalIP", "address": "192.0.2.99"},
                    {"type": "InternalIP", "address": "fd99::11"}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "NetworkUnavailable", "status": "False"}],
                "nodeInfo": {"machineID": "m1", "bootID": "b1", "kernelVersion": "6"},
                "images": [{"names": ["x"], "sizeBytes": 7}]
            }
        })
    }

    fn read(object: serde_json::Value) -> Node {
        let line = json!({"type": "ADDED", "object": object}).to_string();
        match event(line.as_bytes()).unwrap() {
            Event::Put(version, node) if version == "7" => *node,
            other => panic!("{other:?}"),
        }
    }

    fn with(change: impl FnOnce(&mut serde_json::Value)) -> Node {
        let mut object = full();
        change(&mut object);
        read(object)
    }

    #[test]
    fn a_node_is_what_matters_of_it() {
        let node = read(full());
        let subnets: Vec<String> = node.subnets.iter().map(ToString::to_string).collect();
        assert_eq!(subnets, ["10.244.1.0/24", "fd10:244:0:1::/64"]);
        let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.11", "fd99::11"]);
        assert_eq!(node.created, 20_261_120_184_600);
        assert_eq!((&*node.machine_id, &*node.boot_id), ("m1", "b1"));
        assert!(node.ready && !node.unavailable && node.fault.is_none());
    }

    #[test]
    fn what_is_missing_or_null_is_nothing() {
        let node = with(|object| object["spec"] = json!(null));
        assert!(node.subnets.is_empty() && node.fault.is_none());
        let node = with(|object| object["spec"] = json!({"podCIDR": "10.1.0.0/24"}));
        assert_eq!(node.subnets.v4.unwrap().to_string(), "10.1.0.0/24");
        let node = with(|object| object["status"] = json!({"addresses": null}));
        assert!(node.addresses.is_empty() && !node.ready);
        let node = with(|object| object["metadata"]["creationTimestamp"] = json!(null));
        assert_eq!(node.created, i64::MAX);
    }

    #[test]
    fn hostile_texts_cost_their_node_what_they_stand_for() {
        let fault = |subnets: serde_json::Value| {
            let node = with(|object| object["spec"]["podCIDRs"] = subnets);
            node.fault.map(|fault| fault.to_string()).unwrap_or_default()
        };
        assert!(fault(json!(["$(reboot)"])).contains("not a subnet"));
        assert!(fault(json!(["10.244.1.1/24"])).contains("host bits"));
        assert!(fault(json!(["10.1.0.0/24", "10.2.0.0/24"])).contains("second IPv4"));
        assert!(fault(json!(["x".repeat(1 << 20)])).len() < 200);
        let node = with(|object| object["status"]["nodeInfo"]["machineID"] = json!("m".repeat(65)));
        assert_eq!(&*node.machine_id, "");
        let addresses = json!([{"type": "InternalIP", "address": "; reboot"}]);
        assert!(with(|object| object["status"]["addresses"] = addresses).addresses.is_empty());
    }

    #[test]
    fn events_are_told_apart() {
        let told = |kind: &str, object: serde_json::Value| {
            event(json!({"type": kind, "object": object}).to_string().as_bytes())
        };
        assert!(matches!(told("MODIFIED", full()), Ok(Event::Put(..))));
        assert!(
            matches!(told("DELETED", full()), Ok(Event::Gone(_, name)) if name.as_str() == "h1")
        );
        let bookmark = json!({"kind": "Node", "metadata": {"resourceVersion": "9"}});
        assert!(
            matches!(told("BOOKMARK", bookmark), Ok(Event::Bookmark(version)) if version == "9")
        );
        let status = json!({"kind": "Status", "status": "Failure", "message": "too old resource version: 1 (2)\n",
            "reason": "Expired", "code": 410});
        let Ok(Event::Error(410, why)) = told("ERROR", status) else { panic!("no error") };
        assert_eq!(why, "too old resource version: 1 (2)");
        let mut named = full();
        named["metadata"]["name"] = json!("a/b");
        assert!(matches!(told("ADDED", named), Ok(Event::Faulty(..))));
        assert!(told("EXPLODED", full()).unwrap_err().contains("EXPLODED"));
        assert!(told("ADDED", json!({"metadata": {"name": "h1"}})).is_err());
        assert!(event(b"").is_err() && event(b"[]").is_err() && event(b"\xff").is_err());
    }

    #[test]
    fn a_page_tells_where_the_next_one_is() {
        let list = |next: &str, version: &str| {
            let metadata = json!({"resourceVersion": version, "continue": next});
            json!({"kind": "NodeList", "metadata": metadata, "items": [full()]}).to_string()
        };
        let first = page(list("more", "5").as_bytes()).unwrap();
        assert_eq!(
            (first.nodes.len(), &*first.version, first.next.as_deref()),
            (1, "5", Some("more"))
        );
        assert_eq!(page(list("", "5").as_bytes()).unwrap().next, None);
        assert!(page(list("", "").as_bytes()).unwrap_err().contains("resourceVersion"));
        let empty = br#"{"kind":"NodeList","metadata":{"resourceVersion":"5"},"items":null}"#;
        assert!(page(empty).unwrap().nodes.is_empty());
        for bad in ["", "{}", "null", r#"{"kind":"Status","metadata":{"resourceVersion":"1"}}"#] {
            assert!(page(bad.as_bytes()).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_refusal_speaks_for_itself() {
        assert_eq!(
            refusal(br#"{"message":"nodes is forbidden","code":403}"#),
            "nodes is forbidden"
        );
        assert_eq!(refusal(br#"{"reason":"Unauthorized"}"#), "Unauthorized");
        assert_eq!(refusal(b"<html>"), "");
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _event = event(&bytes);
            let _page = page(&bytes);
        }
    }
}
