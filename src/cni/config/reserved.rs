//! Pure. `reservedPorts`: what the agent says of the ports that the host itself uses.

use std::num::NonZeroU16;

use crate::cni::json::JsonField;
use crate::net::ReservedPort;

/// The ports of the configuration; none if it has no such key.
pub(super) fn read(conf: &JsonField) -> Vec<ReservedPort> {
    let right = "reserved ports {hostPort, protocol, hostIP, for}";
    let list = conf.get("reservedPorts").and_then(|list| list.list(right, |entry| port(&entry)));
    list.unwrap_or_default()
}

fn port(entry: &JsonField) -> Option<ReservedPort> {
    if !entry.value().is_object() {
        return entry.refuse("a reserved port {hostPort, protocol, hostIP, for}");
    }
    let number = entry.get("hostPort")?.number(1..=65535)?;
    let host_ip = match entry.get("hostIP") {
        Some(address) => Some(address.address()?),
        None => None,
    };
    Some(ReservedPort {
        host_port: u16::try_from(number).ok().and_then(NonZeroU16::new)?,
        protocol: entry.get("protocol")?.parsed()?,
        host_ip,
        purpose: entry.get("for").and_then(|text| text.text()).unwrap_or("this host").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cni::json::FieldErrors;
    use crate::net::{HostPort, Protocol};

    #[test]
    fn what_the_agent_writes_is_understood() {
        let tunnel = ReservedPort {
            host_port: NonZeroU16::new(10400).unwrap(),
            protocol: Protocol::Udp,
            host_ip: None,
            purpose: "tunnels".to_owned(),
        };
        let metrics = ReservedPort {
            host_ip: "127.0.0.1".parse().ok(),
            protocol: Protocol::Tcp,
            ..tunnel.clone()
        };
        let faults = FieldErrors::default();
        let document = json!({ "reservedPorts": [tunnel, metrics] });
        assert_eq!(read(&JsonField::root(&document, &faults)), [tunnel.clone(), metrics.clone()]);
        assert!(faults.into_vec().is_empty());
        let covers = |reserved: &ReservedPort, protocol, port, address: &str| {
            reserved.covers(&HostPort { protocol, port, address: address.parse().unwrap() })
        };
        for address in ["0.0.0.0", "::", "192.0.2.1"] {
            assert!(covers(&tunnel, Protocol::Udp, 10400, address));
            assert!(!covers(&tunnel, Protocol::Tcp, 10400, address));
            assert!(!covers(&tunnel, Protocol::Udp, 10401, address));
        }
        assert!(covers(&metrics, Protocol::Tcp, 10400, "0.0.0.0"));
        assert!(!covers(&metrics, Protocol::Tcp, 10400, "192.0.2.1"));
        assert!(!covers(&metrics, Protocol::Tcp, 10400, "::"));
    }
}
