//! Pure. Ports of a host that lead to ports of a pod.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::net::Family;

/// A protocol that has ports.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

/// What a pod asks for: a port of the host, and the port of the pod that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: NonZeroU16,
    pub container_port: NonZeroU16,
    /// Of both.
    pub protocol: Protocol,
    /// The host's address: `None` is all of both families, an unspecified one all of its family.
    #[serde(rename = "hostIP", default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

/// A port on the host's addresses of one family: on one of them, or on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    pub protocol: Protocol,
    pub port: u16,
    /// The address; an unspecified one stands for all of its family.
    pub address: IpAddr,
}

/// A port of the host and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortForward {
    /// The host's.
    pub from: HostPort,
    /// Address and port of the pod, of the same family.
    pub to: SocketAddr,
}

/// A port that the host itself uses, so that it leads to no pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservedPort {
    pub host_port: NonZeroU16,
    pub protocol: Protocol,
    /// `None` is all addresses of both families.
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
    /// What the host uses it for.
    #[serde(rename = "for")]
    pub purpose: String,
}

impl ReservedPort {
    /// A packet could be for both.
    pub fn covers(&self, port: &HostPort) -> bool {
        let (protocol, number) = (self.protocol, self.host_port.get());
        let is_on = |address| HostPort { protocol, port: number, address }.overlaps(port);
        match self.host_ip {
            Some(address) => is_on(address),
            None => (port.protocol, port.port) == (protocol, number),
        }
    }
}

/// A text that names no protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be tcp, udp or sctp, not {0:?}")]
pub struct ProtocolError(String);

impl Protocol {
    /// The kernel's number for it: IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol of a number.
    pub fn of_number(number: u8) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| protocol.number() == number)
    }
}

impl FromStr for Protocol {
    type Err = ProtocolError;

    /// In any case.
    fn from_str(text: &str) -> Result<Protocol, ProtocolError> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Protocol::Tcp),
            "udp" => Ok(Protocol::Udp),
            "sctp" => Ok(Protocol::Sctp),
            _ => Err(ProtocolError(text.chars().take(60).collect())),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

impl PortMapping {
    /// The ports of the host that this takes, in one family or in both.
    pub fn host_ports(&self) -> impl Iterator<Item = HostPort> {
        let unspecified = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let all = unspecified.into_iter().filter(|_| self.host_ip.is_none());
        let (protocol, port) = (self.protocol, self.host_port.get());
        self.host_ip.into_iter().chain(all).map(move |address| HostPort { protocol, port, address })
    }
}

/// Where the ports of `mappings` lead for a pod with these `addresses`: to the first one of each
/// family. What is asked for in a family that the pod does not have leads nowhere, and is left out.
pub fn forwards(mappings: &[PortMapping], addresses: &[IpAddr]) -> Vec<PortForward> {
    let mut forwards = Vec::new();
    for mapping in mappings {
        for from in mapping.host_ports() {
            let own = addresses.iter().find(|own| Family::of(**own) == from.family());
            let to = own.map(|own| SocketAddr::new(*own, mapping.container_port.get()));
            forwards.extend(to.map(|to| PortForward { from, to }));
        }
    }
    forwards
}

impl HostPort {
    /// The family of the addresses.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// The same port on every address of its family.
    pub fn of_all(&self) -> HostPort {
        let address = match self.address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        HostPort { address, ..*self }
    }

    /// A packet could be for both.
    pub fn overlaps(&self, other: &HostPort) -> bool {
        let same_port = (self.protocol, self.port) == (other.protocol, other.port);
        let any = self.address.is_unspecified() || other.address.is_unspecified();
        same_port && self.family() == other.family() && (any || self.address == other.address)
    }
}

impl fmt::Display for HostPort {
    /// `8080/tcp on 192.0.2.1`, `8080/tcp on every IPv4 address`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on ", self.port, self.protocol)?;
        match self.address.is_unspecified() {
            true => write!(f, "every {} address", self.family()),
            false => write!(f, "{}", self.address),
        }
    }
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host port {} to {}", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(host_ip: &str) -> PortMapping {
        PortMapping {
            host_port: NonZeroU16::new(8080).unwrap(),
            container_port: NonZeroU16::new(80).unwrap(),
            protocol: Protocol::Tcp,
            host_ip: (!host_ip.is_empty()).then(|| host_ip.parse().unwrap()),
        }
    }

    fn check(host_ip: &str, addresses: &[&str], wanted: &[&str]) {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let found = forwards(&[mapping(host_ip)], &addresses);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted);
    }

    const V4: &str = "host port 8080/tcp on every IPv4 address to 10.1.2.3:80";
    const V6: &str = "host port 8080/tcp on every IPv6 address to [fd00::3]:80";

    #[test]
    fn without_an_address_a_port_is_one_of_every_address_of_the_pods_families() {
        check("", &["10.1.2.3", "fd00::3", "10.1.2.4"], &[V4, V6]);
        check("", &["fd00::3"], &[V6]);
    }

    #[test]
    fn an_unspecified_address_stands_for_its_family() {
        check("0.0.0.0", &["10.1.2.3", "fd00::3"], &[V4]);
        check("::", &["10.1.2.3", "fd00::3"], &[V6]);
        check("::", &["10.1.2.3"], &[]);
    }

    #[test]
    fn an_address_is_itself() {
        let wanted = "host port 8080/tcp on 192.0.2.1 to 10.1.2.3:80";
        check("192.0.2.1", &["10.1.2.3", "fd00::3"], &[wanted]);
    }

    #[test]
    fn ports_overlap_on_a_common_address() {
        let port = |address: &str, protocol, port| HostPort {
            protocol,
            port,
            address: address.parse().unwrap(),
        };
        let one = port("192.0.2.1", Protocol::Tcp, 80);
        assert!(one.overlaps(&one) && one.overlaps(&port("0.0.0.0", Protocol::Tcp, 80)));
        for other in [
            port("192.0.2.2", Protocol::Tcp, 80),
            port("::", Protocol::Tcp, 80),
            port("192.0.2.1", Protocol::Udp, 80),
            port("0.0.0.0", Protocol::Tcp, 81),
        ] {
            assert!(!one.overlaps(&other) && !other.overlaps(&one), "{one}, {other}");
        }
    }

    #[test]
    fn a_mapping_is_written_with_the_words_of_cni() {
        let text = r#"{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"192.0.2.1"}"#;
        assert_eq!(serde_json::to_string(&mapping("192.0.2.1")).unwrap(), text);
        assert_eq!(serde_json::from_str::<PortMapping>(text).unwrap(), mapping("192.0.2.1"));
    }
}
