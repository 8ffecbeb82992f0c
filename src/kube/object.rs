//! Pure. Nodes of the Kubernetes API: pages of a list, events of a watch.
//!
//! Only the necessary fields are parsed; a compromised kubelet may have written them.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::lease::records::{NodeName, RecordError};
use crate::net::{Family, PerFamily, subnet};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObject {
    pub name: NodeName,
    /// Its pod subnets, if assigned.
    pub subnets: PerFamily<IpNetwork>,
    /// Error in them.
    pub fault: Option<RecordError>,
    /// Its addresses of type InternalIP, the first of each family.
    pub addresses: PerFamily<IpAddr>,
    /// When it was registered: the digits of the time, in its order.
    pub created: i64,
    /// `/etc/machine-id` as reported by its kubelet; may be empty.
    pub machine_id: Box<str>,
    /// Boot id of its kernel as reported by its kubelet; may be empty.
    pub boot_id: Box<str>,
    /// Condition `Ready`.
    pub ready: bool,
    /// Condition `NetworkUnavailable`: no pods are scheduled to it.
    pub unavailable: bool,
}

/// What a page of a list says beside its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageEnd {
    /// Objects on this page.
    pub count: usize,
    /// The version from which to watch.
    pub version: String,
    /// Continuation token; `None` on the last page.
    pub next: Option<String>,
}

/// The server ends a watch: status code and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended(pub u16, pub String);

/// An event of a watch; with the version after it.
#[derive(Debug)]
pub enum NodeEvent {
    /// A node was added or changed.
    Put(String, Box<NodeObject>),
    /// A node was deleted.
    Gone(String, NodeName),
    /// All changes up to this version were sent.
    Bookmark(String),
    /// A node that cannot be a host.
    Faulty(String, RecordError),
}

/// Longest identifier accepted, in bytes; a machine id has 32.
const ID_LIMIT: usize = 64;

/// The nodes of a page, and the errors of those that cannot be hosts.
///
/// # Errors
/// Not a list of nodes.
pub fn page(bytes: &[u8]) -> Result<(Vec<Result<NodeObject, RecordError>>, PageEnd), String> {
    let (items, end) = page_of("Node", bytes)?;
    Ok((items.iter().map(node).collect(), end))
}

/// The objects of a page of a list of `kind`.
///
/// # Errors
/// Not such a list.
pub fn page_of(kind: &str, bytes: &[u8]) -> Result<(Vec<Value>, PageEnd), String> {
    let mut list: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if text(&list["kind"]).strip_suffix("List") != Some(kind) {
        return Err(format!("not a {kind}List"));
    }
    let version = version(&list).ok_or("no resourceVersion")?;
    let next = filled(&list["metadata"]["continue"]);
    let items = match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let end = PageEnd { count: items.len(), version, next };
    Ok((items, end))
}

/// One line of a watch: type and object of the event, and the version after it.
///
/// # Errors
/// Not an event.
pub fn line(line: &[u8]) -> Result<Result<(String, Value, String), Ended>, String> {
    let mut event: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
    let kind = text(&event["type"]);
    if kind == "ERROR" {
        let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        return Ok(Err(Ended(code.unwrap_or(0), message(&object))));
    }
    let version = version(&object).ok_or("no resourceVersion")?;
    Ok(Ok((kind.to_owned(), object, version)))
}

/// One line of a watch of nodes.
///
/// # Errors
/// Not an event.
pub fn event(bytes: &[u8]) -> Result<Result<NodeEvent, Ended>, String> {
    let (kind, object, version) = match line(bytes)? {
        Ok(event) => event,
        Err(ended) => return Ok(Err(ended)),
    };
    Ok(Ok(match (kind.as_str(), node(&object)) {
        ("BOOKMARK", _) => NodeEvent::Bookmark(version),
        ("ADDED" | "MODIFIED", Ok(node)) => NodeEvent::Put(version, Box::new(node)),
        ("DELETED", Ok(node)) => NodeEvent::Gone(version, node.name),
        ("ADDED" | "MODIFIED" | "DELETED", Err(fault)) => NodeEvent::Faulty(version, fault),
        (other, _) => return Err(format!("{other:.40?} is not a type of event")),
    }))
}

/// The message in the body of a refused request; may be empty.
pub fn refusal(body: &[u8]) -> String {
    serde_json::from_slice(body).map(|status| message(&status)).unwrap_or_default()
}

/// The server's message, as one line of limited length.
fn message(status: &Value) -> String {
    let message = text(&status["message"]);
    let shown = if message.is_empty() { text(&status["reason"]) } else { message };
    shown.chars().filter(|letter| !letter.is_control()).take(300).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn filled(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn version(object: &Value) -> Option<String> {
    filled(&object["metadata"]["resourceVersion"])
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn node(object: &Value) -> Result<NodeObject, RecordError> {
    let (metadata, status) = (&object["metadata"], &object["status"]);
    let name = text(&metadata["name"]).parse().map_err(RecordError::Name)?;
    let (subnets, fault) = subnets(&object["spec"]);
    let conditions = list(&status["conditions"]);
    let is_true = |name: &str| {
        conditions.iter().any(|found| found["type"] == name && found["status"] == "True")
    };
    let info = &status["nodeInfo"];
    Ok(NodeObject {
        name,
        subnets,
        fault,
        addresses: addresses(list(&status["addresses"])),
        created: order(text(&metadata["creationTimestamp"])),
        machine_id: identifier(text(&info["machineID"])),
        boot_id: identifier(text(&info["bootID"])),
        ready: is_true("Ready"),
        unavailable: is_true("NetworkUnavailable"),
    })
}

/// The pod subnets, the first of each family, and an error in others.
fn subnets(spec: &Value) -> (PerFamily<IpNetwork>, Option<RecordError>) {
    let several = list(&spec["podCIDRs"]);
    let found = if several.is_empty() { std::slice::from_ref(&spec["podCIDR"]) } else { several };
    let texts = found.iter().map(text);
    let mut subnets = PerFamily::default();
    let mut fault = None;
    for text in texts.filter(|text| !text.is_empty()) {
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

fn addresses(found: &[Value]) -> PerFamily<IpAddr> {
    let mut addresses = PerFamily::default();
    let internal = found.iter().filter(|found| found["type"] == "InternalIP");
    for address in internal.filter_map(|found| text(&found["address"]).parse::<IpAddr>().ok()) {
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

fn identifier(text: &str) -> Box<str> {
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

    fn read(object: serde_json::Value) -> NodeObject {
        let line = json!({"type": "ADDED", "object": object}).to_string();
        match event(line.as_bytes()).unwrap().unwrap() {
            NodeEvent::Put(version, node) if version == "7" => *node,
            other => panic!("{other:?}"),
        }
    }

    fn with(change: impl FnOnce(&mut serde_json::Value)) -> NodeObject {
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
    fn events_are_distinguished() {
        let parsed = |kind: &str, object: serde_json::Value| {
            event(json!({"type": kind, "object": object}).to_string().as_bytes())
        };
        assert!(matches!(parsed("MODIFIED", full()), Ok(Ok(NodeEvent::Put(..)))));
        assert!(
            matches!(parsed("DELETED", full()), Ok(Ok(NodeEvent::Gone(_, name))) if name.as_str() == "h1")
        );
        let bookmark = json!({"kind": "Node", "metadata": {"resourceVersion": "9"}});
        assert!(
            matches!(parsed("BOOKMARK", bookmark), Ok(Ok(NodeEvent::Bookmark(version))) if version == "9")
        );
        let status = json!({"kind": "Status", "status": "Failure", "message": "too old resource version: 1 (2)\n",
            "reason": "Expired", "code": 410});
        let Ok(Err(Ended(410, why))) = parsed("ERROR", status) else { panic!("no error") };
        assert_eq!(why, "too old resource version: 1 (2)");
        let mut named = full();
        named["metadata"]["name"] = json!("a/b");
        assert!(matches!(parsed("ADDED", named), Ok(Ok(NodeEvent::Faulty(..)))));
        assert!(parsed("EXPLODED", full()).unwrap_err().contains("EXPLODED"));
        assert!(parsed("ADDED", json!({"metadata": {"name": "h1"}})).is_err());
        assert!(event(b"").is_err() && event(b"[]").is_err() && event(b"\xff").is_err());
    }

    #[test]
    fn a_page_has_the_token_of_the_next_one() {
        let list = |next: &str, version: &str| {
            let metadata = json!({"resourceVersion": version, "continue": next});
            json!({"kind": "NodeList", "metadata": metadata, "items": [full()]}).to_string()
        };
        let first = page(list("more", "5").as_bytes()).unwrap();
        assert_eq!(
            (first.0.len(), first.1),
            (1, PageEnd { count: 1, version: "5".into(), next: Some("more".into()) })
        );
        assert_eq!(page(list("", "5").as_bytes()).unwrap().1.next, None);
        assert!(page(list("", "").as_bytes()).unwrap_err().contains("resourceVersion"));
        let empty = br#"{"kind":"NodeList","metadata":{"resourceVersion":"5"},"items":null}"#;
        assert!(page(empty).unwrap().0.is_empty());
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
