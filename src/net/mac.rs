//! Pure. MAC addresses, and how humanz derives them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::hash;
use crate::net::text::is_text;

/// An Ethernet address: 6 bytes, network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

/// A text that is no unicast MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// Not six bytes in hexadecimal.
    #[error("{0:?} is not a MAC address (six hexadecimal bytes, as in 0a:58:0a:f4:01:02)")]
    Syntax(String),
    /// All zero, or the multicast bit is set: no interface can have it.
    #[error("MAC address {0} cannot belong to an interface (zero or multicast)")]
    NotUnicast(Mac),
}

impl Mac {
    /// The MAC of an interface whose first address is `address`: a pod that inherits an address
    /// inherits the MAC with it, so that no neighbour cache is ever wrong.
    ///
    /// `0a:58` and the four bytes of an IPv4 address; `0a:59` and a hash of an IPv6 address.
    pub fn of_address(address: IpAddr) -> Mac {
        match address {
            IpAddr::V4(v4) => {
                let [a, b, c, d] = v4.octets();
                Mac([0x0a, 0x58, a, b, c, d])
            }
            IpAddr::V6(v6) => Mac::derived(0x59, &[&v6.to_string()]),
        }
    }

    /// The MAC of a tunnel that leads to the pods of `subnet`: `0a:58` and the network address for
    /// IPv4, six bytes of hash for IPv6 (46 of their bits, so that ten thousand hosts have as many
    /// MACs).
    pub fn of_subnet(subnet: IpNetwork) -> Mac {
        match subnet {
            IpNetwork::V4(_) => Mac::of_address(subnet.network()),
            IpNetwork::V6(_) => {
                let [a, b, c, d, e, f, ..] = hash::stable(&[&subnet.to_string()]).to_be_bytes();
                Mac([(a & !1) | 2, b, c, d, e, f])
            }
        }
    }

    /// The link-local IPv6 address of an interface with this MAC. Source: RFC 4291 appendix A.
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let interface = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        Ipv6Addr::from_bits((0xfe80 << 112) | u128::from(interface))
    }

    /// A locally administered MAC made of `parts`: `0a`, `kind` (0x56 to 0x5b, see [`Mac::is_derived`]), four
    /// bytes of hash.
    pub fn derived(kind: u8, parts: &[&str]) -> Mac {
        let [a, b, c, d, ..] = hash::stable(parts).to_be_bytes();
        Mac([0x0a, kind, a, b, c, d])
    }

    /// humanz derives such MACs: of host ends, pods and bridges, now and later.
    pub fn is_derived(self) -> bool {
        matches!(self.0, [0x0a, 0x56..=0x5b, ..])
    }

    /// Can belong to an interface: not zero, not multicast.
    fn is_unicast(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Mac, MacError> {
        let syntax = || MacError::Syntax(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let hex = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(hex).ok_or_else(syntax)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| syntax())?;
        }
        let mac = Mac(bytes);
        match parts.next() {
            Some(_) => Err(syntax()),
            None if mac.is_unicast() => Ok(mac),
            None => Err(MacError::NotUnicast(mac)),
        }
    }
}

is_text!(Mac);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back_as_it_went_in() {
        let mac: Mac = "0A-58-0a-f4-01-02".parse().unwrap();
        assert_eq!(mac.to_string(), "0a:58:0a:f4:01:02");
    }

    #[test]
    fn what_no_interface_can_have_is_refused() {
        for bad in [
            "",
            "0a:58",
            "0a:58:0a:f4:01:02:03",
            "00:00:00:00:00:00",
            "01:00:00:00:00:01",
            "0a:58:0a:f4:01:0g",
            "+a:58:0a:f4:01:02",
            "a:58:0a:f4:01:02",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_subnet_names_the_mac_of_its_tunnel() {
        let of = |text: &str| Mac::of_subnet(text.parse().unwrap());
        assert_eq!(of("10.244.3.0/24").to_string(), "0a:58:0a:f4:03:00");
        assert_ne!(of("fd00:0:0:1::/64"), of("fd00:0:0:2::/64"));
        let mut macs = std::collections::BTreeSet::new();
        for number in 0..1000 {
            let mac = of(&format!("fd00:0:0:{number:x}::/64"));
            assert!(mac.is_unicast() && mac.0[0] & 2 != 0, "{mac}");
            assert!(macs.insert(mac), "{mac} twice");
        }
    }

    #[test]
    fn a_mac_names_its_link_local_address() {
        let mac: Mac = "0a:58:0a:f4:03:00".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::858:aff:fef4:300");
    }

    #[test]
    fn whatever_is_derived_is_known_as_such() {
        for derived in ["10.244.1.2", "fd00::2"].map(|text| Mac::of_address(text.parse().unwrap()))
        {
            assert!(derived.is_derived(), "{derived}");
        }
        for (text, is_derived) in [
            ("0a:56:00:00:00:01", true),
            ("0a:5b:ff:ff:ff:ff", true),
            ("0a:55:00:00:00:01", false),
            ("0a:5c:00:00:00:01", false),
            ("02:56:00:00:00:01", false),
        ] {
            assert_eq!(text.parse::<Mac>().unwrap().is_derived(), is_derived, "{text}");
        }
    }

    #[test]
    fn an_address_names_its_mac() {
        assert_eq!(Mac::of_address("10.244.1.2".parse().unwrap()).to_string(), "0a:58:0a:f4:01:02");
    }
}
