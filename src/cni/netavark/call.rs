//! Pure. A container that starts or has ended, as netavark passes it: the environment and the configuration of a call of CNI.

use std::ffi::OsString;

use serde_json::{Map, Value, json};

use crate::cni::env::Verb;
use crate::cni::error::CniError;
use crate::cni::json::{self, FieldErrors, JsonField};
use crate::cni::netavark::{AskedNetwork, HostNetwork, document};

/// The most host ports of one container, ranges counted port by port.
const MAX_PORTS: usize = 16_384;

/// ADD or DEL of one container.
#[derive(Clone, Debug)]
pub struct ContainerCall {
    /// Which configuration of this host.
    pub asked: AskedNetwork,
    pub container_id: String,
    pub ifname: String,
    variables: Vec<(&'static str, String)>,
    runtime: Map<String, Value>,
}

impl ContainerCall {
    /// The call in `stdin`, about the namespace `netns`.
    ///
    /// # Errors
    /// Code 6: not an object. ADD: code 7 with every invalid value, code 2 if each asks for something that humanz does
    /// not have. To DEL only the container, its interface and its network matter.
    pub fn parse(stdin: &[u8], verb: Verb, netns: &str) -> Result<ContainerCall, CniError> {
        let document = document(stdin)?;
        let faults = FieldErrors::default();
        let root = JsonField::root(&document, &faults);
        let asked = AskedNetwork::read(root.object("network"));
        let options = root.object("network_options");
        let options = options.as_ref();
        let ifname = text(options, "interface_name");
        let container_id = text(Some(&root), "container_id");
        let runtime = runtime_config(&root, options);
        let args = arguments(&text(Some(&root), "container_name"));
        let faults = faults.into_vec();
        if verb == Verb::Add && !faults.is_empty() {
            return Err(json::error(&faults));
        }
        let variables = vec![
            ("CNI_COMMAND", verb.to_string()),
            ("CNI_CONTAINERID", container_id.clone()),
            ("CNI_NETNS", netns.to_owned()),
            ("CNI_IFNAME", ifname.clone()),
            ("CNI_ARGS", args),
            // CNI wants one; this plugin calls no other.
            ("CNI_PATH", "/".to_owned()),
        ];
        Ok(ContainerCall { asked, container_id, ifname, variables, runtime })
    }

    /// What the environment has for CNI, and nothing else: netavark passes on what podman was started with.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let found = self.variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.into())
    }

    /// The configuration of CNI that the call is served with.
    pub fn stdin(&self, network: &HostNetwork) -> Vec<u8> {
        let mut conf = network.conf.clone();
        conf.insert("runtimeConfig".to_owned(), Value::Object(self.runtime.clone()));
        Value::Object(conf).to_string().into_bytes()
    }

    pub fn has_ports(&self) -> bool {
        self.runtime.contains_key(PORTS)
    }

    /// Another network of the container has its host ports.
    pub fn leave_ports_out(&mut self) {
        self.runtime.remove(PORTS);
    }
}

const PORTS: &str = "portMappings";

fn text(field: Option<&JsonField>, key: &str) -> String {
    let text = field.and_then(|field| field.get(key)).and_then(|field| field.text());
    text.unwrap_or_default().to_owned()
}

/// The container's name where CNI's runtimes had it, so that logs and `ipam ls` show it.
fn arguments(name: &str) -> String {
    let usual = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    match !name.is_empty() && name.chars().all(usual) {
        true => format!("IgnoreUnknown=1;K8S_POD_NAME={name}"),
        false => String::new(),
    }
}

/// Requested addresses, MAC and host ports: the configuration's own parser looks at the values.
fn runtime_config(root: &JsonField, options: Option<&JsonField>) -> Map<String, Value> {
    let mut runtime = Map::new();
    if let Some(ips) = options.and_then(|options| options.get("static_ips")) {
        runtime.insert("ips".to_owned(), ips.value().clone());
    }
    if let Some(mac) = options.and_then(|options| options.get("static_mac")) {
        runtime.insert("mac".to_owned(), mac.value().clone());
    }
    for (_, option) in
        options.and_then(|it| it.object("options")).iter().flat_map(JsonField::entries)
    {
        option.unsupported("humanz has no options for one container");
    }
    let ports = root.get("port_mappings").map(|list| ports(&list)).unwrap_or_default();
    if !ports.is_empty() {
        runtime.insert(PORTS.to_owned(), Value::Array(ports));
    }
    runtime
}

/// One entry for each port and protocol.
fn ports(list: &JsonField) -> Vec<Value> {
    let right = "port mappings {host_port, container_port, protocol, host_ip, range}";
    let mut all = Vec::new();
    for entry in list.list(right, Some).unwrap_or_default() {
        let Some(range) = MappedRange::read(&entry) else { continue };
        let protocols: Vec<&str> = range.protocols.split(',').collect();
        if all.len() + protocols.len() * range.count as usize > MAX_PORTS {
            list.fault::<()>(format!("more than {MAX_PORTS} host ports"));
            break;
        }
        for protocol in protocols {
            all.extend((0..range.count).map(|place| {
                json!({
                    "hostPort": range.host + place, "containerPort": range.container + place,
                    "protocol": protocol, "hostIP": range.host_ip,
                })
            }));
        }
    }
    all
}

/// Ports that follow each other, on the host and in the container.
struct MappedRange {
    host: u32,
    container: u32,
    count: u32,
    /// Separated by commas; none: TCP.
    protocols: String,
    host_ip: String,
}

impl MappedRange {
    fn read(entry: &JsonField) -> Option<MappedRange> {
        if !entry.value().is_object() {
            return entry.refuse("an object");
        }
        let port = |key: &str| match entry.get(key) {
            Some(port) => port.number(1..=65535),
            None => {
                entry.fault_at(key, "is missing: a port from 1 to 65535");
                None
            }
        };
        let (host, container) = (port("host_port")?, port("container_port")?);
        // 0 and none are one port.
        let count = match entry.get("range") {
            Some(range) => range.number(0..=65535)?.max(1),
            None => 1,
        };
        if host.max(container) + count > 65536 {
            return entry.fault("the range ends above port 65535");
        }
        let (protocols, host_ip) = (text(Some(entry), "protocol"), text(Some(entry), "host_ip"));
        Some(MappedRange { host, container, count, protocols, host_ip })
    }
}
