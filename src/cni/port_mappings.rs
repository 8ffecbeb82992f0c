//! Pure. `runtimeConfig.portMappings`: the host ports that a pod requests.
//!
//! Source: CNI conventions, "portMappings"; entries without a host port are ignored, as containerd
//! does.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;

use crate::cni::json::JsonField;
use crate::net::{HostPort, PortMapping, Protocol};

/// The mappings of a list; no two of them have the same port on the same address.
pub(super) fn read(field: &JsonField) -> Vec<PortMapping> {
    let right = "port mappings {hostPort, containerPort, protocol, hostIP}";
    let mappings: Vec<(JsonField, PortMapping)> =
        field.list(right, |entry| Some((entry.clone(), mapping(&entry)?))).unwrap_or_default();
    let mut taken: HashSet<HostPort> = HashSet::new();
    for (entry, mapping) in &mappings {
        for port in mapping.host_ports() {
            if !taken.insert(port) {
                entry.fault::<()>(format!("host port {port} is requested twice"));
            }
        }
    }
    mappings.into_iter().map(|(_, mapping)| mapping).collect()
}

/// One entry; `None` if it has no host port, or is invalid.
fn mapping(entry: &JsonField) -> Option<PortMapping> {
    if !entry.value().is_object() {
        return entry.refuse("a port mapping {hostPort, containerPort, protocol, hostIP}");
    }
    if entry.get("hostPort").is_none_or(|port| port.value().as_i64().is_some_and(|port| port <= 0))
    {
        return None;
    }
    let port = |key: &str| entry.get(key)?.number(1..=65535).and_then(port_number);
    let protocol = match entry.get("protocol").filter(|field| field.value() != "") {
        Some(protocol) => protocol.parsed(),
        None => Some(Protocol::Tcp),
    };
    let host_ip = match entry.get("hostIP").filter(|field| field.value() != "") {
        Some(address) => address.address().map(|address| Some(address.to_canonical())),
        None => Some(None),
    };
    if entry.get("containerPort").is_none() {
        entry.fault_at("containerPort", "is missing: a port from 1 to 65535");
    }
    let (host_port, container_port) = (port("hostPort"), port("containerPort"));
    if host_ip == Some(Some(IpAddr::V6(Ipv6Addr::LOCALHOST))) {
        let text = "::1 cannot be forwarded: the kernel never routes it; use 127.0.0.1 or ::";
        entry.fault_at("hostIP", text);
    }
    Some(PortMapping {
        host_port: host_port?,
        container_port: container_port?,
        protocol: protocol?,
        host_ip: host_ip?,
    })
}

fn port_number(number: u32) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cni::json::{FieldError, FieldErrors};

    fn parse(value: &Value) -> (Vec<PortMapping>, Vec<String>) {
        let faults = FieldErrors::default();
        let document = json!({ "portMappings": value });
        let root = JsonField::root(&document, &faults);
        let mappings = read(&root.get("portMappings").unwrap());
        (mappings, faults.into_vec().iter().map(FieldError::to_string).collect())
    }

    fn check(value: Value, wanted: &[&str]) {
        let (mappings, faults) = parse(&value);
        assert_eq!(faults, [""; 0], "{value}");
        let ports = mappings.iter().map(|mapping| {
            let ports: Vec<String> = mapping.host_ports().map(|port| port.to_string()).collect();
            format!("{} to {}", ports.join(" and "), mapping.container_port)
        });
        assert_eq!(ports.collect::<Vec<_>>(), wanted, "{value}");
    }

    fn faulty(value: Value, wanted: &str) {
        let (_, faults) = parse(&value);
        assert_eq!(faults, [wanted], "{value}");
    }

    #[test]
    fn what_runtimes_send_is_understood() {
        let both = "80/tcp on every IPv4 address and 80/tcp on every IPv6 address to 8080";
        check(json!([{ "hostPort": 80, "containerPort": 8080, "protocol": "TCP" }]), &[both]);
        check(json!([{ "HostPort": 80, "ContainerPort": 8080, "HostIP": "" }]), &[both]);
        check(
            json!([
                { "hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "0.0.0.0" },
                { "hostPort": 53, "containerPort": 53, "protocol": "sctp", "hostIP": "2001:db8::1" },
                { "hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "::" },
                { "hostPort": 53, "containerPort": 53, "hostIP": "::ffff:192.0.2.1" },
            ]),
            &[
                "53/udp on every IPv4 address to 53",
                "53/sctp on 2001:db8::1 to 53",
                "53/udp on every IPv6 address to 5353",
                "53/tcp on 192.0.2.1 to 53",
            ],
        );
    }

    #[test]
    fn entries_without_a_host_port_ask_for_nothing() {
        let container = json!([{ "containerPort": 80 }, { "hostPort": 0, "containerPort": 80 }]);
        check(container, &[]);
        check(json!([{ "hostPort": -1, "containerPort": 80 }]), &[]);
        check(json!([]), &[]);
    }

    #[test]
    fn an_error_has_the_path_of_the_entry() {
        let at = |key: &str| format!("portMappings[0].{key}");
        let number = "must be a whole number from 1 to 65535, not";
        let entry = |key: &str, value: Value| {
            let mut entry = json!({ "hostPort": 80, "containerPort": 80, "protocol": "tcp" });
            entry[key] = value;
            json!([entry])
        };
        for (key, value) in [("hostPort", json!(65536)), ("containerPort", json!(0))] {
            faulty(entry(key, value.clone()), &format!("{}: {number} {value}", at(key)));
        }
        faulty(entry("hostPort", json!("80")), &format!("{}: {number} \"80\"", at("hostPort")));
        let wanted = format!("{}: must be tcp, udp or sctp, not \"icmp\"", at("protocol"));
        faulty(entry("protocol", json!("icmp")), &wanted);
        let (_, faults) = parse(&entry("hostIP", json!("fe80::1%eth0")));
        assert!(faults[0].starts_with(&at("hostIP")), "{faults:?}");
        let (_, faults) = parse(&entry("hostIP", json!("::1")));
        assert!(faults[0].starts_with(&at("hostIP")), "{faults:?}");
        let wanted = "portMappings[0].containerPort: is missing: a port from 1 to 65535";
        faulty(json!([{ "hostPort": 80 }]), wanted);
        let wanted = "portMappings[0]: must be a port mapping {hostPort, containerPort, protocol, \
                      hostIP}, not 80";
        faulty(json!([80]), wanted);
    }

    #[test]
    fn a_port_requested_twice_is_refused() {
        let one = json!({ "hostPort": 80, "containerPort": 80, "hostIP": "0.0.0.0" });
        let other = json!({ "hostPort": 80, "containerPort": 81 });
        let wanted = "portMappings[1]: host port 80/tcp on every IPv4 address is requested twice";
        faulty(json!([one, other]), wanted);
        let udp = json!({ "hostPort": 80, "containerPort": 80, "protocol": "udp" });
        let special = json!({ "hostPort": 80, "containerPort": 82, "hostIP": "192.0.2.1" });
        let (mappings, faults) = parse(&json!([one, udp, special]));
        assert_eq!((mappings.len(), faults.len()), (3, 0));
    }
}
